"""Lists of models (`GET /v1/models`) and the error envelope, alike in OpenAI's API and those on top
of it. Knows no registry. Statuses and headers are HTTP's to choose.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from backends.contract.protocol import Modality
from backends.contract.remote import RemoteOrigin
from config.values import alike
from gateway.dialects.dialect import frame
from gateway.terms.errors import ContextLengthExceeded, GatewayError


class StatusWire(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's name of the state, as Open WebUI reads it. `percent`: the progress of a load."""

    value: Literal["unloaded", "loading", "loaded"]
    failed: bool = False
    percent: int | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """The format of reasoning and tool calls, and the reason why it was chosen."""

    id: str
    why: str


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="model"):
    """One model. The first three fields are OpenAI's; null: not known before a load."""

    id: str
    created: int  # Unix time
    owned_by: str = "roundhouse"
    state: str | None = None  # "unloaded", "loading", "loaded", …
    status: StatusWire = StatusWire(value="unloaded")
    why_failed: str | None = None
    aliases: tuple[str, ...] = ()
    parent: str | UnsetType = UNSET  # of a preset: the model that is loaded for it
    backend: str | None = None
    format: str | None = None
    context_length: int | None = None  # tokens
    size_bytes: int | None = None
    modalities: tuple[Modality, ...] = ("text",)
    # "tools", "reasoning", "vision"; or alone "embedding", "rerank"
    capabilities: tuple[str, ...] | None = None
    output_format: OutputFormat | None = None
    sampling: str | None = None  # who chose it: "configuration", "model", "default" (nobody)
    adapters: tuple[str, ...] = ()  # by name; loaded with it, or would be
    library: str | None = None  # what computes it, and why, where its engine has several
    memory: str | None = None  # the arithmetic: what it needs, and what is free
    devices: Mapping[str, int] | None = None  # bytes of each that it takes, or would
    missing_bytes: int | None = None  # that its load would have to take from other models
    remaining_time_seconds: float | None = None  # until it is unloaded for idleness; null: never
    in_use: int = 0  # requests under way
    waiting: int = 0  # requests in its line
    origin: RemoteOrigin | UnsetType = UNSET  # for other Roundhouses


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A model stored on this machine, in the format of the hub's local cache. The size is in bytes.
    Configured models are included, with the fields that Open WebUI shows: it reads this list
    instead of `data` if it is present, even if empty, and skips entries without `id`.
    """

    repo_id: str
    repo_type: str = "model"
    size_on_disk: int
    id: str | UnsetType = UNSET
    status: StatusWire | UnsetType = UNSET
    size_bytes: int | UnsetType | None = UNSET


class ModelList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """All models."""

    data: Sequence[ModelCard]
    models: Sequence[Stored] | UnsetType = UNSET


def stored_list(cards: Sequence[ModelCard], cached: Sequence[Stored]) -> ModelList:
    """A list of `cards`, and of them once more behind what lies in the hub's cache."""
    return ModelList(cards, (*cached, *map(_stored, cards)))


def _stored(card: ModelCard) -> Stored:
    return alike(Stored, card)(repo_id=card.id, size_on_disk=card.size_bytes or 0)


class InputTokens(msgspec.Struct, frozen=True, tag_field="object", tag="response.input_tokens"):
    """The number of tokens of a prompt."""

    input_tokens: int


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An error. The first four keys are always present; `param` and `code` may be null. The
    lengths, in tokens, are llama-server's fields for a prompt that doesn't fit.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    error: ErrorDetail


def envelope(error: GatewayError) -> ErrorEnvelope:
    """`error` as sent to a client."""
    match error:
        case ContextLengthExceeded(prompt_tokens=int(prompt), context_length=int(context)):
            detail = alike(ErrorDetail, error)(n_prompt_tokens=prompt, n_ctx=context)
        case _:
            detail = alike(ErrorDetail, error)()
    return ErrorEnvelope(detail)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's `error` and TabbyAPI's `detail`, for routes that clients of both call."""

    error: ErrorDetail
    detail: str


def problem(error: GatewayError) -> Problem:
    """The body that answers a request with `error`."""
    return Problem(error=envelope(error).error, detail=error.message)


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream; no `[DONE]`, so that no client takes it for complete."""
    return frame(envelope(error))
