"""Calls as Python writes them: `[f(a='x', b=1), g()]`: Llama, ToolACE, Olmo 3, LFM2."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.constraints.lark import SPACE, Lark, literal, one_of, pattern_of
from gateway.constraints.schemas import StringValue
from gateway.constraints.values import (
    LENGTH,
    GrammarNotation,
    Unwritable,
    Values,
    counted,
    in_any_order,
)
from gateway.splitter.payloads import json_calls, python_text
from gateway.splitter.payloads.calls import Calls
from gateway.splitter.payloads.json_text import copy_nested, escaped
from gateway.splitter.payloads.reading import Malformed, Parsing, Reader
from gateway.splitter.payloads.syntax import PythonicCalls
from gateway.splitter.payloads.writing import (
    CallLark,
    CallSection,
    Unmarked,
    WritableTool,
    quoted,
)

_NAME = re.compile(r"[\w.-]*")  # of keywords too: schemas have others than Python


def parse(reader: Reader, calls: Calls, syntax: PythonicCalls) -> Parsing[None]:
    """Reads all calls up to the closer, which may be missing."""
    yield from reader.space()
    if syntax.or_objects is not None and (yield from reader.looking_at(("[{", "{"))):
        yield from json_calls.parse(reader, calls, syntax.or_objects)
        return
    in_list = bool((yield from reader.accept(("[",))))
    if syntax.needs_list and not in_list:
        raise reader.fault("no list of calls")
    yield from reader.space()
    while True:
        yield from _call(reader, calls, syntax, in_list=in_list)
        separator = yield from reader.spaced(reader.accept((",", ";")))
        if (yield from _at_end(reader, syntax, separator)):
            break
    yield from reader.accept(("]",) if in_list else ())
    yield from reader.space()
    yield from reader.accept_close(syntax.closers)


def _at_end(reader: Reader, syntax: PythonicCalls, separator: str) -> Parsing[bool]:
    """No other call follows."""
    following = yield from reader.peek()
    if not following or (yield from reader.looking_at(("]", *syntax.closers))):
        return True
    return not separator and not (syntax.closers and _NAME.fullmatch(following))


def _call(reader: Reader, calls: Calls, syntax: PythonicCalls, *, in_list: bool) -> Parsing[None]:
    written = yield from reader.run(_NAME)
    name = written.removesuffix(syntax.method)
    yield from reader.expect("(")
    if syntax.at_start and not calls.knows(name):
        raise Malformed(f"{name[:60]!r} is no tool, and without a marker that is no call")
    yield from reader.space()
    keyword = yield from _keyword(reader)
    if syntax.method and not in_list and not keyword and name == written:
        raise Malformed(f"{name[:60]}() may be a word of the answer")
    writer = calls.open(name)
    writer.open("{")
    reader.keep(f"{keyword}=" if keyword else "")
    while keyword:
        writer.key(escaped(keyword))
        yield from copy_nested(reader, writer, python_text.PYTHON)
        yield from reader.space()
        if (yield from reader.expect(",", ")")) == ")":
            break
        yield from reader.space()
        keyword = yield from _keyword(reader)
    calls.close()


def _keyword(reader: Reader) -> Parsing[str]:
    """The name of the next argument, with its "="; "" where the arguments end, with their ")"."""
    if (yield from reader.accept((")",))):
        return ""
    keyword = yield from reader.run(_NAME)
    yield from reader.spaced(reader.expect("="))
    if not keyword:
        raise Malformed("an argument without a name")
    return keyword


_CHARACTER = r"([^'\\\x00-\x1f]|\\[\\'\x22nrt])"  # between single quote marks
_BRACKET = rf"\[{SPACE}*"
_COLON = "[ ]{0,4}:[ ]{0,4}"
_BREAK = r"[ \t\r\n]{0,8},[ \t\r\n]{0,8}"


def written(lark: CallLark, syntax: PythonicCalls) -> CallSection:
    """What follows an opener: calls in a list, or one a line."""
    heads = ((f'{literal(tool.name)} "("', tool) for tool in lark.tools)
    one = lark.rule(one_of(_written_call(lark, head, tool) for head, tool in heads))
    comma, space, line = lark.regex(_BREAK), lark.gap, lark.regex(r"[ \t\r]{0,8}\n[ \t\r\n]{0,8}")
    options = [f'"[" {space} {lark.repeated(one, comma)} {space} "]"']
    if not syntax.needs_list:
        options.append(lark.repeated(one, line))
    if syntax.or_objects is not None:
        options.append(json_calls.tight(lark, syntax.or_objects))
    return CallSection(f"{space} {one_of(options)}", lark.then(syntax.closers))


def unmarked(lark: CallLark, syntax: PythonicCalls) -> Unmarked:
    """An answer that is calls itself: a list that begins with a known tool's name and a bracket.
    Not in a list those may be words of the answer, so there the method of builtin tools follows
    the name, or a keyword the bracket.
    """
    space, comma, bracket = lark.gap, lark.regex(_BREAK), _BRACKET if syntax.needs_list else ""
    named = [(pattern_of(tool.name), tool) for tool in lark.tools]
    method = pattern_of(syntax.method)
    one = lark.rule(
        one_of(
            _written_call(lark, lark.regex(rf"{name}({method})?\("), tool) for name, tool in named
        )
    )
    first = [
        _written_call(lark, lark.regex(rf"{bracket}{name}{method}\("), tool) for name, tool in named
    ]
    begins, end = f"{bracket}({'|'.join(name for name, _ in named)})", f'{space} "]"'
    unlike = rf"{begins}{method}\("
    if not syntax.needs_list:
        head = rf"\({SPACE}*"
        first += [_written_arguments(lark, tool, name + head) for name, tool in named]
        unlike, end = rf"{begins}({method}\(|{head}[\w.-]+{SPACE}*=)", ""
    calls = f"{one_of(filter(None, first))} {lark.more(one, comma)} {end}"
    return Unmarked(lark.rule(calls), unlike)


def _written_call(lark: Lark, head: str, tool: WritableTool) -> str:
    """One call; `head` is its name with the bracket."""
    if not _NAME.fullmatch(tool.name):
        raise Unwritable(f"the tool's name {tool.name[:60]!r} can't be written in a call")
    key = ("arguments in Python", tool.name)
    return f"{head} {lark.once(key, lambda: lark.rule(_written_arguments(lark, tool)))}"


def _written_arguments(lark: Lark, tool: WritableTool, head: str = "") -> str:
    """`head`: a regular expression that goes into one lexeme with the first keyword, which there
    has to be; "" where there can't be one.
    """
    found = tool.arguments.fields
    values = Values(lark, _WrittenPython(lark), tool.reading)
    written = [values.of(field.schema) for field in found]
    given = [
        (f"{_written_keyword(field.key)} {value}", field.required)
        for field, value in zip(found, written, strict=True)
    ]
    comma, end = lark.regex(_BREAK), f'{lark.gap} ")"'
    if not head:
        return f"{lark.gap} {in_any_order(lark, given, comma)} {end}"
    heads = [
        f"{lark.regex(f'{head}{pattern_of(field.key)}=')} {value}"
        for field, value in zip(found, written, strict=True)
    ]
    calls = in_any_order(lark, given, comma, first=heads).removesuffix("?")
    return f"{calls} {end}" if calls else ""


def _written_keyword(key: str) -> str:
    if not key or not _NAME.fullmatch(key):
        raise Unwritable(f"{key[:60]!r} can't be written as a keyword")
    return literal(f"{key}=")


class _WrittenPython(GrammarNotation):
    """Python's literals as a notation of `constraints.values`. JSON's strings are Python's, too."""

    words: Mapping[Any, Sequence[str]] = {
        True: ("True", "true"), False: ("False", "false"), None: ("None", "null")
    }  # fmt: skip

    def __init__(self, lark: Lark) -> None:
        super().__init__(lark, lark.regex(_BREAK))

    def text(self, found: StringValue) -> str:
        if found.grammar is not None:
            return one_of(quoted(self.lark, found.grammar, mark) for mark in ('"', "'"))
        if not found.schema.keys() <= LENGTH:
            return self.lark.json(found.schema)
        double = counted(self.lark, found)
        return double and one_of((double, counted(self.lark, found, "'", _CHARACTER)))

    def constant(self, text: str) -> str:
        double = literal(json.dumps(text, ensure_ascii=False))
        plain = text.isprintable() and not set(text) & set("'\\")
        return one_of((double, literal(f"'{text}'"))) if plain else double

    def key(self, key: str) -> str:
        return f"{self.constant(key)} {self.lark.regex(_COLON)}"

    def any_key(self, declared: Sequence[str]) -> str:
        others = "|".join(map(pattern_of, declared))
        known = f" & ~/.({others})./" if declared else ""
        name = self.lark.terminal(rf"/'[0-9A-Za-z_ .-]+'|\x22[0-9A-Za-z_ .-]+\x22/{known}")
        return f"{name} {self.lark.regex(_COLON)}"
