"""Calls as JSON objects: `{"name": N, "arguments": {..}}`, single, in a row or an array.

The name is delivered as soon as it is known and the arguments have visibly begun; from then on they
stream. Arguments before the name wait for it. Arguments given as a string of JSON are unwrapped. An
object with a name, no arguments and other keys is no call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from gateway.constraints.lark import SPACE, Lark, literal, one_of, pattern_of
from gateway.constraints.values import BETWEEN, COLON, COMMA
from gateway.splitter.payloads import json_text
from gateway.splitter.payloads.arguments import ArgumentsWriter
from gateway.splitter.payloads.calls import Calls
from gateway.splitter.payloads.reading import Malformed, Parsing, Reader
from gateway.splitter.payloads.syntax import JsonCalls
from gateway.splitter.payloads.writing import (
    SPACES,
    CallLark,
    CallSection,
    Unmarked,
    WritableTool,
)

_SEPARATORS = (",", ";")
_FORMALITIES = frozenset(("type", "id", "index"))  # of OpenAI's calls, which models repeat
_SURPLUS = re.compile(r"[}\]\s]*+")


def parse(reader: Reader, calls: Calls, syntax: JsonCalls) -> Parsing[None]:
    """Reads what follows the opener: all calls up to the closer, which may be missing."""
    fence = yield from reader.spaced(reader.accept(syntax.fences))
    if syntax.needs_fence and not fence:
        raise reader.fault("no code fence")
    in_array = bool((yield from reader.accept(("[",))))
    if syntax.needs_array and not in_array:
        raise reader.fault("no array")
    yield from _objects(reader, calls, syntax, in_array=in_array)
    if in_array:
        yield from reader.accept(("]",))
        yield from reader.space()
    if syntax.closers:
        yield from reader.run(_SURPLUS)  # models write one bracket too many; the closer follows it
    if syntax.fences and (yield from reader.accept_close(("```",))):
        yield from reader.space()
    yield from reader.accept_close(syntax.closers)


def _objects(reader: Reader, calls: Calls, syntax: JsonCalls, *, in_array: bool) -> Parsing[None]:
    yield from reader.space()
    if in_array and syntax.closers and (yield from reader.looking_at(("]",))):
        return
    while True:
        yield from reader.expect("{")
        yield from _Call(reader, calls, syntax).parse()
        calls.settle()
        separator = yield from reader.spaced(reader.accept(_SEPARATORS))
        if not separator and (yield from reader.peek()) != "{":
            return


class _Call(msgspec.Struct, eq=False):
    """One call object, read after its "{"."""

    _reader: Reader
    _calls: Calls
    _syntax: JsonCalls
    _name: str = ""
    _id: str = ""
    _early: list[str] | None = None  # arguments that came before the name
    _delivered: bool = False
    _inner: bool = False
    _stranger: str = ""  # a key that means nothing in a call

    def parse(self) -> Parsing[None]:
        yield from self._members()
        if not self._delivered:
            self._deliver_whole()

    def _members(self) -> Parsing[None]:
        reader = self._reader
        while True:
            yield from reader.space()
            if (yield from reader.expect('"', "}")) == "}":
                break
            key = yield from json_text.read_string(reader)
            yield from reader.spaced(reader.expect(":"))
            yield from self._member(key)
            yield from reader.space()
            if (yield from reader.accept((",",))):
                continue
            # The object's "}", which models forget once the arguments are closed.
            if not (yield from reader.accept(("}",))) and not self._delivered:
                raise reader.fault("the object does not go on")
            break

    def _member(self, key: str) -> Parsing[None]:
        syntax = self._syntax
        if syntax.named_by_key:
            yield from self._named_by(key)
        elif key in syntax.name_keys and not self._name:
            self._take_name((yield from self._text()))
        elif key in syntax.argument_keys and self._early is None and not self._delivered:
            yield from self._arguments()
        elif key in syntax.id_keys:
            self._id = yield from self._text()
        elif key == "function" and not self._inner and (yield from self._reader.accept(("{",))):
            self._inner = True  # name and arguments are one level down, as in OpenAI's API
            yield from self._members()
        elif syntax.at_start and key != "type" and not self._delivered:
            raise self._reader.fault(f"{key[:60]!r} is no key of a call")
        else:
            nowhere = ArgumentsWriter(lambda _fragment: None)
            yield from json_text.copy_nested(self._reader, nowhere)
            # Beside arguments such a key is left out; without them there is no call.
            if key not in _FORMALITIES:
                self._stranger = key
                self._calls.remark = f"a tool call had the key {key[:60]!r}, which is left out"

    def _named_by(self, key: str) -> Parsing[None]:
        """A call whose name is the key of its arguments; another may follow in the same object."""
        self._take_name(key)
        self._early, self._delivered = None, False
        yield from self._arguments()
        if not self._delivered:
            self._deliver_whole()

    def _text(self) -> Parsing[str]:
        """A string value, decoded."""
        yield from self._reader.expect('"')
        return json_text.decoded((yield from json_text.read_string(self._reader)))

    def _take_name(self, name: str) -> None:
        if self._syntax.at_start and not self._calls.knows(name):
            raise Malformed(f"{name[:60]!r} is no tool, and without a marker that is no call")
        self._name = name

    def _arguments(self) -> Parsing[None]:
        match (yield from self._reader.peek()):
            case "{":
                yield from self._object()
            case '"':
                yield from self._string()
            case _:
                yield from self._reader.expect("null", "None")
                self._early = []

    def _object(self) -> Parsing[None]:
        """Arguments as they should be: streamed if the name is known, else kept for it."""
        if not self._name:
            self._early = []
            early = ArgumentsWriter(self._early.append)
            yield from json_text.copy_arguments(self._reader, lambda: early)
            return
        begin = partial(self._calls.open, self._name, self._id)
        yield from json_text.copy_arguments(self._reader, begin)
        self._close()

    def _string(self) -> Parsing[None]:
        """Arguments as a string that holds the object."""
        self._reader.at += 1
        text = json_text.decoded((yield from json_text.read_string(self._reader))).strip()
        if text and not json_text.is_object(text):
            raise Malformed("the arguments are a string that holds no object")
        self._early = [text] if text else []

    def _deliver_whole(self) -> None:
        """The object is complete and nothing was streamed."""
        if not self._name:
            raise Malformed("a call without a name")
        if self._stranger and not self._early:
            raise Malformed(f"a call without arguments, but with the key {self._stranger[:60]!r}")
        writer = self._calls.open(self._name, self._id)
        if self._early:
            writer.scalar("".join(self._early))
        self._close()

    def _close(self) -> None:
        self._calls.close()
        self._delivered = True


# The same as a grammar. What the reader forgives is not written.

_SPACES = rf"{SPACE}*"
_BREAK = r"[ \t\r\n]{0,4}[;\n][ \t\r\n]{0,4}"
_END = rf"{BETWEEN}\}}"
_TYPE = rf'"type"{COLON}"function"{COMMA}'
_ANY_ID = r'"[0-9A-Za-z_.:-]{1,64}"'


def openings(lark: CallLark, syntax: JsonCalls) -> Mapping[str, CallSection]:
    """What begins calls, and what follows it.

    An opener that is a word of ordinary text begins calls with what has to follow it.
    """
    if not (syntax.needs_array or syntax.needs_fence):
        return dict.fromkeys(syntax.openers, written(lark, syntax))
    if syntax.needs_array:
        begun, section = "[", CallSection(_rest_of_array(lark, syntax))
    else:
        begun, section = syntax.fences[0], written(lark, syntax)
    return {f"{opener}{space}{begun}": section for opener in syntax.openers for space in SPACES}


def written(lark: CallLark, syntax: JsonCalls) -> CallSection:
    """What follows an opener, or its fence: an object, several, or an array of them."""
    space = lark.gap
    calls = lark.rule(f'"[" {_rest_of_array(lark, syntax)}')
    if not syntax.needs_array:
        several = lark.repeated(_object(lark, syntax), lark.regex(_BREAK))
        calls = lark.rule(one_of((calls, several)))
    closer = f'{space} "```"' if syntax.needs_fence else lark.then(syntax.closers)
    return CallSection(f"{space} {calls}", closer)


def tight(lark: CallLark, syntax: JsonCalls) -> str:
    """Objects, or an array of them without white space before the first."""
    one = _object(lark, syntax)
    listed = lark.repeated(one, lark.regex(COMMA))
    return one_of((lark.repeated(one, lark.regex(_BREAK)), f'"[" {listed} {lark.gap} "]"'))


def _rest_of_array(lark: CallLark, syntax: JsonCalls) -> str:
    several = lark.repeated(_object(lark, syntax), lark.regex(COMMA))
    return lark.rule(f'{lark.gap} {several} {lark.gap} "]"')


def _object(lark: CallLark, syntax: JsonCalls) -> str:
    begin = lark.regex(rf"\{{{BETWEEN}")
    return lark.rule(one_of(f"{begin} {_members(lark, syntax, tool)}" for tool in lark.tools))


def _members(lark: Lark, syntax: JsonCalls, tool: WritableTool) -> str:
    """The rest of a call's object after its "{"."""
    name, arguments = literal(_quoted(tool.name)), tool.json(lark)
    end, comma = lark.regex(_END), lark.regex(COMMA)
    if syntax.named_by_key:
        return f"{name} {lark.regex(COLON)} {arguments} {end}"
    named = f"{_key(lark, syntax.name_keys)} {name}"
    given = f"{_key(lark, syntax.argument_keys)} {arguments}"
    orders = f"({named} {comma} {given} | {given} {comma} {named})"
    if syntax.id_keys:
        id_ = f"{_key(lark, syntax.id_keys)} {lark.regex(_ANY_ID)}"
        orders = f"({id_} {comma})? {orders} ({comma} {id_})?"
    return f"{lark.regex(_TYPE)}? {orders} {end}"


