"""The place where a conversation's prompts part from one turn to the next, and what parts them:
what is before is found in the cache, what is behind is computed again.

An agent sends its whole conversation each turn. A prompt that goes on from the one before is cheap;
one that differs near its beginning is not, and its user sees only that it is slow. Pure: outlines
of two turns in, what parted them out. Texts are kept as hashes, which hold in this process alone.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from backends.contract.beginnings import common_length
from backends.contract.conversation import Message, Tool

What: TypeAlias = Literal["tools", "system", "message", "template"]

# Tokens at a prompt's end that open the model's turn: there its answer stands the next time.
OPENING = 16
MOST_NAMES = 8  # of tools, in a sentence
LONGEST_NAME = 64  # characters, likewise
# A line of a system prompt that says what time it is.
TIME = re.compile(
    r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2}:\d\d(?::\d\d)?\b|\b(?:date|time|today|timestamp)\b",
    re.IGNORECASE,
)


class Outline(msgspec.Struct, frozen=True):
    """What stands in a prompt, in this order to nearly all templates. `tools`: names and hashes;
    `system`: a hash a line; `messages`: a hash each, without those of the system at the beginning.
    """

    tools: tuple[tuple[str, int], ...]
    system: tuple[int, ...]
    messages: tuple[int, ...]


class Turn(msgspec.Struct, frozen=True):
    """One turn of a conversation, for others to be compared with. `tokens`: its prompt's."""

    outline: Outline
    tokens: "array[int]"


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """Two prompts have `at` tokens in common, of `of` that the earlier one had."""

    at: int
    of: int
    what: What
    detail: str

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.detail} at token {self.at:,} of {self.of:,}"


def outline(messages: Sequence[Message], tools: Sequence[Tool]) -> Outline:
    """Of a request. Linear in its texts, about a millisecond for two megabytes."""
    first = next((k for k, each in enumerate(messages) if each.role != "system"), len(messages))
    lines = (line for each in messages[:first] for line in each.text.splitlines())
    return Outline(
        tools=tuple((tool.name, _tool(tool)) for tool in tools),
        system=tuple(map(hash, lines)),
        messages=tuple(map(_message, messages[first:])),
    )


def _tool(tool: Tool) -> int:
    return hash(repr((tool.description, tool.parameters, tool.input)))


def _message(message: Message) -> int:
    """Of all that a template may show."""
    calls = tuple((call.id, call.name, call.arguments) for call in message.tool_calls)
    return hash((message.role, message.parts, message.reasoning, calls, message.name))


def is_same_conversation(before: Outline, now: Outline) -> bool:
    """Whether one may go on from the other: they begin with the same messages, more than a greeting
    where there were more.
    """
    common = common_length(before.messages, now.messages)
    return common >= min(2, len(before.messages), len(now.messages))


def in_known_order(known: Sequence[tuple[str, int]], tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """`tools`, those of the turn before in their order there, further ones behind them: their order
    says nothing, and each other order is another prompt.
    """
    places = {name: place for place, (name, _) in enumerate(known)}
    return tuple(sorted(tools, key=lambda tool: places.get(tool.name, len(places))))


def parting(before: Turn, now: Turn, system: str = "") -> Parting | None:
    """What parts two turns of a conversation; None where the later prompt goes on from the earlier.
    `system`: the text of the later one's, to see whether a time is in it.
    """
    at, of = common_length(before.tokens, now.tokens), len(before.tokens)
    if at >= of - OPENING:
        return None
    what, detail = _difference(before.outline, now.outline, system)
    return Parting(at=at, of=of, what=what, detail=detail)


def _difference(before: Outline, now: Outline, system: str) -> tuple[What, str]:
    if before.tools != now.tools:
        return "tools", f"tool list changed ({', '.join(_tools(before, now))})"
    if before.system != now.system:
        line = common_length(before.system, now.system)
        lines = system.splitlines()
        says_time = line < len(lines) and TIME.search(lines[line]) is not None
        return "system", f"system prompt changed (line {line + 1}{', a time' * says_time})"
    same = common_length(before.messages, now.messages)
    if same < len(before.messages):
        return "message", f"message {same + 1} of {len(before.messages)} changed"
    return "template", "the template wrote earlier messages otherwise"


def _tools(before: Outline, now: Outline) -> Iterator[str]:
    """What became of them, in few words."""
    old, new = dict(before.tools), dict(now.tools)
    changes = [
        *(f"+{name}" for name in new if name not in old),
        *(f"-{name}" for name in old if name not in new),
        *(f"~{name}" for name in new if name in old and new[name] != old[name]),
    ]
    yield from (change[:LONGEST_NAME] for change in changes[:MOST_NAMES])
    if len(changes) > MOST_NAMES:
        yield f"{len(changes) - MOST_NAMES} more"
    if not changes:
        yield "order"
