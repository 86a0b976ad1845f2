"""Calls as a name and pairs of key and value elements: GLM and Hunyuan 3."""

import re
from collections.abc import Sequence
from functools import partial
from io import StringIO

import msgspec

from gateway.constraints.lark import Lark, literal
from gateway.constraints.schemas import Field
from gateway.constraints.values import Unwritable
from gateway.splitter.payloads import json_text
from gateway.splitter.payloads.calls import Calls
from gateway.splitter.payloads.coercion import coerce
from gateway.splitter.payloads.elements import converter, copy_element
from gateway.splitter.payloads.named_json import NAME
from gateway.splitter.payloads.raw import Frame, by_schema
from gateway.splitter.payloads.reading import Parsing, Reader, markers_of
from gateway.splitter.payloads.syntax import KeyValueCalls
from gateway.splitter.payloads.writing import WritableTool, parameters

_KEY = re.compile(r"[^<]*")


def read_call(reader: Reader, calls: Calls, syntax: KeyValueCalls) -> Parsing[None]:
    """Reads one call."""
    name = yield from reader.spaced(reader.run(NAME))
    yield from reader.accept(syntax.name_ends)
    yield from reader.space()
    if not syntax.key_opens:
        yield from _lines(reader, calls, syntax, name)
    elif (yield from reader.accept(syntax.key_opens)):
        yield from _pairs(reader, calls, syntax, name)
    elif not calls.knows(name) or not (yield from _ends(reader, syntax)):
        raise reader.fault(f"{name[:60]!r} is followed by no argument and no end")
    else:
        calls.open(name)
    calls.close()
    yield from reader.accept_close(syntax.call_closes)


def _ends(reader: Reader, syntax: KeyValueCalls) -> Parsing[bool]:
    """The call ends here; or its own end is missing or cut."""
    ends = (*syntax.call_closes, *syntax.closers, *syntax.call_opens)
    return bool((yield from reader.looking_at(ends))) or reader.ends_inside(syntax.call_closes)


def _pairs(reader: Reader, calls: Calls, syntax: KeyValueCalls, name: str) -> Parsing[None]:
    """The arguments, read after the first key's opening tag, up to what is no pair."""
    frame = _frame(syntax)
    writer = calls.open(name)
    writer.open("{")
    while True:
        key = (yield from reader.run(_KEY)).strip()
        yield from reader.expect(*syntax.key_closes)
        yield from reader.space()
        yield from reader.expect(*syntax.value_opens)
        convert = converter(calls.declared(name).property(key))
        writer.key(json_text.escaped(key))
        yield from copy_element(reader, writer, frame, convert)
        yield from reader.space()
        if not (yield from reader.accept(syntax.key_opens)):
            return


def _lines(reader: Reader, calls: Calls, syntax: KeyValueCalls, name: str) -> Parsing[None]:
    """The arguments, up to the end of the call: only then it is known which line is the last."""
    text = StringIO()
    if not (yield from reader.until(markers_of(*syntax.call_closes), text.write)):
        raise reader.fault("a call is not closed")
    writer = calls.open(name)
    writer.open("{")
    for line in text.getvalue().split("\n"):
        key, separator, value = map(str.strip, line.partition(syntax.key_closes[0]))
        if separator:
            writer.key(json_text.escaped(key))
            writer.scalar(coerce(value, calls.declared(name).property(key).types))


def _frame(syntax: KeyValueCalls) -> Frame:
    """A value ends before a key, or before anything that ends the call."""
    followers = (*syntax.key_opens, *syntax.call_closes, *syntax.closers, *syntax.call_opens)
    return Frame(syntax.value_closes, followers)


def written_call(lark: Lark, syntax: KeyValueCalls, tool: WritableTool) -> str:
    """One call after the text that opens it."""
    if not syntax.key_opens:
        raise Unwritable(f"{tool.name}: no grammar writes arguments as lines")
    write = partial(_written_pair, lark, syntax, tool)
    pairs = parameters(lark, tool, write, syntax.key_opens, syntax.call_closes)
    return f"{lark.gap} {literal(tool.name)} {lark.then(syntax.name_ends)} {pairs}"


def _written_pair(
    lark: Lark, syntax: KeyValueCalls, tool: WritableTool, field: Field, following: Sequence[str]
) -> str:
    """A pair after its opener, and one of `following`."""
    if "<" in field.key or field.key != field.key.strip():
        raise Unwritable(f"{tool.name}: the parameter {field.key[:60]!r} can't be written as a key")
    types = tool.declared.property(field.key).types
    frame = msgspec.structs.replace(_frame(syntax), then=tuple(following))
    value = by_schema(lark, tool.reading, field.schema, types, frame)
    key = f"{literal(field.key)} {lark.any_of(syntax.key_closes)}"
    return f"{key} {lark.gap} {lark.any_of(syntax.value_opens)} {value}"
