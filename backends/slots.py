"""An engine's slots: the state of each, and its cache saved to a file and restored.

`Slots` is the gateway's interface to them. Every engine has slots; an engine that can also save and
restore a slot's cells has a `SlotKeeper`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from backends.errors import InvalidJob, NotAble
from backends.protocol import Generation, ModelInfo

T = TypeVar("T")


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A slot at this moment. Counts are tokens."""

    id: int
    cells: int | None = None  # whose cells it holds; None: its engine doesn't report it
    task: int | None = None  # the job that is computed in it; None: it is idle
    job: Generation | None = None
    prompt: int = 0
    generated: int = 0


class SavedSlot(msgspec.Struct, frozen=True):
    """The cells of a slot: of how many tokens, and as bytes that the same model takes back."""

    tokens: int
    data: bytes | bytearray


class SlotKeeper(Protocol):
    """What an engine with a cache by slots can do with them. Called by its own thread alone, and
    never for a slot that is busy, except `cells` and `places`.
    """

    def cells(self) -> Sequence[int]:
        """How many tokens' cells each slot holds."""
        ...

    def places(self) -> Mapping[int, int]:
        """Where each job that has begun is computed: its key, and its slot."""
        ...

    def save(self, slot: int) -> SavedSlot:
        """Raises InvalidJob."""
        ...

    def restore(self, slot: int, data: bytes) -> int:
        """In place of what is there; returns the tokens. Raises InvalidJob for what this model
        can't take.
        """
        ...

    def erase(self, slot: int) -> int:
        """Returns the tokens that are gone."""
        ...


class ActiveJob(Protocol):
    """A job that an engine has, as its driver keeps it. Counts are tokens."""

    @property
    def key(self) -> int: ...

    @property
    def job(self) -> Generation: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...


Work: TypeAlias = Callable[[], T]
Ready: TypeAlias = Callable[[], bool]
Active: TypeAlias = Callable[[], Sequence[ActiveJob]]


class Ask(Protocol):
    """Runs `work` on the engine's thread once `ready` says so; raises what it raises."""

    def __call__(self, work: Work[Any], ready: Ready) -> Awaitable[Any]: ...


class Slots:
    """The slots of one container."""

    def __init__(
        self, info: ModelInfo, ask: Ask, active: Active, keeper: SlotKeeper | None
    ) -> None:
        """`active`: the jobs that the engine has, oldest first; for its thread."""
        self._info = info
        self._ask = ask
        self._active = active
        self._keeper = keeper

    async def states(self) -> Sequence[SlotState]:
        """All of them, in order. Raises BackendError."""
        found: Sequence[SlotState] = await self._ask(self._states, _always)
        return found

    async def save(self, slot: int) -> SavedSlot:
        """The cells of a slot, once it is idle. Raises BackendError."""
        keeper = self._kept(slot)
        saved: SavedSlot = await self._ask(lambda: keeper.save(slot), self._idle(keeper, slot))
        return saved

    async def restore(self, slot: int, data: bytes) -> int:
        """Put back what `save` gave, once the slot is idle; its tokens. Raises BackendError."""
        keeper = self._kept(slot)
        idle = self._idle(keeper, slot)
        restored: int = await self._ask(lambda: keeper.restore(slot, data), idle)
        return restored

    async def erase(self, slot: int) -> int:
        """Forget a slot's cells, once it is idle; the tokens they held. Raises BackendError."""
        keeper = self._kept(slot)
        erased: int = await self._ask(lambda: keeper.erase(slot), self._idle(keeper, slot))
        return erased

    def _kept(self, slot: int) -> SlotKeeper:
        if self._keeper is None:
            raise NotAble(f"{self._info.backend} can't save, restore or erase its slots.")
        if not 0 <= slot < self._info.max_concurrent:
            last = self._info.max_concurrent - 1
            raise InvalidJob(f"The model has the slots 0 to {last}, not {slot}.", "id_slot")
        return self._keeper

    def _idle(self, keeper: SlotKeeper, slot: int) -> Ready:
        return lambda: slot not in keeper.places().values()

    def _states(self) -> Sequence[SlotState]:
        places = self._keeper.places() if self._keeper else _in_order(self._active())
        cells = self._keeper.cells() if self._keeper else None
        running = {places[job.key]: job for job in self._active() if job.key in places}
        return tuple(
            _state(slot, cells[slot] if cells else None, running.get(slot))
            for slot in range(self._info.max_concurrent)
        )


def _in_order(active: Sequence[ActiveJob]) -> Mapping[int, int]:
    return {job.key: place for place, job in enumerate(active)}


def _state(slot: int, cells: int | None, running: ActiveJob | None) -> SlotState:
    if running is None:
        return SlotState(id=slot, cells=cells)
    return SlotState(
        id=slot,
        cells=cells,
        task=running.key,
        job=running.job,
        prompt=running.prompt_tokens,
        generated=running.completion_tokens,
    )


def _always() -> bool:
    return True
