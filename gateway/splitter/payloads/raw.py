"""Values as bare text: strings as they are up to a closer, everything else as JSON."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.constraints.lark import GAP, SPACE, Lark, literal, one_of, pattern_of, sequence
from gateway.constraints.lark_reading import ReadGrammar
from gateway.constraints.reading import LENGTHS
from gateway.constraints.schemas import (
    Alternative,
    EnumValue,
    ScalarValue,
    SchemaReader,
    StringValue,
)
from gateway.constraints.values import Unwritable, Values
from gateway.splitter.payloads.coercion import STRING, coerce
from gateway.splitter.payloads.free_text import until
from gateway.splitter.payloads.spelled import Bare, spelled
from gateway.splitter.payloads.writing import ArgumentsJson

# With this at its end a complement is known to fail where its text has come: no states are tried.
ANYTHING = "~(/a/ & /b/)"
_SIGNS = {"array": "[", "object": "{"}  # what a text begins with that may be one; else a number's
_BOOLEANS = ('"true"', '"false"', '"True"', '"False"')


class Frame(msgspec.Struct, frozen=True):
    """What stands around a value: one of `closers` after it, which is one where `followers` come
    next. It may be framed by `before` and `after`, or (`newlines`) by one newline at each side,
    which are no part of it. `then`: one of these is written behind it.
    """

    closers: tuple[str, ...]
    followers: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    newlines: bool = False
    then: tuple[str, ...] = ()

    def around(self) -> Sequence[tuple[str, str]]:
        """What may stand before and after a value that is not free text."""
        framed = [(self.before, self.after)] if self.before else []
        return (*framed, *([("\n", "\n")] if self.newlines else []), ("", ""))

    def close(self, lark: Lark) -> str:
        """An expression: a closer, and what is written behind it."""
        return f"{lark.any_of(self.closers)} {lark.then(self.then)}"


def text(lark: Lark, found: StringValue, frame: Frame) -> str:
    """An expression: a string in its frame, of which a lexer counts no more than `LENGTHS`."""
    if max(found.shortest, found.longest or 0) > LENGTHS:
        found = msgspec.structs.replace(found, shortest=0, longest=None)
    if found.grammar is not None:
        return _ruled(lark, found.grammar, frame)
    if found.free:
        plain = f"{until(lark, frame.closers, frame.followers)} {lark.then(frame.then)}"
        if not frame.before:
            return plain
        ends = [frame.after + closer for closer in frame.closers]
        framed = f"{until(lark, ends, frame.followers)} {lark.then(frame.then)}"
        first = lark.regex(f"[^{pattern_of(frame.before[0])}]")
        return one_of((f"{literal(frame.before)} {framed}", f"{first} {plain}", frame.close(lark)))
    return one_of(
        _bounded(lark, found, frame, before, after, closer)
        for before, after in frame.around()
        for closer in frame.closers
    )


def _ruled(lark: Lark, grammar: ReadGrammar, frame: Frame) -> str:
    """A text by a client's grammar. Where a newline at each side is markup, both stand there: the
    text may begin and end with others.
    """
    around = literal("\n") if frame.newlines else ""
    whole = spelled(lark, grammar, Bare(lark, frame.closers))
    plain = f"{around} {whole} {around} {frame.close(lark)}"
    if not frame.before:
        return plain
    ends = [frame.after + closer for closer in frame.closers]
    framed = spelled(lark, grammar, Bare(lark, ends))
    end = f"{lark.any_of(ends)} {lark.then(frame.then)}"
    return one_of((plain, f"{literal(frame.before)} {framed} {end}"))


def _bounded(
    lark: Lark, found: StringValue, frame: Frame, before: str, after: str, closer: str
) -> str:
    """A string under conditions, with its frame, up to one of its closers.

    It is one lexeme with the text around it, because a lexeme can't be empty, and with what follows
    the closer, because a lexer never goes back: it has read all of that when it knows that a closer
    is one. Where what follows is no text at all, or the lexer sees no end of it, the string holds
    no closer.
    """
    most = "" if found.longest is None else found.longest
    head = lark.pieces(closer)[0]
    begun = after + (head if isinstance(head, str) else "")
    rest = closer[len(head) :] if isinstance(head, str) else closer
    # A closer with a control token in it can't be spelled by text.
    textual, followers, eaten = (
        [pattern_of(one) for one in texts if lark.pieces(one) == [one]]
        for texts in (frame.closers, frame.followers, frame.then)
    )
    eats = bool(eaten) and len(eaten) == len(frame.then) and not rest
    ends = eats or (not frame.then and bool(followers) and max(map(len, frame.followers)) == 1)
    held = f"({'|'.join(textual)})" + (rf"{SPACE}*({'|'.join(followers)})" if ends else "")
    conditions = [
        rf"/(?s:.){{{found.shortest},{most}}}/",
        *([f"/{found.pattern}/"] if found.pattern else []),
        *([f"~(/(?s:.*){held}/ {ANYTHING})"] if textual else []),
    ]
    end = f"/({GAP})?({'|'.join(eaten)})/" if eats else ""
    parts = [literal(part) if part else "" for part in (before, begun)]
    lexeme = lark.terminal(sequence((parts[0], f"({' & '.join(conditions)})", parts[1], end)))
    nothing = "?" if not before + begun and not found.shortest and not found.pattern else ""
    following = "" if eats else lark.then(frame.then)
    return f"{lexeme}{nothing} {lark.text(rest) if rest else ''} {following}"


def listed(lark: Lark, values: Sequence[Any], types: frozenset[str], frame: Frame) -> str:
    """An expression: one of some values as text, in its frame. "" where none can be read back."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    readable = [
        written
        for written, value in zip(texts, values, strict=True)
        if json.loads(coerce(written, types)) == value
        and not any(closer in written for closer in frame.closers)
    ]
    framed = (
        f"{literal(before + written + after)} {frame.close(lark)}"
        for before, after in frame.around()
        for written in readable
    )
    return one_of(framed) if readable else ""


