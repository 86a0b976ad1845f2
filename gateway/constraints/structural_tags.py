"""Structural tags as a Lark grammar: free text in which a trigger begins a constrained part.

They come over the wire as xgrammar's tree of formats, each a piece of text (its
docs/structural_tag/structural_tag.md). vLLM's older form, `structures` with `triggers`, is read as
the tree that means the same. Formats of single tokens are not taken.

Free text ends where what follows it begins for the first time, which is a lazy terminal of
llguidance's Lark. So it can only stand at the end, or before a text that is known.
"""

from typing import Any, TypeAlias, TypeVar, Union

import msgspec

from backends.contract.conversation import JsonSchema, StructuralTags
from gateway.constraints.effort import level_sizes, values_in
from gateway.constraints.grammars import (
    REPEATS,
    SCHEMA_BYTES,
    SCHEMA_DEPTH,
    TAGS,
    Entry,
    Relaxation,
    ShapeGrammar,
    proven,
    regex_rule,
)
from gateway.constraints.json_schema import schema_grammar
from gateway.constraints.lark import GrammarTooLarge, Lark, literal, one_of
from gateway.constraints.lark_reading import ending_lark
from gateway.terms.errors import InvalidRequest

Format: TypeAlias = Union[
    "ConstString",
    "JsonFormat",
    "RegexFormat",
    "GrammarFormat",
    "AnyText",
    "Sequence",
    "Or",
    "Optional",
    "Plus",
    "Star",
    "Repeat",
    "Tag",
    "TriggeredTags",
    "TagsWithSeparator",
]


class ConstString(msgspec.Struct, frozen=True, tag="const_string"):
    """This very text."""

    value: str


