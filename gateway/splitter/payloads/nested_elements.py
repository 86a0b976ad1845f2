"""Calls as nested elements named after their keys, typed by the schema: MiniMax-M3."""

import re
from io import StringIO

import msgspec

from gateway.constraints.lark import SPACE, Lark, literal, one_of, pattern_of
from gateway.constraints.schemas import Alternative, ArrayValue, ObjectValue, StringValue
from gateway.constraints.values import DEEPEST, Unwritable, in_any_order
from gateway.splitter.payloads import coercion, json_text, raw
from gateway.splitter.payloads.calls import Calls
from gateway.splitter.payloads.coercion import Declared
from gateway.splitter.payloads.elements import attributes, copy_text
from gateway.splitter.payloads.free_text import until
from gateway.splitter.payloads.reading import Malformed, Parsing, Reader, markers_of
from gateway.splitter.payloads.syntax import NestedElementCalls
from gateway.splitter.payloads.writing import WritableTool

_TAG = re.compile(r"[^<>]*")
_ITEM = "item"


def read_call(reader: Reader, calls: Calls, syntax: NestedElementCalls) -> Parsing[None]:
    """Reads one call."""
    head = yield from reader.run(_TAG)
    yield from reader.expect(">")
    if not (name := attributes(calls, head, ("name",)).get("name", "").strip()):
        raise Malformed("a call without a name")
    yield from reader.space()
    if calls.knows(name) and (yield from _ends(reader, syntax)):
        calls.open(name)
    else:
        yield from reader.expect(syntax.prefix)
        yield from _Elements(reader, calls, syntax, name).copy()
    calls.close()


def _ends(reader: Reader, syntax: NestedElementCalls) -> Parsing[bool]:
    """The call ends here: with its own close tag, which is read, or where that is missing with what
    stands around calls.
    """
    if (yield from reader.accept_close(syntax.call_closes)):
        return True
    return bool((yield from reader.looking_at((*syntax.closers, *syntax.call_opens))))


class _Open(msgspec.Struct, frozen=True):
    """An element whose close tag has not come: an object, or an array. `first`: the tag of its
    first child, where that is read.
    """

    tag: str
    declared: Declared
    in_array: bool = False
    first: str = ""

    def inner(self, tag: str) -> Declared:
        """What the schema declares of an element in it."""
        return self.declared.items() if self.in_array else self.declared.property(tag)


class _Elements:
    """Copies nested elements to a writer. What is open is a list: nothing here calls itself."""

    def __init__(self, reader: Reader, calls: Calls, syntax: NestedElementCalls, name: str) -> None:
        self._reader = reader
        self._calls = calls
        self._syntax = syntax
        self._declared = calls.declared(name)
        self._writer = calls.open(name)
        self._prefix = syntax.prefix

    def copy(self) -> Parsing[None]:
        """Copies the elements of the call up to its end; the first one's prefix is read."""
        self._writer.open("{")
        waiting = [_Open(_tag_of(self._syntax), self._declared)]
        tag = yield from self._tag()
        while True:
            if tag == f"/{waiting[-1].tag}":
                self._writer.close()
                waiting.pop()
            elif child := (yield from self._element(tag, waiting[-1])):
                waiting.append(child)
                tag = child.first
                continue
            if not waiting:
                return
            yield from self._reader.space()
            if len(waiting) == 1 and (yield from _ends(self._reader, self._syntax)):
                self._writer.close()
                return
            yield from self._reader.expect(self._prefix)
            tag = yield from self._tag()

    def _element(self, tag: str, parent: _Open) -> Parsing[_Open | None]:
        """Copies an element up to its close tag; or opens it.

        Elements after text are no children: the value is the text as it stands.
        """
        if tag.startswith("/"):
            raise Malformed(f"<{tag[:60]}> closes nothing")
        if not parent.in_array:
            self._writer.key(json_text.escaped(tag))
        elif tag != _ITEM:
            self._calls.remark = f"an item of an array was called {tag[:60]!r}"
        text, declared = StringIO(), parent.inner(tag)
        if declared.is_string:
            yield from self._string(tag, "")
            return None
        if not (yield from self._reader.until(markers_of(self._prefix), text.write)):
            raise self._reader.fault("a value is not closed")
        before = text.getvalue()
        inner = yield from self._tag()
        if inner == f"/{tag}":
            self._writer.scalar(_whole(before, declared))
        elif before.strip():
            yield from self._string(tag, f"{before}{self._prefix}<{inner}>")
        else:
            return self._opened(tag, inner, declared)
        return None

    def _opened(self, tag: str, first: str, declared: Declared) -> _Open:
        """Opens an element that holds others."""
        if first.startswith("/"):
            raise Malformed(f"<{first[:60]}> closes nothing")
        types = declared.types
        in_array = "array" in types or (first == _ITEM and "object" not in types)
        self._writer.open("[" if in_array else "{")
        self._reader.keep(f"{self._prefix}<{first}>")
        return _Open(tag, declared, in_array, first)

    def _string(self, tag: str, begun: str) -> Parsing[None]:
        """Copies text up to the element's close tag; some of it is read."""
        self._writer.begin_string()
        self._copy(begun)
        frame = raw.Frame((f"{self._prefix}</{tag}>",), (self._prefix,))
        yield from copy_text(self._reader, frame, self._copy)
        self._writer.end_string()

    def _copy(self, text: str) -> None:
        self._writer.string(json_text.escaped(text))

    def _tag(self) -> Parsing[str]:
        """The next tag without its brackets; its prefix is read."""
        yield from self._reader.expect("<")
        tag = yield from self._reader.run(_TAG)
        yield from self._reader.expect(">")
        return tag


