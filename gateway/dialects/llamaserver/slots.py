"""llama-server's slots: their status, and orders to save, restore and erase. Pure."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.slots import SlotState
from gateway.dialects.llamaserver.settings import GenerationSettings, settings

IDLE = -1  # the task of a slot that has none, and what is left of an answer without a limit

Action: TypeAlias = Literal["save", "restore", "erase"]


class NextTokenWire(msgspec.Struct, frozen=True):
    """How far an answer is: tokens written, and those that its request still allows."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class SlotWire(msgspec.Struct, frozen=True, kw_only=True):
    """One slot, without texts, which are for their client alone; the parameters are for
    administrators.
    """

    id: int
    id_task: int
    n_ctx: int
    speculative: bool = False
    is_processing: bool
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_cache: int | UnsetType = UNSET  # whose cells it holds, where that is known
    params: GenerationSettings | UnsetType = UNSET
    next_token: Sequence[NextTokenWire]


class SlotOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an order for a slot."""

    filename: str = ""
    model: str | None = None


class SavedTimings(msgspec.Struct, frozen=True):
    """How long it took."""

    save_ms: float


class RestoredTimings(msgspec.Struct, frozen=True):
    """How long it took."""

    restore_ms: float


class SlotSaved(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, and bytes of the file."""

    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: SavedTimings


class SlotRestored(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, and bytes of the file. `verified`: a digest says that it is what was saved."""

    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    verified: bool
    timings: RestoredTimings


class SlotErased(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that are gone."""

    id_slot: int
    n_erased: int


def slot_wire(state: SlotState, *, context_length: int, shows_params: bool) -> SlotWire:
    """A slot as it is now."""
    job = state.job
    if job is None:
        return SlotWire(
            id=state.id,
            id_task=IDLE,
            n_ctx=context_length,
            is_processing=False,
            n_prompt_tokens_cache=UNSET if state.cells is None else state.cells,
            next_token=[NextTokenWire(has_next_token=False, n_remain=IDLE, n_decoded=0)],
        )
    left = IDLE if job.max_tokens is None else max(0, job.max_tokens - state.generated)
    return SlotWire(
        id=state.id,
        id_task=IDLE if state.task is None else state.task,
        n_ctx=context_length,
        is_processing=True,
        n_prompt_tokens=state.prompt,
        n_prompt_tokens_cache=UNSET if state.cells is None else state.cells,
        params=settings(job, context_length=context_length) if shows_params else UNSET,
        next_token=[NextTokenWire(has_next_token=True, n_remain=left, n_decoded=state.generated)],
    )
