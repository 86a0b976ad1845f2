"""Calls as `call:N{key:value,..}` with bare keys: Gemma 4 and FunctionGemma."""

import re
from collections.abc import Sequence

from gateway.constraints.lark import Lark, literal, one_of, pattern_of
from gateway.constraints.schemas import StringValue
from gateway.constraints.values import GrammarNotation, Values
from gateway.splitter.payloads import json_text, raw
from gateway.splitter.payloads.calls import Calls
from gateway.splitter.payloads.elements import copy_text
from gateway.splitter.payloads.json_text import Notation, Sink, copy_nested
from gateway.splitter.payloads.named_json import NAME
from gateway.splitter.payloads.reading import Parsing, Reader
from gateway.splitter.payloads.syntax import BareDictCalls
from gateway.splitter.payloads.writing import CallLark, CallSection, WritableTool

_KEY = re.compile(r"[^:{}\[\],<]*")
_BARE = re.compile(r"[^{}\[\],<]*")
_FOLLOWERS = (",", "}", "]", ":")  # of a string


def parse(reader: Reader, calls: Calls, syntax: BareDictCalls) -> Parsing[None]:
    """Reads the call that follows the opener, with its closer, which may be missing."""
    yield from reader.space()
    yield from reader.expect("call:")
    name = (yield from reader.run(NAME)).removesuffix(":")
    yield from reader.space()
    yield from reader.expect("{")
    writer = calls.open(name)
    writer.open("{")
    quotes = (syntax.quote, '"')
    notation = Notation(quotes=quotes, copy_string=_copy_string, word=_BARE, key=_KEY)
    yield from copy_nested(reader, writer, notation, in_object=True)
    calls.close()
    yield from reader.space()
    yield from reader.accept_close(syntax.closers)


def _copy_string(reader: Reader, mark: str, sink: Sink) -> Parsing[None]:
    """Between the syntax's own marks there are no escapes."""
    if mark == '"':
        return json_text.copy_string(reader, mark, sink)
    frame = raw.Frame((mark,), _FOLLOWERS)
    return copy_text(reader, frame, lambda text: sink(json_text.escaped(text)))


def written(lark: CallLark, syntax: BareDictCalls) -> CallSection:
    """What follows the opener: one call."""
    calls = lark.rule(one_of(_written_call(lark, syntax, tool) for tool in lark.plain_tools))
    return CallSection(f"{lark.gap} {calls}", lark.then(syntax.closers))


def _written_call(lark: Lark, syntax: BareDictCalls, tool: WritableTool) -> str:
    values = Values(lark, _WrittenDict(lark, syntax.quote), tool.reading)
    members = values.members(tool.arguments)
    return f'{literal(f"call:{tool.name}{{")} {members} "}}"'


class _WrittenDict(GrammarNotation):
    """Bare keys and strings between quote marks as a notation of `constraints.values`."""

    def __init__(self, lark: Lark, quote: str) -> None:
        super().__init__(lark, '","')
        self._quote = quote

    def text(self, found: StringValue) -> str:
        rest = raw.text(self.lark, found, raw.Frame((self._quote,), _FOLLOWERS))
        return f"{self.lark.text(self._quote)} {rest}"

    def constant(self, text: str) -> str:
        if self._quote in text:
            return ""
        return self.lark.rule(self._quoted(text))

    def _quoted(self, text: str) -> str:
        quote = self.lark.text(self._quote)
        return f"{quote} {literal(text)} {quote}"

    def key(self, key: str) -> str:
        bare = _KEY.fullmatch(key) and key == key.strip().strip("\"'") and self._quote not in key
        return literal(f"{key}:") if bare else f'{self._quoted(key)} ":"'

    def any_key(self, declared: Sequence[str]) -> str:
        others = "|".join(map(pattern_of, declared))
        known = f" & ~/({others}):/" if declared else ""
        return self.lark.terminal(f"/[A-Za-z_][0-9A-Za-z_-]*:/{known}")
