"""Calls as nested elements named after their keys, typed by the schema: MiniMax-M3."""

import re
from functools import partial
from io import StringIO

import msgspec

from gateway.splitter import coercion
from gateway.splitter.calls import Calls
from gateway.splitter.coercion import Declared
from gateway.splitter.payloads import json_text, sections
from gateway.splitter.payloads.elements import attributes
from gateway.splitter.payloads.sections import PayloadSection
from gateway.splitter.reading import Malformed, Markers, Parsing, Reader, markers_of
from gateway.splitter.syntax import NestedElementCalls

_TAG = re.compile(r"[^<>]*")
_ITEM = "item"


def parse(reader: Reader, calls: Calls, syntax: NestedElementCalls, opener: str) -> Parsing[None]:
    """Reads a section of calls."""
    section = PayloadSection(
        (f"{syntax.prefix}<{syntax.call}",), (f"{syntax.prefix}</{syntax.section}>",)
    )
    one_call = partial(_call, reader, calls, syntax, section)
    yield from sections.parse(reader, calls, opener, section, one_call)


def _call(
    reader: Reader, calls: Calls, syntax: NestedElementCalls, section: PayloadSection
) -> Parsing[None]:
    head = yield from reader.run(_TAG)
    yield from reader.expect(">")
    if not (name := attributes(calls, head, ("name",)).get("name", "").strip()):
        raise Malformed("a call without a name")
    yield from reader.space()
    ends = _Ends((f"{syntax.prefix}</{syntax.call}>",), (*section.closers, *section.call_opens))
    if calls.knows(name) and (yield from ends.come(reader)):
        calls.open(name)
        calls.close()
        return
    yield from reader.expect(syntax.prefix)
    call = _Open(syntax.call, calls.declared(name), in_array=False)
    yield from _Elements(reader, calls, syntax, ends, name).copy(call)
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


class _Open(msgspec.Struct, frozen=True):
    """An element whose close tag has not come: an object, or an array."""

    tag: str
    declared: Declared
    in_array: bool

    def inner(self, tag: str) -> Declared:
        """What the schema declares of an element in it."""
        return self.declared.items() if self.in_array else self.declared.property(tag)


class _Elements:
    """Copies nested elements to a writer. What is open is a list: nothing here calls itself."""

    def __init__(
        self, reader: Reader, calls: Calls, syntax: NestedElementCalls, ends: _Ends, name: str
    ) -> None:
        self._reader = reader
        self._calls = calls
        self._writer = calls.open(name)
        self._prefix = syntax.prefix
        self._prefixes: Markers = markers_of(syntax.prefix)
        self._ends = ends

    def copy(self, call: _Open) -> Parsing[None]:
        """Copies the elements of a call up to its end; the first one's prefix is read."""
        self._writer.open("{")
        waiting = [call]
        tag = yield from self._tag()
        while True:
            parent = waiting[-1]
            opened = False
            if tag == f"/{parent.tag}":
                self._writer.close()
                waiting.pop()
            else:
                if not parent.in_array:
                    self._writer.key(json_text.escaped(tag))
                elif tag != _ITEM:
                    self._calls.remark = f"an item of an array was called {tag[:60]!r}"
                tag, child = yield from self._element(tag, parent.inner(tag))
                opened = child is not None
                waiting += [] if child is None else [child]
            if opened:
                continue
            if not waiting:
                return
            yield from self._reader.space()
            if len(waiting) == 1 and (yield from self._ends.come(self._reader)):
                self._writer.close()
                return
            yield from self._reader.expect(self._prefix)
            tag = yield from self._tag()

    def _element(self, tag: str, declared: Declared) -> Parsing[tuple[str, _Open | None]]:
        """Copies an element up to its close tag; or opens it, and gives the tag of its first child.

        Elements after text are no children: the value is the text as it stands.
        """
        if tag.startswith("/"):
            raise Malformed(f"<{tag[:60]}> closes nothing")
        text = StringIO()
        if declared.is_string:
            yield from self._string(tag, "")
            return "", None
        if not (yield from self._reader.until(self._prefixes, text.write)):
            raise self._reader.fault("a value is not closed")
        before = text.getvalue()
        inner = yield from self._tag()
        if inner == f"/{tag}":
            self._writer.scalar(_whole(before, declared.types))
        elif before.strip():
            yield from self._string(tag, f"{before}{self._prefix}<{inner}>")
        else:
            return inner, self._opened(tag, inner, declared)
        return "", None

    def _opened(self, tag: str, first: str, declared: Declared) -> _Open:
        """Opens an element that holds others."""
        if first.startswith("/"):
            raise Malformed(f"<{first[:60]}> closes nothing")
        types = declared.types
        in_array = "array" in types or (first == _ITEM and "object" not in types)
        self._writer.open("[" if in_array else "{")
        self._reader.keep(f"{self._prefix}<{first}>")
        return _Open(tag, declared, in_array)

    def _string(self, tag: str, begun: str) -> Parsing[None]:
        """Copies text up to the element's close tag; some of it is read."""
        self._writer.begin_string()
        self._copy(begun)
        while (yield from self._reader.until(self._prefixes, self._copy)):
            if (yield from self._reader.accept((f"</{tag}>",))):
                self._writer.end_string()
                return
            self._copy(self._prefix)
        raise self._reader.fault("a value is not closed")

    def _copy(self, text: str) -> None:
        self._writer.string(json_text.escaped(text))

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
