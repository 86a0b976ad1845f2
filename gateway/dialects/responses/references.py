"""Item references: items that are named instead of sent. An item's id contains the 32 digits of the
response or conversation that holds it, so that it is found without an index.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from gateway.dialects.responses.wire import Item
from gateway.errors import InvalidRequest, NotFound, TooLarge

REFERENCE = "item_reference"
LONGEST = 64 << 20  # bytes of all items that stand for references; as the largest body

_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]+", re.ASCII)


class _Named(msgspec.Struct, frozen=True):
    id: Any


def numbered(home: str) -> Callable[[], str]:
    """Names of items that are kept in what `home` (32 digits) names, one after the other."""
    numbers = count()
    return lambda: f"{home}{next(numbers):04x}"


def home_of(name: str) -> str | None:
    """What an item of that id is kept in; None for an id that was not made here."""
    found = _ID.fullmatch(name)
    return found[1] if found else None


def is_reference(item: Item) -> bool:
    """OpenAI lets the type be left out."""
    kind = item.get("type")
    return kind == REFERENCE or (kind is None and "role" not in item and "id" in item)


def referred(items: Sequence[Item]) -> list[str]:
    """The ids that `items` refer to. Raises InvalidRequest."""
    found = []
    for k, item in enumerate(items):
        if is_reference(item):
            if not isinstance(item.get("id"), str):
                raise InvalidRequest(f"input[{k}].id: Expected an id.", param=f"input[{k}].id")
            found.append(item["id"])
    return found


def among(parts: Sequence[bytes], wanted: Sequence[str]) -> dict[str, Item]:
    """The items that are `wanted`, of `parts` (arrays of items, as JSON). Raises TooLarge where
    those that stand for references are too long together: one may be named many times.
    """
    times = Counter(wanted)
    found: dict[str, Item] = {}
    size = 0
    for part in parts:
        for raw in msgspec.json.decode(part, type=list[msgspec.Raw]):
            name = msgspec.json.decode(raw, type=_Named).id
            if isinstance(name, str) and name in times and name not in found:
                size += len(raw) * times[name]
                refuse_long(size)
                found[name] = msgspec.json.decode(raw)
    return found


def refuse_long(size: int) -> None:
    """Raises TooLarge."""
    if size > LONGEST:
        text = f"input: The items that are referred to have more than {LONGEST:,} bytes together."
        raise TooLarge(text, param="input")


def resolved(items: Sequence[Item], found: Mapping[str, Item]) -> tuple[Item, ...]:
    """`items` with those of `found` in the place of references. Raises NotFound."""
    whole = []
    for k, item in enumerate(items):
        if is_reference(item) and item["id"] not in found:
            text = f"input[{k}].id: There is no item {item['id']!r:.80}; kept are items of stored"
            raise NotFound(f"{text} responses and of conversations.", param=f"input[{k}].id")
        whole.append(found[item["id"]] if is_reference(item) else item)
    return tuple(whole)
