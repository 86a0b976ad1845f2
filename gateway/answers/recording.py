"""The recording of one request for inspectors: its prompts, what the engine wrote, and what was
made of it, noted where it passes.

Texts grow in buffers, so that a long answer is no crowd of small objects. What is noted is bounded;
behind the bound nothing is, and `is_cut` says so. It knows neither who asked nor how long it took.
"""

from array import array
from collections.abc import Iterator, Sequence
from io import StringIO
from sys import getsizeof
from typing import Any, Literal, TypeAlias

import msgspec

from backends.contract.beginnings import common_length
from backends.contract.protocol import Ended, Piece
from backends.contract.samplers import Sampling
from config.values import alike
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
)
from gateway.terms.request import Unapplied

MOST_PIECES = 32_768  # of a choice
MOST_TEXT = 1 << 20  # characters of a choice
PART = 256  # about the bytes of a part, its text aside
TOKEN = 36  # bytes of a token in a prompt: its number, and its place in the tuple

NO_PIECE = Piece("")
Place: TypeAlias = tuple[int, int]  # of characters of the raw text: the first, and behind the last
PartKind: TypeAlias = Literal["reasoning", "content", "call"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of an answer as its client got it: reasoning, content, or a call's arguments."""

    kind: PartKind
    text: str
    name: str = ""  # of the call's tool
    id: str = ""  # of the call
    is_whole: bool = True  # False: a call that was never closed
    known_at: int = 0  # so much of the raw text was written when it was known to begin
    first: int = 0  # characters of it that were known then


class Span(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """Characters of the raw text, and what they became: some of `part`, or a marker (None)."""

    begin: int
    end: int
    part: int | None


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one choice. `raw`: all that the engine wrote, markers too; its pieces have
    `lengths` characters and `counts` of `tokens` each. None: another server split it.
    """

    prompt: int  # which of the request's prompts it answers
    raw: str | None
    lengths: Sequence[int]
    counts: Sequence[int]
    tokens: Sequence[int]
    parts: Sequence[Part]
    finished: Finished | None
    ended: Ended | None
    is_cut: bool


class RecordedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt as the engine read it. `text`: what the template made; "" for a raw prompt."""

    tokens: tuple[int, ...]
    text: str = ""
    images: int = 0


class Split(msgspec.Struct, frozen=True):
    """The family of formats by whose rules an answer is split, and why it was taken."""

    format: str
    why: str


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What all choices of an answer share."""

    backend: str = ""
    sampling: Sampling | None = None
    max_tokens: int | None = None
    split: Split | None = None
    unapplied: Sequence[Unapplied] = ()


class _OpenPart:
    """A part that may grow."""

    def __init__(self, kind: PartKind, known_at: int, opened: ToolOpened | None = None) -> None:
        self.kind = kind
        self.known_at = known_at
        self.opened = opened
        self.first = 0
        self.is_whole = opened is None
        self._text = StringIO()

    def write(self, text: str) -> None:
        self.first = self.first or len(text)
        self._text.write(text)

    def seen(self) -> Part:
        return alike(Part, self)(
            text=self._text.getvalue(),
            name=self.opened.name if self.opened else "",
            id=self.opened.id if self.opened else "",
        )


class RecordedChoice:
    """One choice. `has_raw`: its pieces come from an engine, and not split from elsewhere."""

    def __init__(self, prompt: int = 0, *, has_raw: bool = True) -> None:
        self.prompt = prompt
        self._has_raw = has_raw
        self._raw = StringIO()
        self._pieces = self._written = self._said = 0  # so many; characters, raw and as parts
        self._lengths, self._counts, self._tokens = array("I"), array("I"), array("I")
        self._parts: list[_OpenPart] = []
        self._calls: dict[int, _OpenPart] = {}
        self.finished: Finished | None = None
        self.ended: Ended | None = None
        self.is_cut = False

    def add(self, piece: Piece, events: Sequence[Event]) -> None:
        """A piece, and what it became."""
        if self.is_cut:
            return
        self._pieces += 1
        self._written += len(piece.text)
        if self._has_raw:
            self._raw.write(piece.text)
            self._lengths.append(len(piece.text))
            self._counts.append(len(piece.tokens))
            self._tokens.extend(piece.tokens)
        for event in events:
            self._take(event)
        self.is_cut = self._said > MOST_TEXT or self._pieces >= MOST_PIECES

    def more(self, events: Sequence[Event]) -> None:
        """Events that no piece of an engine here belongs to."""
        self.add(NO_PIECE, events)

    def end(self, ended: Ended, events: Sequence[Event]) -> None:
        """The engine's end, and the last events."""
        self.ended = ended
        self.add(NO_PIECE, events)
        if self.is_cut and events and isinstance(events[-1], Finished):
            self.finished = events[-1]

    @property
    def size(self) -> int:
        """About so many bytes are held."""
        arrays = (self._lengths, self._counts, self._tokens)
        texts = self._written + self._said + PART * len(self._parts)
        return texts + sum(map(getsizeof, arrays))

    def seen(self) -> Written:
        """All of it until now."""
        return alike(Written, self)(
            raw=self._raw.getvalue() if self._has_raw else None,
            lengths=self._lengths[:],
            counts=self._counts[:],
            tokens=self._tokens[:],
            parts=tuple(part.seen() for part in self._parts),
        )

    def _take(self, event: Event) -> None:
        match event:
            case Reasoning(text) | Content(text):
                kind: PartKind = "reasoning" if isinstance(event, Reasoning) else "content"
                if not self._parts or self._parts[-1].kind != kind:
                    self._parts.append(_OpenPart(kind, self._written))
                self._parts[-1].write(text)
                self._said += len(text)
            case ToolOpened(index=index):
                self._calls[index] = part = _OpenPart("call", self._written, event)
                self._parts.append(part)
            case ArgumentsGrown(index, fragment):
                if index in self._calls:
                    self._calls[index].write(fragment)
                    self._said += len(fragment)
            case ToolClosed(index):
                if index in self._calls:
                    self._calls[index].is_whole = True
            case Finished():
                self.finished = event


def spans(written: Written) -> list[Span]:
    """The raw text from its beginning to its end, by what became of it. A part is looked for where
    it was known to begin; text that was changed on its way is a marker's.
    """
    raw, found, place = written.raw or "", list[Span](), 0
    for number, part in enumerate(written.parts):
        places = _of_call(raw, place, part) if part.kind == "call" else _of_text(raw, place, part)
        for begin, end in places:
            if begin > place:
                found.append(Span(place, begin, None))
            found.append(Span(begin, end, number))
            place = end
    if place < len(raw):
        found.append(Span(place, len(raw), None))
    return found


def _of_text(raw: str, place: int, part: Part) -> Iterator[Place]:
    begin = raw.rfind(part.text[: part.first], place, part.known_at) if part.first else -1
    if begin < 0:
        begin = raw.find(part.text, place)
    if begin >= 0:
        yield begin, begin + common_length(raw[begin : begin + len(part.text)], part.text)


def _of_call(raw: str, place: int, part: Part) -> Iterator[Place]:
    """Its name and its arguments: as they were written, spaces aside, or value by value."""
    begin = raw.rfind(part.name, place, part.known_at) if part.name else -1
    if begin >= 0:
        place = begin + len(part.name)
        yield begin, place
    if (whole := _spaced(raw, place, part.text)) is not None:
        yield whole
        return
    for value in _values(part.text):
        if (begin := raw.find(value, place)) >= 0:
            place = begin + len(value)
            yield begin, place


def _spaced(raw: str, place: int, text: str) -> Place | None:
    """Where `text` stands, whatever spaces are in both. It is tried where it may begin first."""
    wanted = "".join(text.split())
    if not wanted or (begin := raw.find(wanted[0], place)) < 0:
        return None
    end = begin
    for character in wanted:
        while end < len(raw) and raw[end].isspace():
            end += 1
        if end >= len(raw) or raw[end] != character:
            return None
        end += 1
    return begin, end


def _values(text: str) -> Iterator[str]:
    """The values of an object of arguments, those without texts in them aside."""
    try:
        values = msgspec.json.decode(text, type=dict[str, Any]).values()
    except msgspec.DecodeError:  # it was never closed
        return
    for value in values:
        if isinstance(value, str) and value:
            yield value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


class Recording(msgspec.Struct, eq=False):
    """One request's: every answer that it took, one after the other, each with its choices."""

    prompts: list[RecordedPrompt] = []
    choices: list[RecordedChoice] = []
    terms: Terms = Terms()  # of the newest answer

    def answer(self, terms: Terms, prompts: Sequence[RecordedPrompt]) -> int:
        """An answer begins; the number of its first prompt."""
        self.terms = terms
        self.prompts += prompts
        return len(self.prompts) - len(prompts)

    def choice(self, prompt: int, *, has_raw: bool = True) -> RecordedChoice:
        """A further one, which answers prompt number `prompt`."""
        self.choices.append(RecordedChoice(prompt, has_raw=has_raw))
        return self.choices[-1]

    @property
    def size(self) -> int:
        """About so many bytes are held."""
        prompts = sum(getsizeof(one.text) + TOKEN * len(one.tokens) for one in self.prompts)
        return prompts + sum(choice.size for choice in self.choices)
