"""Which format does a model speak, and does its prompt begin in reasoning? Read from text, never from a setting."""

from collections.abc import Sequence

import msgspec

from gateway.splitter.formats import FORMATS
from gateway.splitter.syntax import Format


class Recognised(msgspec.Struct, frozen=True):
    """A format, and why it was taken, in words for the user."""

    format: Format
    why: str


def recognise(
    *,
    template: str | None,
    control_tokens: Sequence[str] = (),
    model_type: str = "",
    response_template: str | None = None,
) -> Recognised:
    """The format of a model, from its chat template, its special tokens and its type."""
    text = template or " ".join(control_tokens)
    if "<tool_call>" in text:
        return Recognised(FORMATS["hermes_json"], "the chat template contains '<tool_call>'")
    if "<think" in text:
        return Recognised(FORMATS["think_text"], "the chat template contains '<think'")
    return Recognised(FORMATS["plain"], "nothing in the chat template is known")


def starts_in_reasoning(format: Format, prompt_tail: str) -> bool:
    """The rendered prompt opened reasoning and did not close it."""
    if format.reasoning is None:
        return False
    return prompt_tail.rstrip().endswith(format.reasoning.opens)