def _whole(text: str, declared: Declared) -> str:
    """A value without elements inside: an empty object or array is one, else a scalar."""
    types = declared.types
    if declared.is_untyped:
        return coercion.untyped(text)
    if not text.strip():
        if "object" in types:
            return "{}"
        if "array" in types:
            return "[]"
    return coercion.coerce(text, types)


def _tag_of(syntax: NestedElementCalls) -> str:
    """The tag of a call itself."""
    return syntax.call_opens[0].removeprefix(f"{syntax.prefix}<")


def written_call(lark: Lark, syntax: NestedElementCalls, tool: WritableTool) -> str:
    """One call after the text that opens it."""
    return _WrittenCall(lark, syntax, tool).whole()


class _WrittenCall(msgspec.Struct, eq=False):
    """One call of a tool as an expression, after the text that opens it."""

    _lark: Lark
    _syntax: NestedElementCalls
    _tool: WritableTool
    _rules: dict[tuple[int, str], tuple[object, str]] = {}
    _depth: int = 0

    def whole(self) -> str:
        head = literal(f' name="{self._tool.name}">')
        inner = self._fields(self._tool.arguments, self._tool.declared)
        return f"{head} {inner} {self._lark.gap} {self._close(_tag_of(self._syntax))}"

    def _close(self, tag: str) -> str:
        return self._lark.text(f"{self._syntax.prefix}</{tag}>")

    def _fields(self, found: ObjectValue, declared: Declared) -> str:
        each = [
            (self._element(field.key, field.schema, declared.property(field.key)), field.required)
            for field in found.fields
        ]
        return in_any_order(self._lark, each)

    def _element(self, tag: str, schema: object, declared: Declared) -> str:
        """The name of a rule: white space and an element."""
        key = id(schema), tag
        if key not in self._rules:
            name = self._lark.reserve()
            self._rules[key] = schema, name
            opens = self._lark.text(f"{self._syntax.prefix}<{_proper(tag)}>")
            value = self._value(tag, schema, declared)
            self._lark.define(name, f"{self._lark.gap} {opens} {value}")
        return self._rules[key][1]

    def _value(self, tag: str, schema: object, declared: Declared) -> str:
        """A value with its close tag."""
        if self._depth >= DEEPEST:
            raise Unwritable(f"{self._tool.name}: schemas nested deeper than {DEEPEST} levels")
        self._depth += 1
        found = self._tool.reading.alternatives(schema)
        holds = declared.types != coercion.STRING  # else whatever it says is read as text
        nested = [self._nested(tag, each, declared) for each in found if holds and _holds(each)]
        flat = not holds or not all(map(_holds, found))
        options = [*nested, *([self._flat(tag, schema, declared)] if flat else [])]
        self._depth -= 1
        if not any(options):
            raise Unwritable(f"{self._tool.name}: no value of <{tag[:60]}> can be written")
        return one_of(filter(None, options))

    def _flat(self, tag: str, schema: object, declared: Declared) -> str:
        """A scalar or a string. Where it isn't only that, a tag in it would be a child."""
        types, lark, reading = declared.types, self._lark, self._tool.reading
        found = reading.alternatives(schema)
        free = any(isinstance(each, StringValue) and each.free for each in found)
        if declared.is_string or not free:
            prefix = self._syntax.prefix
            frame = raw.Frame((f"{prefix}</{tag}>",), (prefix,))
            return raw.by_schema(lark, reading, schema, types - {"object", "array"}, frame)
        text = f"{until(lark, [self._syntax.prefix])} {literal(f'</{tag}>')}"
        # Nothing at all would be an empty object or array.
        return f"{self._visible()} {text}" if types & {"object", "array"} else text

    def _visible(self) -> str:
        """White space and one character, not one that begins a tag."""
        head = self._lark.pieces(self._syntax.prefix)[0]
        begins = pattern_of(head[0]) if isinstance(head, str) else ""
        return self._lark.regex(rf"{SPACE}*[^\s\x1c-\x1f{begins}]")

    def _nested(self, tag: str, found: Alternative, declared: Declared) -> str:
        """An array or an object; "" where it can't be written."""
        close = self._close(tag)
        match found:
            case ArrayValue():
                item = self._element(_ITEM, found.each, declared.items())
                most = "" if found.most is None else max(found.most, found.fewest)
                return f"{item}{{{found.fewest},{most}}} {self._lark.gap} {close}"
            case ObjectValue():
                return f"{self._fields(found, declared)} {self._lark.gap} {close}"
            case _:
                return ""


def _holds(found: Alternative) -> bool:
    return isinstance(found, ArrayValue | ObjectValue)


def _proper(tag: str) -> str:
    if not tag or set(tag) & set("<>/ \n"):
        raise Unwritable(f"{tag[:60]!r} can't be written as a tag")
    return tag
