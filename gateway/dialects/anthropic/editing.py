"""Edits a conversation before the model reads it, as `context_management` asks: results of old tool
calls and old thoughts are left out once there are many. Pure.

The tokens of a conversation are not known before a model is leased, so `input_tokens` are estimated
by the characters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from gateway.terms.request import CHARACTERS, Message, TextPart, Unapplied

Count: TypeAlias = Annotated[int, Meta(ge=0)]


class Amount(msgspec.Struct, frozen=True):
    """So many input tokens, tool uses or turns with thoughts."""

    value: Count = 0
    type: str = ""


class EditWire(msgspec.Struct, frozen=True, kw_only=True):
    """One edit. `keep` is "all", or how many of the last ones stay."""

    type: str
    trigger: Amount | None = None
    keep: Amount | str | None = None
    clear_at_least: Amount | None = None
    clear_tool_inputs: bool | list[str] | None = None
    exclude_tools: list[str] = []


class ContextWire(msgspec.Struct, frozen=True):
    """How the conversation is kept short."""

    edits: list[EditWire] = []


class ClearedToolUses(
    msgspec.Struct, frozen=True, tag_field="type", tag="clear_tool_uses_20250919"
):
    """What was left out of calls and their results."""

    cleared_tool_uses: int
    cleared_input_tokens: int


class ClearedThinking(msgspec.Struct, frozen=True, tag_field="type", tag="clear_thinking_20251015"):
    """What was left out of thoughts."""

    cleared_thinking_turns: int
    cleared_input_tokens: int


class ContextManaged(msgspec.Struct, frozen=True):
    """The edits that changed the conversation."""

    applied_edits: tuple[ClearedToolUses | ClearedThinking, ...]


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, and what became of the edits. `managed`: UNSET where none were asked for."""

    messages: tuple[Message, ...]
    managed: ContextManaged | UnsetType = UNSET
    unapplied: tuple[Unapplied, ...] = ()


CLEARED = "[This result was left out, to keep the conversation short.]"
# As Anthropic's API has them: https://platform.claude.com/docs/en/build-with-claude/context-editing.
TRIGGER = Amount(100_000, "input_tokens")
KEPT_USES, KEPT_TURNS = 3, 1


def edited(messages: tuple[Message, ...], wire: ContextWire | None) -> Edited:
    """`messages` after all edits."""
    if wire is None:
        return Edited(messages=messages)
    applied: list[ClearedToolUses | ClearedThinking] = []
    unknown: list[Unapplied] = []
    for edit in wire.edits:
        match edit.type:
            case "clear_tool_uses_20250919":
                messages, done = _without_results(messages, edit)
                applied += [done] if done else []
            case "clear_thinking_20251015":
                messages, thoughts = _without_thoughts(messages, edit)
                applied += [thoughts] if thoughts else []
            case kind:
                name = f"context_management.edits.{kind}"
                unknown.append(Unapplied(name, "the client has to shorten the conversation"))
    managed = ContextManaged(tuple(applied))
    return Edited(messages=messages, managed=managed, unapplied=tuple(unknown))


def _without_results(
    messages: tuple[Message, ...], edit: EditWire
) -> tuple[tuple[Message, ...], ClearedToolUses | None]:
    names = {call.id: call.name for each in messages for call in each.tool_calls}
    results = [
        k
        for k, each in enumerate(messages)
        if each.role == "tool" and names.get(each.tool_call_id or "") not in edit.exclude_tools
    ]
    trigger = edit.trigger or TRIGGER
    reached = len(results) if trigger.type == "tool_uses" else _tokens(messages)
    old = results[: max(0, len(results) - _kept(edit, KEPT_USES))]
    if reached <= trigger.value:
        return messages, None
    cleared = (TextPart(CLEARED),)
    chosen = {k: messages[k].tool_call_id or "" for k in old if messages[k].parts != cleared}
    shorter = tuple(_shortened(messages, chosen, edit, names))
    saved = _tokens(messages) - _tokens(shorter)
    if not chosen or saved < (edit.clear_at_least.value if edit.clear_at_least else 0):
        return messages, None
    return shorter, ClearedToolUses(len(chosen), saved)


def _shortened(
    messages: Sequence[Message],
    chosen: Mapping[int, str],
    edit: EditWire,
    names: Mapping[str, str],
) -> Iterator[Message]:
    """`messages` without the results at `chosen`, and without the input of their calls where the
    edit says so.
    """
    inputs = edit.clear_tool_inputs
    ids = {
        call_id
        for call_id in chosen.values()
        if inputs is True or (isinstance(inputs, list) and names.get(call_id) in inputs)
    }
    for k, message in enumerate(messages):
        if k in chosen:
            yield replace(message, parts=(TextPart(CLEARED),))
        elif any(call.id in ids for call in message.tool_calls):
            calls = [
                replace(call, arguments="{}") if call.id in ids else call
                for call in message.tool_calls
            ]
            yield replace(message, tool_calls=tuple(calls))
        else:
            yield message


def _without_thoughts(
    messages: tuple[Message, ...], edit: EditWire
) -> tuple[tuple[Message, ...], ClearedThinking | None]:
    turns = [k for k, each in enumerate(messages) if each.reasoning]
    old = set(turns[: max(0, len(turns) - _kept(edit, KEPT_TURNS))])
    if not old:
        return messages, None
    shorter = tuple(
        replace(each, reasoning=None) if k in old else each for k, each in enumerate(messages)
    )
    return shorter, ClearedThinking(len(old), _tokens(messages) - _tokens(shorter))


def _kept(edit: EditWire, otherwise: int) -> int:
    match edit.keep:
        case Amount(value=value):
            return value
        case "all":
            return 1 << 30
        case _:
            return otherwise


def _tokens(messages: Iterable[Message]) -> int:
    return sum(map(_length, messages)) // CHARACTERS


def _length(message: Message) -> int:
    texts = sum(len(part.text) for part in message.parts if isinstance(part, TextPart))
    return texts + len(message.reasoning or "") + sum(len(c.arguments) for c in message.tool_calls)
