"""Calls as a name followed by the arguments as JSON: `N[ARGS]{..}`."""

import re
from collections.abc import Mapping

import msgspec

from gateway.constraints.lark import Lark, literal, one_of
from gateway.splitter.payloads import json_calls, json_text
from gateway.splitter.payloads.calls import Calls, read_section
from gateway.splitter.payloads.reading import Parsing, Reader
from gateway.splitter.payloads.syntax import NamedJsonCalls
from gateway.splitter.payloads.writing import SPACES, CallLark, CallSection, WritableTool

NAME = re.compile(r"[\w.:/-]*")
_ARRAY = ("[{", "[]", "[ ", "[\n", "[\r", "[\t")  # not the "[" of another marker
_NUMBERED = re.compile(r"(?:functions\.)?(.+?)(:\d++)?")


def parse(reader: Reader, calls: Calls, syntax: NamedJsonCalls, opener: str) -> Parsing[None]:
    """Reads a section of calls, or the one that `opener` begins."""
    if syntax.or_array is not None:
        yield from reader.space()
        if (yield from reader.looking_at(_ARRAY)):
            yield from json_calls.parse(reader, calls, syntax.or_array)
            return
    yield from read_section(reader, calls, syntax, opener, _call)


def _call(reader: Reader, calls: Calls, syntax: NamedJsonCalls) -> Parsing[None]:
    name, call_id = yield from _head(reader, syntax)
    yield from reader.spaced(reader.accept(syntax.fences))
    yield from arguments(reader, calls, name, call_id, syntax.call_closes)
    yield from reader.spaced(reader.accept_close(("```",) if syntax.fences else ()))
    yield from reader.accept_close(syntax.call_closes)


def _head(reader: Reader, syntax: NamedJsonCalls) -> Parsing[tuple[str, str]]:
    """Name and id; the id is "" where the model gives none."""
    call_id = ""
    yield from reader.space()
    yield from reader.accept(syntax.name_prefixes)
    if syntax.id_end:
        call_id = yield from reader.run(NAME)
        yield from reader.expect(syntax.id_end)
    if not (name := (yield from reader.run(NAME))):
        # At once: openers may be short, and follow each other for ever.
        raise reader.fault("no name")
    yield from reader.space()
    if syntax.id_opens and (yield from reader.accept(syntax.id_opens)):
        call_id = yield from reader.run(NAME)
    yield from reader.accept(syntax.name_ends)
    if syntax.numbered and (found := _NUMBERED.fullmatch(name)):
        call_id = name if found[2] else ""
        name = found[1]
    return name, call_id


def arguments(
    reader: Reader, calls: Calls, name: str, call_id: str, closes: tuple[str, ...]
) -> Parsing[None]:
    """The arguments of one call, streamed. None at all before `closes` are an empty object."""
    if closes and calls.knows(name) and (yield from reader.looking_at(closes)):
        calls.open(name, call_id)
        calls.close()
        return
    yield from json_text.copy_arguments(reader, lambda: calls.open(name, call_id))
    calls.close()


_WRITTEN_ID = r"[0-9A-Za-z_.-]{1,64}"


def openings(lark: CallLark, syntax: NamedJsonCalls) -> Mapping[str, CallSection]:
    """What begins calls, and what follows it: the opener, or in prose the opener with a name."""
    if not syntax.prose:
        return {opener: written(lark, syntax, opener) for opener in syntax.openers}
    tools, space = lark.plain_tools, lark.gap
    separator = f"{space} {lark.any_of(syntax.call_opens)} {space}"
    again = lark.more(_one(lark, syntax), separator)
    return {
        f"{opener}{before}{tool.name}": CallSection(f"{space} {tool.json(lark)} {again}")
        for opener in syntax.openers
        for before in SPACES
        for tool in tools
    }


def written(lark: CallLark, syntax: NamedJsonCalls, opener: str) -> CallSection:
    """What follows an opener: calls, or an array of them where that is known too."""
    space, first = lark.gap, lark.any_of(syntax.call_opens)
    calls = lark.repeated(_one(lark, syntax), f"{space} {first} {space}")
    if opener not in syntax.call_opens:
        calls = f"{first} {space} {calls}"
    options = [f"{space} {calls}"]
    if syntax.or_array is not None:
        array = msgspec.structs.replace(syntax.or_array, needs_array=True)
        options.append(f"{space} {json_calls.written(lark, array).calls}")
    closer = lark.then(syntax.closers)
    done = bool(syntax.call_closes) and (not closer or opener in syntax.call_opens)
    return CallSection(lark.rule(one_of(options)), closer, done, again=False)


def _one(lark: CallLark, syntax: NamedJsonCalls) -> str:
    """The name of a rule: one call of a tool, after what opens it."""
    return lark.rule(one_of(_written_call(lark, syntax, tool) for tool in lark.plain_tools))


def _written_call(lark: Lark, syntax: NamedJsonCalls, tool: WritableTool) -> str:
    """One call after what opens it."""
    space, given = lark.gap, tool.json(lark)
    close = lark.then(syntax.call_closes)
    name = literal(tool.name)
    if syntax.id_end:
        name = f"{lark.regex(_WRITTEN_ID)} {lark.text(syntax.id_end)} {name}"
    if syntax.numbered:
        name = literal(f"functions.{tool.name}:") + " " + lark.regex("[0-9]{1,6}")
    if syntax.id_opens:
        name += f" {space} ({lark.any_of(syntax.id_opens)} {lark.regex(_WRITTEN_ID)})?"
    end = lark.any_of(syntax.name_ends) if syntax.name_ends else ""
    optional = "?" if syntax.or_array is not None and end else ""
    before_end = "" if syntax.id_opens else space
    plain = f"{name} {before_end} {end}{optional} {space} {given} {close}"
    if not syntax.name_prefixes:
        return plain
    fence = lark.any_of(syntax.fences[:1])
    prefix = lark.any_of(syntax.name_prefixes)
    fenced = f'{prefix} {name} {space} {fence} {space} {given} {space} "```"'
    return one_of((plain, f"{fenced} {close}"))