def _key(lark: Lark, keys: Sequence[str]) -> str:
    return lark.regex(f"{_pattern_of_key(keys)}{COLON}")


def _pattern_of_key(keys: Sequence[str]) -> str:
    return '"(' + "|".join(map(pattern_of, keys)) + ')"'


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def unmarked(lark: CallLark, syntax: JsonCalls) -> Unmarked:
    """An answer that is a call itself.

    One that begins as no call of a known tool is text, whatever JSON it holds; but other ways to
    begin a call that the reader knows are neither. An array is written where it has to be one.
    """
    fence = f'({lark.gap} "```")?' if syntax.fences else ""
    more = lark.more(_object(lark, syntax), lark.regex(COMMA if syntax.needs_array else _BREAK))
    end = f'{lark.gap} "]" {fence}' if syntax.needs_array else ""
    bracket = _bracket(syntax) if syntax.needs_array else ""
    calls = []
    for tool in lark.tools:
        name = rf"\{{{_SPACES}({_TYPE})?{_named(syntax, pattern_of(_quoted(tool.name)))}"
        given = f"{_key(lark, syntax.argument_keys)} {tool.json(lark)} {lark.regex(_END)}"
        calls.append(f"{lark.regex(bracket + name)} {lark.regex(COMMA)} {given} {more} {end}")
    return Unmarked(lark.rule(one_of(calls)), _unlike(syntax, lark.tools))


