"""Calls as `call:N{key:value,..}` with bare keys: Gemma 4 and FunctionGemma."""

import re
from collections.abc import Callable
from io import StringIO

import msgspec

from gateway.splitter.arguments import ArgumentsWriter
from gateway.splitter.calls import Calls
from gateway.splitter.payloads import json_text, values
from gateway.splitter.payloads.named_json import NAME
from gateway.splitter.reading import Parsing, Reader, markers_of
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
    yield from values.copy_members(reader, writer, _BareDict(syntax.quote))
    calls.close()
    yield from reader.space()
    yield from reader.accept_close(syntax.closers)


class _BareDict(msgspec.Struct, frozen=True):
    """Bare keys, strings between quote marks, bare text as a notation of values."""

    quote: str
    brackets: tuple[str, ...] = ("{", "[")

    def key(self, reader: Reader) -> Parsing[str]:
        """A key, bare or in quote marks, as the inside of a JSON string."""
        if not (yield from reader.accept((self.quote,))):
            return json_text.escaped((yield from reader.run(_KEY)).strip().strip("\"'"))
        text = StringIO()
        yield from self._quoted(reader, text.write)
        return text.getvalue()

    def leaf(self, reader: Reader, writer: ArgumentsWriter) -> Parsing[None]:
        match (yield from reader.accept((self.quote, '"'))):
            case '"':
                writer.begin_string()
                yield from json_text.copy_string(reader, writer.string)
                writer.end_string()
            case "":
                yield from self._bare(reader, writer)
            case _:
                writer.begin_string()
                yield from self._quoted(reader, writer.string)
                writer.end_string()

    def _quoted(self, reader: Reader, sink: Callable[[str], object]) -> Parsing[None]:
        """Hands over text up to the quote mark, as the inside of a JSON string."""
        closed = yield from reader.until(
            markers_of(self.quote), lambda text: sink(json_text.escaped(text))
        )
        if not closed:
            raise reader.fault("a string is not closed")

    def _bare(self, reader: Reader, writer: ArgumentsWriter) -> Parsing[None]:
        """A number or word; any other bare text is a string."""
        text = (yield from reader.run(_BARE)).strip()
        if not text or reader.over:
            raise reader.fault("no value")
        writer.scalar(json_text.scalar(text) or f'"{json_text.escaped(text)}"')