def by_schema(
    lark: Lark, reading: SchemaReader, schema: Any, types: frozenset[str], frame: Frame
) -> str:
    """An expression: a value that is read back by `types`, those that its schema declares."""
    found = reading.alternatives(schema)
    if types == {"boolean"} and all(isinstance(each, ScalarValue) for each in found):
        return _framed(lark, one_of(_BOOLEANS), frame)  # as JSON has them, and Python
    if "string" not in types:
        return json_value(lark, reading, schema, frame)
    texts = [each for each in found if isinstance(each, StringValue)]
    values = [value for each in found if isinstance(each, EnumValue) for value in each.values]
    options = [listed(lark, values, types, frame)] if values else []
    if types == STRING:
        options += [text(lark, each, frame) for each in texts]
    elif texts:
        options += _mixed(lark, reading, found, frame)
    if not any(options):
        raise Unwritable(f"no value of {json.dumps(schema)[:60]} can be written as text")
    return one_of(filter(None, options))


def _mixed(
    lark: Lark, reading: SchemaReader, found: Sequence[Alternative], frame: Frame
) -> list[str]:
    """Strings beside other types: text that could be taken for another type is JSON of it.

    Text that may be a number, a boolean or null is one, so that it needs no further check unless
    the schema bounds it.
    """
    others = [
        each for each in found if not isinstance(each, StringValue | EnumValue) and _bounds(each)
    ]
    closers = frame.closers
    if not others:
        return [text(lark, StringValue(), frame)]
    heads = (lark.pieces(closer)[0] for closer in closers)
    signs = {sign for each in others for sign in _SIGNS.get(each.kind, "0123456789+-.")}
    signs |= {head[0] for head in heads if isinstance(head, str)}
    unlike = pattern_of("".join(sorted(signs)))
    first = lark.regex(rf"[\s\x1c-\x1f]*[^\s\x1c-\x1f{unlike}]")
    json_values = (json_value(lark, reading, each.schema, frame) for each in others)
    rest = f"{until(lark, closers, frame.followers)} {lark.then(frame.then)}"
    return [f"{first} {rest}", frame.close(lark), *json_values]


def _bounds(each: Alternative) -> bool:
    """Not every text of its type is one."""
    return not isinstance(each, ScalarValue) or len(each.schema) > 1


def json_value(lark: Lark, reading: SchemaReader, schema: Any, frame: Frame) -> str:
    """An expression: JSON of a schema, in its frame."""
    return _framed(lark, _json(lark, reading, schema, frame), frame)


def _framed(lark: Lark, value: str, frame: Frame) -> str:
    """A value around which white space means nothing."""
    plain = f"{lark.gap} {value} {lark.gap}"
    framed = f"{literal(frame.before)} {plain} {literal(frame.after)}" if frame.before else plain
    return f"{one_of((plain, framed))} {frame.close(lark)}"


def _json(lark: Lark, reading: SchemaReader, schema: Any, frame: Frame) -> str:
    """JSON in which no string holds a closer that would be one."""
    spelled = [closer for closer in frame.closers if lark.pieces(closer) == [closer]]
    ends, then = ("|".join(map(pattern_of, texts)) for texts in (spelled, frame.followers))
    unlike = f"({ends}) *({then})" if ends else ""
    return Values(lark, ArgumentsJson(lark, unlike), reading).of(schema)