_LEAD = rf'\{{{_SPACES}("type"{_SPACES}:{_SPACES}"[^"\\]*"{_SPACES},{_SPACES})*'


def _named(syntax: JsonCalls, name: str) -> str:
    """A regular expression: the name's key and the name."""
    return f"{_pattern_of_key(syntax.name_keys)}{_SPACES}:{_SPACES}{name}"


def _bracket(syntax: JsonCalls) -> str:
    """A regular expression: an array up to its first object."""
    fences = "|".join(map(pattern_of, syntax.fences))
    return (f"(({fences}){_SPACES})?" if fences else "") + rf"\[{_SPACES}"


def _unlike(syntax: JsonCalls, tools: Sequence[WritableTool]) -> str:
    """A regular expression of all that begins as a call: also with other keys first, or escapes."""
    names = "|".join(pattern_of(_quoted(tool.name)) for tool in tools)
    optional = "" if syntax.needs_array else "?"
    keys = _pattern_of_key((*syntax.argument_keys, "function"))
    odd_type = rf'{_LEAD}"type"{_SPACES}:{_SPACES}([^"\s]|"[^"\\]*\\)'
    known, escaped = _named(syntax, f"({names})"), _named(syntax, r'"[^"\\]*\\')
    begins = (_LEAD + known, _LEAD + escaped, f"{_LEAD}{keys}{_SPACES}:", odd_type)
    return f"({_bracket(syntax)}){optional}({'|'.join(begins)})"
