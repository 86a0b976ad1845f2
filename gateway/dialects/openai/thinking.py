"""Reasoning options: five servers' spellings of four parameters. Knows no template."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gateway.dialects.fields import Fields
from gateway.request import Thinking

Budget: TypeAlias = Annotated[int, Meta(ge=-1)]  # tokens; -1: no limit

# llama.cpp's names, and Groq's "parsed" and "raw".
_SHOWN: dict[str, Literal["split", "inline", "hidden"]] = {
    "auto": "split",
    "deepseek": "split",
    "parsed": "split",
    "none": "inline",
    "raw": "inline",
    "hidden": "hidden",
}


class ReasoningWire(msgspec.Struct, frozen=True):
    """OpenRouter's and TabbyAPI's object."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: Budget | None = None
    exclude: bool | None = None  # reason, but don't return it


class ThinkingWire(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a chat body that this module reads."""

    reasoning: ReasoningWire = ReasoningWire()
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: Budget | None = None
    reasoning_budget_message: str = ""
    reasoning_format: str = "auto"
    include_reasoning: bool = True
    template_variables: dict[str, Any] = {}


def read_thinking(fields: Fields) -> Thinking:
    """The requested parameters in `fields`; flat fields go before `reasoning`. Raises
    InvalidRequest.
    """
    wire = fields.read(ThinkingWire)
    if (shown := _SHOWN.get(wire.reasoning_format)) is None:
        names = ", ".join(repr(name) for name in _SHOWN)
        message = f"Expected one of {names}, got {wire.reasoning_format!r}."
        raise fields.wrong("reasoning_format", message)
    if wire.reasoning.exclude or not wire.include_reasoning:
        shown = "hidden"
    effort = wire.reasoning_effort or wire.reasoning.effort
    budget = wire.reasoning.max_tokens if wire.thinking_budget is None else wire.thinking_budget
    return Thinking(
        enabled=_enabled(wire, effort),
        effort=effort,
        budget=None if budget == -1 else budget,
        closing=wire.reasoning_budget_message,
        shown=shown,
    )


def _enabled(wire: ThinkingWire, effort: str | None) -> bool | None:
    """The template's own variable is the most specific field, an effort of "none" the least."""
    for said in (
        wire.template_variables.get("enable_thinking"),
        wire.enable_thinking,
        wire.reasoning.enabled,
    ):
        if isinstance(said, bool):
            return said
    return False if effort == "none" else None
