"""The model list as Anthropic's clients read it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gateway.dialects.frames import body


class Support(msgspec.Struct, frozen=True):
    """Whether there is something."""

    supported: bool


class EffortSupport(msgspec.Struct, frozen=True, kw_only=True):
    """Which efforts make a difference to the model."""

    supported: bool
    low: Support
    medium: Support
    high: Support
    xhigh: Support
    max: Support


class ThinkingTypes(msgspec.Struct, frozen=True, kw_only=True):
    """Which types of thinking have a meaning for the model; `disabled` always has."""

    enabled: Support
    adaptive: Support
    between_tools: Support
    disabled: Support


class ThinkingSupport(msgspec.Struct, frozen=True):
    """Whether the model thinks, and how it can be asked to."""

    supported: bool
    types: ThinkingTypes


class ServerToolsSupport(msgspec.Struct, frozen=True):
    """Tools that Anthropic's servers run: not supported here."""

    supported: bool = False
    code_execution: Support = Support(supported=False)
    web_search: Support = Support(supported=False)


NO = Support(supported=False)


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can do, by Anthropic's names; features of its service alone are left out."""

    image_input: Support
    structured_outputs: Support
    thinking: ThinkingSupport
    effort: EffortSupport
    batch: Support = NO
    citations: Support = NO
    code_execution: Support = NO
    context_management: Support = NO
    pdf_input: Support = NO
    server_tools: ServerToolsSupport = ServerToolsSupport()


class Able(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model. `efforts`: those that its template takes."""

    sees: bool
    thinks: bool
    efforts: tuple[str, ...]
    keeps_to_schemas: bool


class ModelWire(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `max_input_tokens` is its context; `capabilities` are null while they are not
    known.
    """

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: ModelCapabilities | None
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """All of them are on one page."""

    data: Sequence[ModelWire]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def model_wire(name: str, created: int, context_length: int | None, able: Able | None) -> ModelWire:
    """One model; `created` is Unix time."""
    return ModelWire(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=context_length,
        max_tokens=context_length,
        capabilities=None if able is None else _capabilities(able),
    )


def _capabilities(able: Able) -> ModelCapabilities:
    thinks = Support(able.thinks)
    levels = {
        name: Support(name in able.efforts) for name in ("low", "medium", "high", "xhigh", "max")
    }
    types = ThinkingTypes(
        enabled=thinks, adaptive=thinks, between_tools=thinks, disabled=Support(supported=True)
    )
    return ModelCapabilities(
        image_input=Support(able.sees),
        structured_outputs=Support(able.keeps_to_schemas),
        thinking=ThinkingSupport(able.thinks, types),
        effort=EffortSupport(supported=bool(able.efforts), **levels),
    )


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
    """The JSON body of one model."""
    return body(model)
