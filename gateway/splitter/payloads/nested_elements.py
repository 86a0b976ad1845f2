"""Calls as nested elements named after their keys, typed by the schema: MiniMax-M3."""

import re
from functools import partial

import msgspec

from gateway.splitter import coercion
from gateway.splitter.arguments import ArgumentsWriter
from gateway.splitter.calls import Calls
from gateway.splitter.coercion import Schema
from gateway.splitter.markers import Markers, markers_of
from gateway.splitter.payloads import json_text, sections
from gateway.splitter.payloads.sections import Section
from gateway.splitter.reading import Malformed, Parsing, Reader
from gateway.splitter.syntax import NestedElementCalls

_TAG = re.compile(r"[^<>]*")
_CALL = re.compile(r"""\s*name\s*=\s*["']?([^"'<>]+)["']?\s*""")
_ITEM = "item"


def parse(reader: Reader, calls: Calls, syntax: NestedElementCalls, opener: str) -> Parsing[None]:
    """Reads a section of calls."""
    section = Section((f"{syntax.prefix}<{syntax.call}",), (f"{syntax.prefix}</{syntax.section}>",))
    one_call = partial(_call, reader, calls, syntax, section)
    yield from sections.parse(reader, calls, opener, section, one_call)


def _call(
    reader: Reader, calls: Calls, syntax: NestedElementCalls, section: Section
) -> Parsing[None]:
    head = yield from reader.run(_TAG)
    yield from reader.expect(">")
    if not (found := _CALL.fullmatch(head)):
        raise Malformed("a call without a name")
    yield from reader.space()
    ends = _Ends((f"{syntax.prefix}</{syntax.call}>",), (*section.closers, *section.call_opens))
    if calls.knows(found[1]) and (yield from ends.come(reader)):
        calls.open(found[1])
        calls.close()
        return
    yield from reader.expect(syntax.prefix)
    writer = calls.open(found[1])
    writer.open("{")
    yield from _Elements(reader, writer, syntax, ends).children(
        calls.schema(found[1]), syntax.call, in_array=False
    )
    calls.close()


class _Ends(msgspec.Struct, frozen=True):
    """What ends a call: its own close tag, or where that is missing what stands around calls."""

    own: tuple[str, ...]
    outer: tuple[str, ...]

    def come(self, reader: Reader) -> Parsing[bool]:
        """The call ends here. Its own close tag is read."""
        if (yield from reader.accept_close(self.own)):
            return True
        return bool((yield from reader.looking_at(self.outer)))


class _Elements:
    """Copies nested elements to a writer."""

    def __init__(
        self, reader: Reader, writer: ArgumentsWriter, syntax: NestedElementCalls, ends: _Ends
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._prefix = syntax.prefix
        self._prefixes: Markers = markers_of(syntax.prefix)
        self._call = syntax.call
        self._ends = ends

    def children(
        self, schema: Schema, parent: str, *, in_array: bool, first: str = ""
    ) -> Parsing[None]:
        """Copies elements up to the close tag of `parent`; a prefix, or `first`, is read."""
        tag = first or (yield from self._tag())
        while tag != f"/{parent}":
            if tag.startswith("/"):
                raise Malformed(f"</{tag[1:60]}> closes nothing")
            if not in_array:
                self._writer.key(json_text.escaped(tag))
            inner = coercion.items_of(schema) if in_array else coercion.property_of(schema, tag)
            yield from self._element(tag, inner)
            yield from self._reader.space()
            if parent == self._call and (yield from self._ends.come(self._reader)):
                break
            yield from self._reader.expect(self._prefix)
            tag = yield from self._tag()
        self._writer.close()

    def _element(self, tag: str, schema: Schema) -> Parsing[None]:
        """Copies the value of an element, read after its open tag, with its close tag."""
        types = coercion.types_of(schema)
        if types == coercion.STRING and "type" in schema:
            yield from self._string(tag)
            return
        text: list[str] = []
        if not (yield from self._reader.until(self._prefixes, text.append)):
            raise self._reader.fault("a value is not closed")
        inner = yield from self._tag()
        if inner == f"/{tag}":
            self._writer.scalar(_whole("".join(text), types))
            return
        in_array = "array" in types or (inner == _ITEM and "object" not in types)
        self._writer.open("[" if in_array else "{")
        yield from self.children(schema, tag, in_array=in_array, first=inner)

    def _string(self, tag: str) -> Parsing[None]:
        self._writer.begin_string()
        close = markers_of(f"{self._prefix}</{tag}>")
        found = yield from self._reader.until(
            close, lambda text: self._writer.string(json_text.escaped(text))
        )
        if not found:
            raise self._reader.fault("a value is not closed")
        self._writer.end_string()

    def _tag(self) -> Parsing[str]:
        """The next tag without its brackets; its prefix is read."""
        yield from self._reader.expect("<")
        tag = yield from self._reader.run(_TAG)
        yield from self._reader.expect(">")
        return tag


def _whole(text: str, types: frozenset[str]) -> str:
    """A value without elements inside: an empty object or array is one, else a scalar."""
    if not text.strip():
        if "object" in types:
            return "{}"
        if "array" in types:
            return "[]"
    return coercion.coerce(text, types)
