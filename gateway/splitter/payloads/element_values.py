"""The value of an element: everything up to its own close tag, as a JSON value of the right type.

A close tag counts only where structure follows it or the output ends; elsewhere it is part of the
value. A value of type string streams as it arrives; of any other type it has to be whole before it
can be JSON.
"""

from collections.abc import Callable
from io import StringIO
from typing import Any

import msgspec

from gateway.splitter import coercion
from gateway.splitter.arguments import ArgumentsWriter
from gateway.splitter.grammar import raw
from gateway.splitter.grammar.lark import Lark
from gateway.splitter.grammar.raw import Frame
from gateway.splitter.grammar.schemas import SchemaReader
from gateway.splitter.payloads import json_text
from gateway.splitter.reading import Markers, Parsing, Reader, markers_of

_CDATA_OPEN, _CDATA_CLOSE = "<![CDATA[", "]]>"


class Border(msgspec.Struct, frozen=True):
    """How values of a syntax end: by one of `closes`, before one of `followers`."""

    closes: tuple[str, ...]
    followers: tuple[str, ...]
    trims_newline: bool = False
    cdata: bool = False


def copy_value(
    reader: Reader, writer: ArgumentsWriter, border: Border, convert: Callable[[str], str] | None
) -> Parsing[None]:
    """Copies a value; `convert` makes JSON of its whole text, None streams it as a string.

    Raises Malformed if the output ends inside the value.
    """
    if convert is None:
        writer.begin_string()
        markers = yield from _markers(reader, border)
        yield from _text(
            reader, markers, border, lambda text: writer.string(json_text.escaped(text))
        )
        writer.end_string()
    else:
        markers = yield from _markers(reader, border)
        text = StringIO()
        yield from _text(reader, markers, border, text.write)
        writer.scalar(convert(text.getvalue()))


def converter(types: frozenset[str]) -> Callable[[str], str] | None:
    """The conversion to one of the types; None for what is a string whatever it holds."""
    return None if types == coercion.STRING else lambda text: coercion.coerce(text, types)


def _markers(reader: Reader, border: Border) -> Parsing[Markers]:
    """What ends the value, after what begins it."""
    closes = border.closes
    if border.cdata and (yield from reader.accept((_CDATA_OPEN,))):
        return markers_of(*(_CDATA_CLOSE + gap + close for close in closes for gap in ("", "\n")))
    if not border.trims_newline:
        return markers_of(*closes)
    yield from reader.accept(("\n",))
    return markers_of(*closes, *("\n" + close for close in closes))


def _text(
    reader: Reader, markers: Markers, border: Border, sink: Callable[[str], object]
) -> Parsing[None]:
    """Hands the value's text to `sink`."""
    while close := (yield from reader.until(markers, sink)):
        space = yield from reader.space()
        if (yield from reader.looking_at(border.followers)) or reader.ends_inside(border.followers):
            return
        sink(close + space)
    raise reader.fault("a value is not closed")


# ---------------------------------------------------------------------------------------- writing


def written(
    lark: Lark, reading: SchemaReader, schema: Any, types: frozenset[str], border: Border
) -> str:
    """A value as an expression, with what closes it."""
    plain = Frame(border.closes, newlines=border.trims_newline)
    if border.cdata:
        framed = Frame(border.closes, _CDATA_OPEN, _CDATA_CLOSE)
        return lark.rule(raw.by_schema(lark, reading, schema, types, framed))
    return lark.rule(raw.by_schema(lark, reading, schema, types, plain))
