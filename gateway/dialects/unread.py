"""The fields inside of lists and objects that nobody here reads. Knows JSON, not what a field
means.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from gateway.dialects.fields import MOST_NAMED

# What clients send back that came in an answer and asks for nothing, and other servers' hints.
HARMLESS = frozenset({"id", "index", "type", "object", "cache_control", "annotations", "created"})
LONGEST = 200  # characters of a name


def unread(values: Mapping[str, Any], shape: type[msgspec.Struct]) -> tuple[str, ...]:
    """The paths below the fields of `shape` that it doesn't read, as `messages[].seen`: each once,
    `MOST_NAMED` at most. Empty values ask for nothing. Linear in the values.
    """
    found: dict[str, None] = {}
    for name, kind in _fields(shape):
        for path in _unread(values.get(name), kind, name):
            found[path] = None
            if len(found) == MOST_NAMED:
                return tuple(found)
    return tuple(found)


@cache
def _fields(shape: type[msgspec.Struct]) -> tuple[tuple[str, inspect.Type], ...]:
    """Names and kinds. Finding them out takes a millisecond, and shapes are few."""
    fields = msgspec.structs.fields(shape)
    return tuple((field.encode_name, inspect.type_info(field.type)) for field in fields)


def _unread(value: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    """As deep as `kind` is, however deep the value."""
    match kind, value:
        case inspect.UnionType(types), _:
            for one in types:
                yield from _unread(value, one, path)
        case inspect.StructType(fields=fields), dict():
            kinds = {field.encode_name: field.type for field in fields}
            for name, item in value.items():
                if name in kinds:
                    yield from _unread(item, kinds[name], f"{path}.{name}")
                elif item and name not in HARMLESS:
                    yield f"{path}.{name}"[:LONGEST]
        case inspect.ListType(item_type=item_kind), list():
            for item in value:
                yield from _unread(item, item_kind, f"{path}[]")
        case _:
            return
