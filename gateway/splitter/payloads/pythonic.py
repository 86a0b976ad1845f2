"""Calls as Python writes them: `[f(a='x', b=1), g()]`: Llama, ToolACE, Olmo 3, LFM2."""

import re

from gateway.splitter.calls import Calls
from gateway.splitter.payloads import json_calls, python_text
from gateway.splitter.payloads.json_text import escaped
from gateway.splitter.reading import Malformed, Parsing, Reader
from gateway.splitter.syntax import PythonicCalls

_NAME = re.compile(r"[\w.-]*")
_KEYWORD = re.compile(r"\w*")


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
        yield from _call(reader, calls, syntax)
        yield from reader.space()
        separator = yield from reader.accept((",", ";"))
        yield from reader.space()
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


def _call(reader: Reader, calls: Calls, syntax: PythonicCalls) -> Parsing[None]:
    name = (yield from reader.run(_NAME)).removesuffix(syntax.method)
    yield from reader.expect("(")
    if syntax.at_start and not calls.knows(name):
        raise Malformed(f"{name[:60]!r} is no tool, and without a marker that is no call")
    yield from reader.space()
    keyword = yield from _keyword(reader)
    writer = calls.open(name)
    writer.open("{")
    reader.keep(f"{keyword}=" if keyword else "")
    while keyword:
        writer.key(escaped(keyword))
        yield from python_text.copy_value(reader, writer, lenient=True)
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
    keyword = yield from reader.run(_KEYWORD)
    yield from reader.space()
    yield from reader.expect("=")
    yield from reader.space()
    if not keyword:
        raise Malformed("an argument without a name")
    return keyword
