"""Calls as a name followed by the arguments as JSON: `N[ARGS]{..}`."""

import re

from gateway.splitter.calls import Calls
from gateway.splitter.payloads import json_calls, json_text, sections
from gateway.splitter.payloads.sections import PayloadSection
from gateway.splitter.reading import Parsing, Reader
from gateway.splitter.syntax import NamedJsonCalls

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
    section = PayloadSection(syntax.call_opens, syntax.closers)
    yield from sections.parse(reader, calls, opener, section, lambda: _call(reader, calls, syntax))


def _call(reader: Reader, calls: Calls, syntax: NamedJsonCalls) -> Parsing[None]:
    name, call_id = yield from _head(reader, syntax)
    yield from reader.space()
    if syntax.fences and (yield from reader.accept(syntax.fences)):
        yield from reader.space()
    yield from arguments(reader, calls, name, call_id, syntax.call_closes)
    yield from reader.space()
    if syntax.fences and (yield from reader.accept_close(("```",))):
        yield from reader.space()
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
        raise reader.fault(
            "no name"
        )  # at once: openers may be short, and follow each other for ever
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
    yield from reader.expect("{")
    yield from reader.space()
    if not (yield from reader.looking_at(('"', "}"))):
        raise reader.fault("no arguments object")
    writer = calls.open(name, call_id)
    writer.open("{")
    yield from json_text.copy_members(reader, writer)
    calls.close()
