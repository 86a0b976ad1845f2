"""Strings that track which of their characters a client wrote, through all operations of a
template.

Only a template may write control tokens: what a client spells like one stays plain text. So the
origin of each character of a prompt must be known. A `TracedText` is an ordinary str for
comparisons, searches and `len`; operations that make a new text carry the origin along. Where the
origin of each character is unknown after an operation, the whole result counts as the client's.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Self, SupportsIndex, TypeAlias

from gateway.terms.request import Message, TextPart

BLOT = "\x00"

Spans: TypeAlias = tuple[tuple[int, int], ...]  # (start, end) of a client's characters, in order


class TracedText(str):
    """A text of which the characters in `spans` are the client's."""

    __slots__ = ("spans",)

    spans: Spans

    def __new__(cls, text: str, spans: Spans) -> Self:
        made = super().__new__(cls, plain(text))
        made.spans = spans
        return made

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        part = str.__getitem__(self, key)
        if not isinstance(key, slice):
            key = slice(at := key.__index__() % len(self), at + 1)
        start, stop, step = key.indices(len(self))
        if step != 1:
            return clients(part) if self.spans else part
        return traced(part, _clipped(self.spans, start, stop))

    def __iter__(self) -> Iterator[str]:
        return (self[at] for at in range(len(self)))

    def __add__(self, other: str) -> str:
        return joined((self, other))

    def __radd__(self, other: str) -> str:
        return joined((other, self))


def plain(text: str) -> str:
    """The bare text, of type str itself."""
    return str.__str__(text)


def spans_of(text: str) -> Spans:
    """Where the client's characters are; none in an ordinary str."""
    return text.spans if isinstance(text, TracedText) else ()


def traced(text: str, spans: Spans) -> str:
    """`text` with that origin; an ordinary str where nothing of it is the client's."""
    return TracedText(text, spans) if spans else plain(text)


def clients(text: str) -> str:
    """`text`, all of it the client's."""
    return traced(text, ((0, len(text)),) if text else ())


def made_of(result: str, source: Any) -> str:
    """`result`, made of `source` by what loses the places: all of it the client's if any is."""
    return clients(result) if is_traced(source) else result


def framed(text: str) -> str:
    """`text` with the client's characters masked, in place: what the template wrote."""
    return masked(plain(text), spans_of(text))


def masked(text: str, spans: Spans) -> str:
    """`text` with other characters in `spans`, such that stand in no marker."""
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        pieces += (text[at:start], BLOT * (end - start))
        at = end
    return "".join((*pieces, text[at:]))


def text_of(message: Message) -> str:
    """All text parts of `message`, joined by newlines."""
    return joined((part.text for part in message.parts if isinstance(part, TextPart)), "\n")


def from_client(value: Any) -> Any:
    """`value` (JSON) with all texts in it the client's, dict keys too. What is traced stays so."""
    match value:
        case TracedText():
            return value
        case str():
            return clients(value)
        case Mapping():
            return {from_client(key): from_client(item) for key, item in value.items()}
        case list() | tuple():
            return [from_client(item) for item in value]
        case _:
            return value


def joined(pieces: Iterable[str], separator: str = "") -> str:
    """As `separator.join(pieces)`."""
    texts = list(pieces)
    spans: list[tuple[int, int]] = []
    at = 0
    for index, text in enumerate(texts):
        if index:
            _append(spans, separator, at)
            at += len(separator)
        _append(spans, text, at)
        at += len(text)
    return traced(plain(separator).join(texts), tuple(spans))


def stripped(text: str, characters: str | None = None, *, left: bool, right: bool) -> str:
    """As `str.strip`, `str.lstrip` (left alone), `str.rstrip` (right alone)."""
    start, end = 0, len(text)
    if right:
        end = len(str.rstrip(text, characters))
    if left:
        start = min(end, len(text) - len(str.lstrip(text, characters)))
    return text[start:end]


def split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """As `str.split`."""
    return _located(text, str.split(text, sep, maxsplit), sep)


def rsplit(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """As `str.rsplit`."""
    return _located(text, str.rsplit(text, sep, maxsplit), sep)


def splitlines(text: str, keepends: bool = False) -> list[str]:  # noqa: FBT001, FBT002 - str's own
    """As `str.splitlines`."""
    return _located(text, str.splitlines(text, keepends), None)


def partition(text: str, separator: str) -> tuple[str, str, str]:
    """As `str.partition`."""
    return _parted(text, str.partition(text, separator))


def rpartition(text: str, separator: str) -> tuple[str, str, str]:
    """As `str.rpartition`."""
    return _parted(text, str.rpartition(text, separator))


def replaced(text: str, old: str, new: str, count: int = -1) -> str:
    """As `str.replace`."""
    if not old:
        return made_of(str.replace(text, old, new, count), (text, new))
    return joined(split(text, old, count), new)


def recased(change: Callable[[str], str]) -> Callable[[str], str]:
    """`change` (upper, lower…) for traced texts. Where the length changes, the places are lost."""

    def changed(text: str) -> str:
        result = change(text)
        if not is_traced(text):
            return result
        return traced(result, spans_of(text)) if len(result) == len(text) else clients(result)

    return changed


def is_traced(value: Any) -> bool:
    """Whether a client's characters are in `value`, or anywhere below it."""
    match value:
        case str():
            return isinstance(value, TracedText)
        case Mapping():
            return any(is_traced(key) or is_traced(item) for key, item in value.items())
        case list() | tuple() | set() | frozenset() | KeysView() | ValuesView() | ItemsView():
            return any(map(is_traced, value))
        case _:
            return False


def _append(spans: list[tuple[int, int]], text: str, at: int) -> None:
    for start, end in spans_of(text):
        if spans and spans[-1][1] == at + start:
            spans[-1] = (spans[-1][0], at + end)
        else:
            spans.append((at + start, at + end))


def _clipped(spans: Spans, start: int, stop: int) -> Spans:
    return tuple(
        (max(begin, start) - start, min(end, stop) - start)
        for begin, end in spans
        if begin < stop and end > start and start < stop
    )


def _located(text: str, pieces: list[str], separator: str | None) -> list[str]:
    """`pieces` of `text`, in its order, with their origin."""
    if not isinstance(text, TracedText):
        return pieces
    located: list[str] = []
    at = 0
    for piece in pieces:
        at = str.find(text, piece, at) if separator is None else at
        located.append(text[at : at + len(piece)])
        at += len(piece) + len(separator or "")
    return located


def _parted(text: str, parts: tuple[str, str, str]) -> tuple[str, str, str]:
    head, middle, _ = parts
    at = len(head) + len(middle)
    return text[: len(head)], traced(middle, spans_of(text[len(head) : at])), text[at:]
