"""Hugging Face's `response_template`, read as far as there is a parser for what it says.

A response template is JSON: `fields` by name, each with an `open` and a `close` text (or a regular
expression under `open_pattern`, `close_pattern`) and the syntax of its `content`
(transformers.utils.chat_parsing, version 1). The older `response_schema` is JSON with regular
expressions; of it only the texts are used.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.splitter.payloads.json_text import loaded
from gateway.splitter.reading import LONGEST
from gateway.splitter.syntax import Format, JsonCalls, ReasoningMarkers, Syntax

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
MOST = 100  # texts of one anchor
_PATTERN_SIGNS = re.compile(r"[\\^$*+?{}|()\[\].]")


def declared_texts(response_template: str) -> str:
    """All texts of a response template without regular expressions' escapes; "" if not JSON."""
    return "\n".join(text.replace("\\", "") for text in _texts(_decoded(response_template)))


def declared_format(response_template: str) -> Format | None:
    """A format made of what is declared; None if nothing of it can be used."""
    fields = _mapping(_mapping(_decoded(response_template)).get("fields"))
    reasoning = next(
        (found for name in _REASONING_FIELDS if (found := _reasoning(fields.get(name)))), None
    )
    calls = _calls(fields.get("tool_calls"))
    if reasoning is None and calls is None:
        return None
    syntaxes: tuple[Syntax, ...] = () if calls is None else (calls,)
    return Format(
        id="declared", families=(), reasoning=reasoning, syntaxes=syntaxes, special_tokens=True
    )


def _reasoning(field: Any) -> ReasoningMarkers | None:
    opens, closes = _anchor(field, "open"), _anchor(field, "close")
    return ReasoningMarkers(opens, closes) if opens and closes else None


def _calls(field: Any) -> JsonCalls | None:
    """Calls as plain JSON objects; in other contents only the declared patterns find the name."""
    opens = _anchor(field, "open")
    if not opens or _mapping(field).get("content") != "json" or "content_args" in _mapping(field):
        return None
    return JsonCalls(openers=opens, closers=_anchor(field, "close"))


def _anchor(field: Any, side: str) -> tuple[str, ...]:
    """The texts of an anchor; a pattern counts where it is a text with white space around it."""
    match _mapping(field).get(side, _mapping(field).get(f"{side}_pattern")):
        case str(text) if side in field:
            return _marker(text)
        case str(pattern):
            bare = re.sub(r"\\s[*+]", "", pattern)
            text = re.sub(r"\\(.)", r"\1", bare)
            return () if _PATTERN_SIGNS.search(re.sub(r"\\.", "", bare)) else _marker(text)
        case list(texts):
            return tuple(
                marker for text in texts[:MOST] if isinstance(text, str) for marker in _marker(text)
            )
        case _:
            return ()


def _marker(text: str) -> tuple[str, ...]:
    """The text as a marker; none where it is empty or too long to be one."""
    return (stripped,) if 0 < len(stripped := text.strip()) <= LONGEST else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _decoded(response_template: str) -> Any:
    try:
        return loaded(response_template)
    except ValueError:
        return None


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for inner in value.values():
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
        case _:
            pass
