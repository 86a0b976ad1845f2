"""The model list as Anthropic's clients read it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gateway.dialects.frames import body


class ModelWire(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `max_input_tokens` is its context."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """All of them are on one page."""

    data: Sequence[ModelWire]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def model_wire(name: str, created: int, context_length: int | None) -> ModelWire:
    """One model; `created` is Unix time."""
    moment = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelWire(id=name, display_name=name, created_at=moment, max_input_tokens=context_length)


def model_page(models: Sequence[ModelWire]) -> bytes:
    """The JSON body that lists `models`, in their order."""
    return body(
        ModelPage(
            data=models,
            first_id=models[0].id if models else None,
            last_id=models[-1].id if models else None,
        )
    )


def model_body(model: ModelWire) -> bytes:
    """The JSON body that tells one model."""
    return body(model)
