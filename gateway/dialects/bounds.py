"""What a body may hold: limits on counts, checked before anything is made of it.

A body of 60 MB may be one long text, or two million messages: decoding those, and every step behind
it, takes a hundred times the time and the memory. So what is counted is what costs: values, names,
objects, and what the APIs have lists of; all of it in the bytes, before they are decoded.
"""

from collections.abc import Iterator, Mapping

import msgspec

from gateway.errors import InvalidRequest, TooLarge


class Sort(msgspec.Struct, frozen=True):
    """Something that a body has many of: each has one of the `marks`."""

    most: int
    marks: tuple[bytes, ...]
    called: str


# A context of a million tokens may be sent as that many ids. Names are the dearest: each is hashed.
SORTS = (
    Sort(1 << 20, (b",",), "values"),
    Sort(1 << 16, (b"{", b"["), "objects and lists"),
    Sort(1 << 17, (b":",), "names"),
)
# The lists of all APIs by their names, and how many objects each may have. A conversation with a
# system prompt, calls and results has a few thousand messages where it fills a long context.
COUNTS: Mapping[str, int] = {
    "messages": 16_384,
    "input": 16_384,  # items; texts and token ids have bounds of their own
    "items": 16_384,
    "tools": 1_024,
    "functions": 1_024,
}
FEW = min(COUNTS.values())
ORDER = 1 << 20  # bytes of a body that is no prompt: an order, a setting

SLICE = 1 << 20  # bytes that are counted at a time: about a millisecond
BACKSLASH = 0x5C


def check_size(body: bytes) -> None:
    """Raises TooLarge for a body of too many values, names or objects, and InvalidRequest for a
    list of too many. Linear; holds the GIL for no longer than a slice, and makes no objects.
    """
    for sort in SORTS:
        # What stands in texts is counted too, until that is too much.
        if _count(body, sort.marks, sort.most) > sort.most and _exceeds(body, sort):
            raise TooLarge(
                f"The body has more than {sort.most:,} {sort.called}; this server takes no more."
            )
    if _count(body, (b"{",), FEW) > FEW:
        _check_lists(body)


def _check_lists(body: bytes) -> None:
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        for name in COUNTS.keys() & fields.keys():
            given = _elements(fields[name])
            if len(given) > COUNTS[name] and _begins(given[0], b"{"):
                raise _too_many(name, len(given))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # whoever decodes it names the fault


def _elements(value: msgspec.Raw) -> list[msgspec.Raw]:
    return msgspec.json.decode(value, type=list[msgspec.Raw]) if _begins(value, b"[") else []


def _begins(value: msgspec.Raw, mark: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == mark


def check_order(body: bytes) -> None:
    """Raises TooLarge for an order that is no order: it is read on the event loop."""
    if len(body) > ORDER:
        raise TooLarge(f"The body has {len(body):,} bytes; this route takes {ORDER:,} at most.")


def _too_many(field: str, count: int) -> InvalidRequest:
    text = f"{field}: Expected at most {COUNTS[field]:,} of them, got {count:,}."
    return InvalidRequest(text, param=field)


def _count(body: bytes, marks: tuple[bytes, ...], enough: int) -> int:
    """How often `marks` occur in `body`; counts until there are more than `enough`."""
    found = 0
    for start in range(0, len(body), SLICE):
        found += sum(body.count(mark, start, start + SLICE) for mark in marks)
        if found > enough:
            break
    return found


def _exceeds(body: bytes, sort: Sort) -> bool:
    """Whether there are too many outside of texts, too."""
    found = 0
    for start, end in _outside_texts(body):
        found += sum(body.count(mark, start, end) for mark in sort.marks)
        if found > sort.most:
            return True
    return False


def _outside_texts(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the JSON is that is no text, from and to. Linear."""
    start = 0
    while (opening := body.find(b'"', start)) >= 0:
        yield start, opening
        closing = body.find(b'"', opening + 1)
        while closing >= 0 and _is_escaped(body, closing):
            closing = body.find(b'"', closing + 1)
        if closing < 0:
            return
        start = closing + 1
    yield start, len(body)


def _is_escaped(body: bytes, place: int) -> bool:
    before = place
    while body[before - 1] == BACKSLASH:  # a quote stands before them
        before -= 1
    return (place - before) % 2 == 1
