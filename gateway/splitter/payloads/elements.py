"""Calls as elements, one a parameter: Qwen3-Coder, MiniMax-M2, DSML, Kimi K3, others.

An element's value is everything up to its own close tag, as a JSON value of the right type. A close
tag counts only where structure follows it or the output ends; elsewhere it is part of the value. A
value of type string streams as it arrives; of any other type it has to be whole before it can be
JSON.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from itertools import chain
from typing import Any

import msgspec

from gateway.constraints.lark import Lark, literal, one_of, pattern_of
from gateway.constraints.schemas import Alternative, EnumValue, Field, json_type
from gateway.constraints.values import Unwritable
from gateway.splitter.payloads import coercion, json_text, raw
from gateway.splitter.payloads.arguments import ArgumentsWriter
from gateway.splitter.payloads.calls import Calls
from gateway.splitter.payloads.coercion import Declared
from gateway.splitter.payloads.raw import Frame
from gateway.splitter.payloads.reading import Malformed, Markers, Parsing, Reader, markers_of
from gateway.splitter.payloads.syntax import ElementCalls
from gateway.splitter.payloads.writing import (
    CallLark,
    Unmarked,
    WritableTool,
    parameters,
)

_CDATA = ("<![CDATA[", "]]>")


def copy_element(
    reader: Reader, writer: ArgumentsWriter, frame: Frame, convert: Callable[[str], str] | None
) -> Parsing[None]:
    """Copies a value; `convert` makes JSON of its whole text, None streams it as a string.

    Raises Malformed if the output ends inside the value.
    """
    markers = yield from _markers(reader, frame)
    if convert is None or (
        convert is coercion.untyped and (yield from reader.peek()) not in ("{", "[")
    ):
        writer.begin_string()
        yield from copy_text(
            reader, frame, lambda text: writer.string(json_text.escaped(text)), markers
        )
        writer.end_string()
    else:
        text = StringIO()
        yield from copy_text(reader, frame, text.write, markers)
        writer.scalar(convert(text.getvalue()))


def converter(declared: Declared) -> Callable[[str], str] | None:
    """The conversion to what is declared; None for what is a string whatever it holds."""
    types = declared.types
    if declared.is_untyped:
        return coercion.untyped
    return None if types == coercion.STRING else lambda text: coercion.coerce(text, types)


def _markers(reader: Reader, frame: Frame) -> Parsing[Markers]:
    """What ends the value, after what begins it."""
    closes = frame.closers
    if frame.before and (yield from reader.accept((frame.before,))):
        return markers_of(*(frame.after + gap + close for close in closes for gap in ("", "\n")))
    if not frame.newlines:
        return markers_of(*closes)
    yield from reader.accept(("\n",))
    return markers_of(*closes, *("\n" + close for close in closes))


def copy_text(
    reader: Reader,
    frame: Frame,
    sink: Callable[[str], object],
    markers: Markers | None = None,
) -> Parsing[None]:
    """Hands a value's text to `sink`, up to the first of `markers`, else of its closers, that ends
    it.
    """
    markers = markers or markers_of(*frame.closers)
    while close := (yield from reader.until(markers, sink)):
        space = yield from reader.space()
        if (yield from reader.looking_at(frame.followers)) or reader.ends_inside(frame.followers):
            return
        markup = frame.newlines and (yield from reader.looking_at(frame.closers))
        sink(close + (space.removesuffix("\n") if markup else space))
    raise reader.fault("a value is not closed")


_HEAD = re.compile(r"[^<>\n]*")
_KNOWN = ("type", "string", "index", "id")  # attributes that say nothing of a call's content
# Only where a word begins, and nothing is given back: each character is read once or twice.
_ATTRIBUTE = re.compile(r"""(?<![\w-])([\w-]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"']++))""")


def read_call(reader: Reader, calls: Calls, syntax: ElementCalls) -> Parsing[None]:
    """Reads one call, after the text that opens it."""
    name, _, _ = yield from _head(reader, calls, syntax)
    writer: ArgumentsWriter | None = None
    while True:
        yield from reader.space()
        if opener := (yield from reader.accept(syntax.parameter_opens)):
            key, said, text = yield from _head(reader, calls, syntax)
            if writer is None:
                writer = calls.open(name)
                writer.open("{")
                reader.keep(opener + text)
            writer.key(json_text.escaped(key))
            convert = _conversion(syntax, calls.declared(name).property(key), said)
            yield from copy_element(reader, writer, frame_of(syntax), convert)
        elif (yield from _ends(reader, syntax, whole=writer is not None or calls.knows(name))):
            break
        else:
            raise reader.fault("neither a parameter nor the end of the call")
    if writer is None:
        calls.open(name)
    calls.close()
    yield from reader.space()
    yield from reader.accept_close(syntax.after_call)


def _head(
    reader: Reader, calls: Calls, syntax: ElementCalls
) -> Parsing[tuple[str, Mapping[str, str], str]]:
    """The rest of an opening tag: the element's name, all that the tag says, its text."""
    text = yield from reader.run(_HEAD)
    end = yield from reader.expect(*syntax.head_ends)
    said = attributes(calls, text, syntax.name_attributes)
    named = [said[each] for each in syntax.name_attributes if each in said]
    if said and not named:
        raise Malformed("an element without a name")
    name = named[0] if named else text.strip().strip("\"'")
    return name.strip(), said, text + end


