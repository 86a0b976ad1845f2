"""xgrammar's structural tags as they come over the wire: a tree of formats, each a piece of text
(its docs/structural_tag/structural_tag.md). vLLM's older form, `structures` with `triggers`, is
read as the tree that means the same. Formats of single tokens are not taken.
"""

from typing import Any, TypeAlias, Union

import msgspec

from backends.shapes import StructuralTags
from gateway.constraints.limits import SCHEMA_BYTES, SCHEMA_DEPTH
from gateway.errors import InvalidRequest

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


class Sequence(msgspec.Struct, frozen=True, tag="sequence"):
    """One after the other."""

    elements: tuple[Format, ...]


class Or(msgspec.Struct, frozen=True, tag="or"):
    """One of them."""

    elements: tuple[Format, ...]


class Optional(msgspec.Struct, frozen=True, tag="optional"):
    """Once or not at all."""

    content: Format


class Plus(msgspec.Struct, frozen=True, tag="plus"):
    """Once or more often."""

    content: Format


class Star(msgspec.Struct, frozen=True, tag="star"):
    """Any number of times."""

    content: Format


class Repeat(msgspec.Struct, frozen=True, tag="repeat"):
    """From `min` to `max` times; -1: without an end."""

    content: Format
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
        SCHEMA_DEPTH.check(_depth(plain), shape.field)
        if isinstance(plain, dict) and "structures" in plain:
            return _newer(msgspec.json.decode(shape.request, type=_Older))
        return msgspec.json.decode(shape.request, type=_Request).format
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{shape.field}: {error}", param=shape.field) from None


def _newer(older: _Older) -> Format:
    tags = (Tag(each.begin, JsonFormat(each.schema), each.end) for each in older.structures)
    return TriggeredTags(older.triggers, tuple(tags))


def _depth(value: Any) -> int:
    """Levels of nesting, found level by level."""
    level, depth = [value], 0
    while level := [
        inner
        for node in level
        if isinstance(node, dict | list)
        for inner in (node.values() if isinstance(node, dict) else node)
    ]:
        depth += 1
    return depth
