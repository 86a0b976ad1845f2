"""Regexes of JSON schemas, in linear time: by llguidance's engine, which is the one that the
grammar has them from. Python's `re` would take exponential time for some, and hold all threads.

They are ECMA-262's, searched for anywhere in a text. The engine has no lookarounds, so lookaheads
at the beginning are read apart: there they are further patterns for the same text.
"""

from collections.abc import Iterator

import msgspec
from llguidance import LLMatcher

from backends.constraints.limits import parser_limits
from gateway.constraints.grammars import brief, byte_tokenizer, grammar_text


class UnusablePattern(Exception):
    """The engine doesn't have such a regex, or gave up on it."""


class Pattern:
    """A regex, or a format that the engine knows, ready to be searched for."""

    def __init__(self, pattern: str, format: str = "") -> None:
        wanted = {"format": format} if format else {"pattern": pattern}
        text = grammar_text(({"json_schema": {"type": "string", **wanted}},))
        self._matcher = LLMatcher(byte_tokenizer(), text, log_level=0, limits=parser_limits())
        if self._matcher.is_error():
            raise UnusablePattern(f"the pattern {pattern!r:.200} can't be used: {self._why()}")

    def found_in(self, text: str) -> bool:
        """Raises Unusable where the engine gives up."""
        self._matcher.reset()
        written = list(_quoted(text))
        taken = self._matcher.try_consume_tokens(written)
        if self._matcher.is_error():
            raise UnusablePattern(f"a pattern takes too long: {self._why()}")
        return taken == len(written) and self._matcher.is_accepting()

    def _why(self) -> str:
        return brief(self._matcher.get_error())


def lookaheads(pattern: str) -> list[tuple[bool, str]]:
    """The patterns of which a text must have each (True) or must not (False), which together say
    the same as `pattern`; empty where it has no lookaheads at its beginning.
    """
    if not pattern.startswith(("^(?=", "^(?!")):
        return []
    at, parts = 1, []
    while pattern.startswith(("(?=", "(?!"), at):
        end = _closing(pattern, at)
        if end is None:
            return []
        parts.append((pattern[at + 2] == "=", f"^(?:{pattern[at + 3 : end]})"))
        at = end + 1
    if any(depth == 0 and character == "|" for depth, character, _ in _outside(pattern, at)):
        return []
    return [*parts, (True, f"^{pattern[at:]}")]


def _closing(pattern: str, start: int) -> int | None:
    """Where the parenthesis that opens at `start` closes."""
    outside = _outside(pattern, start)
    return next((at for depth, character, at in outside if depth == 0 and character == ")"), None)


def _outside(pattern: str, start: int) -> Iterator[tuple[int, str, int]]:
    """Each character from `start` on that is no escape and in no class, with the depth of groups
    after it and its place.
    """
    depth, in_class, at = 0, False, start
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 2
            continue
        if in_class:
            in_class = character != "]"
        else:
            in_class = character == "["
            depth += (character == "(") - (character == ")")
            yield depth, character, at
        at += 1


def _quoted(text: str) -> bytes:
    """As JSON, with as few escapes as it allows."""
    quoted = msgspec.json.encode(text)
    return quoted.replace(b"\x7f", b"\\u007f")
