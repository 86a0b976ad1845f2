"""Calls as `call:N{key:value,..}` with bare keys: Gemma 4 and FunctionGemma."""

import re
from collections.abc import Callable

from gateway.splitter.arguments import ArgumentsWriter
from gateway.splitter.calls import Calls
from gateway.splitter.markers import Markers, markers_of
from gateway.splitter.payloads import json_text
from gateway.splitter.payloads.named_json import NAME
from gateway.splitter.reading import Parsing, Reader
from gateway.splitter.syntax import BareDictCalls

_KEY = re.compile(r"[^:{}\[\],<]*")
_BARE = re.compile(r"[^{}\[\],<]*")


def parse(reader: Reader, calls: Calls, syntax: BareDictCalls) -> Parsing[None]:
    """Reads the call that follows the opener, with its closer, which may be missing."""
    yield from reader.space()
    yield from reader.expect("call:")
    name = (yield from reader.run(NAME)).removesuffix(":")
    yield from reader.space()
    yield from reader.expect("{")
    writer = calls.open(name)
    writer.open("{")
    yield from _Dict(reader, writer, syntax.quote).members()
    calls.close()
    yield from reader.space()
    yield from reader.accept_close(syntax.closers)


class _Dict:
    """Copies values to a writer."""

    def __init__(self, reader: Reader, writer: ArgumentsWriter, quote: str) -> None:
        self._reader = reader
        self._writer = writer
        self._quote = quote
        self._quotes: Markers = markers_of(quote)

    def members(self) -> Parsing[None]:
        """Copies the rest of an object after its "{"."""
        reader = self._reader
        while True:
            yield from reader.space()
            if (yield from reader.accept(("}",))):
                break
            self._writer.key((yield from self._key()))
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            yield from self._value()
            yield from reader.space()
            if (yield from reader.expect(",", "}")) == "}":
                break
        self._writer.close()

    def _items(self) -> Parsing[None]:
        while True:
            yield from self._reader.space()
            if (yield from self._reader.accept(("]",))):
                break
            yield from self._value()
            yield from self._reader.space()
            if (yield from self._reader.expect(",", "]")) == "]":
                break
        self._writer.close()

    def _key(self) -> Parsing[str]:
        """A key, bare or in quote marks, as the inside of a JSON string."""
        if not (yield from self._reader.accept((self._quote,))):
            return json_text.escaped((yield from self._reader.run(_KEY)).strip().strip("\"'"))
        parts: list[str] = []
        yield from self._quoted(parts.append)
        return "".join(parts)

    def _quoted(self, sink: Callable[[str], None]) -> Parsing[None]:
        """Hands over text up to the quote mark, as the inside of a JSON string."""
        closed = yield from self._reader.until(
            self._quotes, lambda text: sink(json_text.escaped(text))
        )
        if not closed:
            raise self._reader.fault("a string is not closed")

    def _value(self) -> Parsing[None]:
        reader, writer = self._reader, self._writer
        match (yield from reader.accept((self._quote, "{", "[", '"'))):
            case "{":
                writer.open("{")
                yield from self.members()
            case "[":
                writer.open("[")
                yield from self._items()
            case '"':
                writer.begin_string()
                yield from json_text.copy_string(reader, writer.string)
                writer.end_string()
            case "":
                yield from self._bare()
            case _:
                writer.begin_string()
                yield from self._quoted(writer.string)
                writer.end_string()

    def _bare(self) -> Parsing[None]:
        """A number or word; any other bare text is a string."""
        text = (yield from self._reader.run(_BARE)).strip()
        if not text or self._reader.over:
            raise self._reader.fault("no value")
        self._writer.scalar(json_text.scalar(text) or f'"{json_text.escaped(text)}"')