def _ends(reader: Reader, syntax: ElementCalls, *, whole: bool) -> Parsing[bool]:
    """The call ends here; or its own end is missing, but everything in it is `whole`."""
    if not whole:
        return bool((yield from reader.accept(syntax.call_closes)))
    if (yield from reader.accept_close(syntax.call_closes)):
        return True
    outer = (*syntax.closers, *syntax.call_opens, *syntax.after_call)
    return bool((yield from reader.looking_at(outer)))


def _conversion(
    syntax: ElementCalls, declared: Declared, said: Mapping[str, str]
) -> Callable[[str], str] | None:
    match syntax.typing:
        case "schema":
            return converter(declared)
        case "string":
            return None if said.get("string") == "true" else coercion.guess
        case _:
            return converter(Declared({"type": said.get("type", "string")}))


def attributes(calls: Calls, head: str, names: tuple[str, ...]) -> dict[str, str]:
    """What an opening tag says: `name="N"`, quoted in either way or not at all.

    What is none of these `names`, nor otherwise known, is left out of the call.
    """
    found = {
        match[1]: match[2] or match[3] or match[4] or "" for match in _ATTRIBUTE.finditer(head)
    }
    left_out = [name for name in found if name not in names and name not in _KNOWN]
    left_out.append(_ATTRIBUTE.sub("", head).strip(" \t\n/"))
    if found and any(left_out):
        calls.remark = f"a tag of a tool call had {' '.join(left_out)[:60]!r}, which is left out"
    return found


def frame_of(syntax: ElementCalls) -> Frame:
    """A parameter ends before another, or before anything that ends the call."""
    followers = (*syntax.parameter_opens, *syntax.call_closes, *syntax.closers, *syntax.call_opens)
    around = _CDATA if syntax.cdata else ("", "")
    return Frame(syntax.parameter_closes, followers, *around, newlines=syntax.trims_newline)


_KEY = re.compile(r"[\w.:/$@-]+")


def unmarked(lark: CallLark, syntax: ElementCalls) -> Unmarked:
    """An answer that is a call itself, which the last of `call_opens` begins."""
    begun, ends = syntax.call_opens[-1], "|".join(map(pattern_of, syntax.head_ends))
    one = lark.rule(one_of(written_call(lark, syntax, tool) for tool in lark.plain_tools))
    call = lark.rule(f"{literal(begun)} {one}")
    return Unmarked(call, rf"{pattern_of(begun)}[^<>\n]*({ends})")


def written_call(lark: Lark, syntax: ElementCalls, tool: WritableTool) -> str:
    """One call after the text that opens it."""
    write = partial(_written_parameter, lark, syntax, tool)
    given = parameters(lark, tool, write, syntax.parameter_opens, syntax.call_closes)
    head = _written_head(syntax.call_opens[0], tool.name, syntax.name_attributes[0])
    if syntax.typing == "type":
        head += " " + lark.regex(r" index=\x22[0-9]{1,4}\x22") + "?"
    return f"{head} {lark.any_of(syntax.head_ends)} {given} {lark.then(syntax.after_call)}"


def _written_head(opener: str, name: str, attribute: str) -> str:
    """The name of a call or parameter, in the way its opener asks for."""
    if opener.endswith("name="):
        return literal(f'"{name}"')
    return literal(name) if opener.endswith("=") else literal(f' {attribute}="{name}"')


def _written_parameter(
    lark: Lark, syntax: ElementCalls, tool: WritableTool, field: Field, following: Sequence[str]
) -> str:
    """A parameter after its opener, and one of `following`."""
    if not _KEY.fullmatch(field.key):
        raise Unwritable(f"{tool.name}: the parameter {field.key[:60]!r} can't be written in a tag")
    head = _written_head(syntax.parameter_opens[0], field.key, syntax.name_attributes[-1])
    end = lark.any_of(syntax.head_ends)
    types = tool.declared.property(field.key).types
    frame = msgspec.structs.replace(frame_of(syntax), then=tuple(following))
    if syntax.typing == "schema":
        value = raw.by_schema(lark, tool.reading, field.schema, types, frame)
        return f"{head} {end} {value}"
    ways = []  # to write a value that says its type itself: the attribute, and the text
    for kind, schema in chain.from_iterable(map(_kinds, tool.reading.alternatives(field.schema))):
        if kind == "string":
            value = raw.by_schema(lark, tool.reading, schema, coercion.STRING, frame)
        else:
            value = raw.json_value(lark, tool.reading, schema, frame)
        says = kind if syntax.typing == "type" else str(kind == "string").lower()
        attribute = f' {syntax.typing}="{says}"'
        ways.append(f"{literal(attribute)} {end} {value}")
    return f"{head} {lark.rule(one_of(ways))}"


def _kinds(each: Alternative) -> list[tuple[str, Any]]:
    """An alternative by its types, as these syntaxes name them."""
    if isinstance(each, EnumValue):
        return [(json_type(value), {"enum": [value]}) for value in each.values]
    return [("number" if each.kind == "integer" else each.kind, each.schema)]