class JsonFormat(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON of a schema. `style` is how it is written."""

    json_schema: msgspec.Raw
    style: str = "json"


class RegexFormat(msgspec.Struct, frozen=True, tag="regex"):
    """What a regex matches."""

    pattern: str


class GrammarFormat(msgspec.Struct, frozen=True, tag="grammar"):
    """A text of a grammar."""

    grammar: str


class AnyText(msgspec.Struct, frozen=True, tag="any_text"):
    """Any text, up to what follows, without the `excludes`."""

    excludes: tuple[str, ...] = ()


class _Several(msgspec.Struct, frozen=True):
    elements: tuple[Format, ...]


class Sequence(_Several, frozen=True, tag="sequence"):
    """One after the other."""


class Or(_Several, frozen=True, tag="or"):
    """One of them."""


class _Repeated(msgspec.Struct, frozen=True):
    content: Format


class Optional(_Repeated, frozen=True, tag="optional"):
    """Once or not at all."""


class Plus(_Repeated, frozen=True, tag="plus"):
    """Once or more often."""


class Star(_Repeated, frozen=True, tag="star"):
    """Any number of times."""


class Repeat(_Repeated, frozen=True, tag="repeat"):
    """From `min` to `max` times; -1: without an end."""

    min: int
    max: int


class Tag(msgspec.Struct, frozen=True, tag="tag"):
    """`content` between markers; `end` may be one of several."""

    begin: str
    content: Format
    end: str | tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """One of these closes it."""
        return (self.end,) if isinstance(self.end, str) else self.end


class TriggeredTags(msgspec.Struct, frozen=True, tag="triggered_tags"):
    """Any text up to a trigger, then one of the tags that begin with it, and so on.

    `at_least_one`: it begins with a tag. `stop_after_first`: it ends after one.
    """

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


class TagsWithSeparator(msgspec.Struct, frozen=True, tag="tags_with_separator"):
    """Tags and nothing else, with `separator` between them."""

    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class _Request(msgspec.Struct, frozen=True):
    format: Format


class _Structure(msgspec.Struct, frozen=True):
    begin: str
    schema: msgspec.Raw = msgspec.Raw(b"{}")
    end: str = ""


class _Older(msgspec.Struct, frozen=True):
    structures: tuple[_Structure, ...]
    triggers: tuple[str, ...]


def read_format(shape: StructuralTags) -> Format:
    """The tree that is asked for. Raises InvalidRequest that names the place."""
    SCHEMA_BYTES.check(len(shape.request), shape.field)
    try:
        plain: Any = msgspec.json.decode(shape.request)
        SCHEMA_DEPTH.check(len(level_sizes(plain, values_in)) - 1, shape.field)
        if isinstance(plain, dict) and "structures" in plain:
            older = msgspec.json.decode(shape.request, type=_Older)
            tags = (Tag(each.begin, JsonFormat(each.schema), each.end) for each in older.structures)
            return TriggeredTags(older.triggers, tuple(tags))
        return msgspec.json.decode(shape.request, type=_Request).format
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest.at(shape.field, error) from None


T = TypeVar("T")
TIMES = {Optional: "?", Plus: "+", Star: "*"}
Ends = tuple[str, ...] | None  # what follows: one of these texts; (): nothing; None: not known


def tags_grammar(shape: StructuralTags, name: str) -> ShapeGrammar:
    """Raises InvalidRequest, see `compiling.grammar_of`. What a schema in a tag relaxes is not
    checked afterwards: the answer isn't read apart.
    """
    rules = _Rules(name, shape.field)
    try:
        start = rules.format(read_format(shape), ())
    except GrammarTooLarge as error:
        raise InvalidRequest.at(shape.field, error) from None
    root: Entry = {"name": name, "lark_grammar": rules.lark.written(start)}
    entries = proven((root, *rules.entries), shape.field)
    return ShapeGrammar(
        name=name, entries=entries, relaxed=tuple(rules.relaxed), closed=tuple(rules.closed)
    )


class _Rules:
    """The rules of one grammar, and the grammars that they refer to."""

    def __init__(self, name: str, field: str) -> None:
        self.name = name
        self.field = field
        self.lark = Lark({})
        self.entries: list[Entry] = []
        self.relaxed: list[Relaxation] = []
        self.closed: list[Relaxation] = []

    def format(self, format: Format, ends: Ends) -> str:
        """The expression of `format` and of the `ends` after it."""
        match format:
            case AnyText(excludes=excludes):
                return self.free(excludes, ends)
            case Sequence(elements=elements):
                return self.sequence(elements, ends)
            case Or(elements=elements):
                return one_of(self.format(each, ends) for each in self.some(elements))
            case TriggeredTags():
                return self.triggered(format, ends)
            case _:
                return f"{self.bounded(format)} {ending(ends)}"

    def bounded(self, format: Format) -> str:
        """The expression of a format that knows its own end."""
        match format:
            case ConstString(value=value):
                return literal(value)
            case JsonFormat():
                return self.schema(format)
            case RegexFormat(pattern=pattern):
                return self.refer(regex_rule(pattern, self.field))
            case GrammarFormat(grammar=grammar):
                return self.refer(ending_lark(grammar, self.field))
            case Optional() | Plus() | Star():
                return f"({self.format(format.content, None)}){TIMES[type(format)]}"
            case Repeat():
                return self.repeat(format)
            case Tag(begin=begin):
                return f"{literal(begin)} {self.format(format.content, format.ends)}"
            case TagsWithSeparator():
                return self.separated(format)
            case _:
                return self.format(format, None)

    def free(self, excludes: tuple[str, ...], ends: Ends) -> str:
        """Any text, and the `ends` that stop it."""
        if ends is None:
            raise self.wrong("free text must come last, or before a text that is known")
        text = self.text(excludes)
        if not any(ends):
            return text
        return self.lazy(f"{text} {ending(ends)}")

    def text(self, excludes: tuple[str, ...]) -> str:
        """A terminal for any text without `excludes`."""
        if not excludes:
            return self.lark.regex("(?s:.*)")
        unwanted = one_of(map(literal, excludes))
        return self.lark.terminal(f"/(?s:.*)/ & ~(/(?s:.*)/ ({unwanted}) /(?s:.*)/)")

    def sequence(self, elements: tuple[Format, ...], ends: Ends) -> str:
        """A known text after a free one is where that ends."""
        written, rest = [], self.some(elements)
        while rest:
            match rest:
                case (AnyText() as free, ConstString(value=value), *others):
                    written.append(self.format(free, (value,)))
                    written += [] if others else [ending(ends)]
                    rest = tuple(others)
                case (first, *others):
                    written.append(self.format(first, None if others else ends))
                    rest = tuple(others)
        return " ".join(written)

    def triggered(self, format: TriggeredTags, ends: Ends) -> str:
        """Text, trigger, the rest of a tag that begins with it; again; text."""
        TAGS.check(len(format.tags), self.field)
        text = self.text(format.excludes)
        calls = self.lark.rule(one_of(self.calls(format, text)))
        whole = one_of(map(self.bounded, format.tags)) if format.at_least_one else ""
        last = self.free(format.excludes, ends)
        if format.stop_after_first:
            return f"{whole} {ending(ends)}" if whole else f"({calls} {ending(ends)} | {last})"
        return f"{whole} {calls}* {last}"

    def calls(self, format: TriggeredTags, text: str) -> list[str]:
        """For each trigger, what comes up to the end of one of its tags."""
        of: dict[str, list[str]] = {trigger: [] for trigger in self.some(format.triggers)}
        for tag in self.some(format.tags):
            trigger = next((each for each in of if each and tag.begin.startswith(each)), None)
            if trigger is None:
                raise self.wrong(f"no trigger begins {tag.begin!r:.200}")
            rest = msgspec.structs.replace(tag, begin=tag.begin[len(trigger) :])
            of[trigger].append(self.bounded(rest))
        heads = {trigger: self.lazy(f"{text} {literal(trigger)}") for trigger in of}
        return [f"{heads[trigger]} {one_of(rests)}" for trigger, rests in of.items() if rests]

    def separated(self, format: TagsWithSeparator) -> str:
        TAGS.check(len(format.tags), self.field)
        tag = self.lark.rule(one_of(map(self.bounded, self.some(format.tags))))
        more = "" if format.stop_after_first else f"({literal(format.separator)} {tag})*"
        return f"({tag} {more})" if format.at_least_one else f"({tag} {more})?"

    def repeat(self, format: Repeat) -> str:
        REPEATS.check(max(format.min, format.max), self.field)
        if format.min < 0 or (format.max < format.min and format.max != -1):
            raise self.wrong("repeat: min is not from 0 to max")
        most = "" if format.max == -1 else format.max
        return f"({self.format(format.content, None)}){{{format.min},{most}}}"

    def schema(self, format: JsonFormat) -> str:
        if format.style != "json":
            raise self.wrong(f"the style {format.style!r:.100} is not taken, only 'json'")
        wanted = JsonSchema(schema=bytes(format.json_schema), field=self.field)
        grammar = schema_grammar(wanted, self.inner())
        self.entries += grammar.entries
        self.relaxed += (msgspec.structs.replace(each, checked=False) for each in grammar.relaxed)
        self.closed += grammar.closed
        return f"@{grammar.name}"

    def refer(self, lark: str) -> str:
        """A grammar of its own."""
        name = self.inner()
        self.entries.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def inner(self) -> str:
        """The name of the next grammar that is referred to."""
        TAGS.check(len(self.entries) + 1, self.field)
        return f"{self.name}_{len(self.entries) + 1}"

    def lazy(self, body: str) -> str:
        """The name of a rule that ends as soon as it can."""
        name = self.lark.reserve()
        self.lark.define(name, body, "[lazy]")
        return name

    def some(self, several: tuple[T, ...]) -> tuple[T, ...]:
        """`several`, of which there is at least one."""
        if not several:
            raise self.wrong("a list of formats, tags, triggers or excludes is empty")
        return several

    def wrong(self, message: str) -> InvalidRequest:
        return InvalidRequest.at(self.field, message)


def ending(texts: Ends) -> str:
    """One of `texts`; nothing where there are none."""
    return one_of(map(literal, texts)) if texts else ""
