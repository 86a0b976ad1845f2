"""The fields inside of lists and objects that nobody here reads. Knows JSON, not what a field
means.
"""

from collections.abc import Iterator, Mapping
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
    for field in msgspec.structs.fields(shape):
        kind = inspect.type_info(field.type)
        for path in _unread(values.get(field.encode_name), kind, field.encode_name):
            found[path] = None
            if len(found) == MOST_NAMED:
                return tuple(found)
    return tuple(found)


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
