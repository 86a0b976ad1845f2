"""Text that arrives in pieces, read as if it were whole.

A parser is a generator: ordinary top-down code that is suspended (`yield`) where the text ends and
goes on when more has come. So no parser has to know where its input was cut. This module knows no
format.

A model's output is untrusted input. Every method here reads each character once: what it leaves
unread is at most one marker long, what it gathers is at most `LONGEST` characters (white space and
what goes to a sink excepted), and no pattern but one repeated character class is ever applied to
unread text. A parser that reads by these methods alone, in loops and never by calling itself for
what is nested, takes time in proportion to the text.
"""

import re
import sys
from collections.abc import Callable, Generator
from functools import lru_cache
from io import StringIO
from typing import TypeAlias, TypeVar

# A set of marker texts: where the next one is, and which tail of a text may still become one.
#
# Knows nothing of what a marker means.


class Markers:
    """Finds the first of several texts; of those that start at the same place, the longest."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        longest_first = sorted(texts, key=len, reverse=True)
        self._longest = max(map(len, texts), default=0)
        self._prefixes = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def search(self, text: str, start: int) -> re.Match[str] | None:
        """The first marker at or after `start`."""
        return self._pattern.search(text, start)

    def held_from(self, text: str, start: int) -> int:
        """Where the longest tail begins that is a proper prefix of a marker; the end if none is."""
        begin = max(start, len(text) - self._longest + 1)
        ends = (at for at in range(begin, len(text)) if text[at:] in self._prefixes)
        return next(ends, len(text))


@lru_cache(maxsize=512)
def markers_of(*texts: str) -> Markers:
    """The set of these texts; made once, because making it is slower than using it.

    The texts are those of the format table, never the model's: what it writes would stay here.
    """
    return Markers(texts)


Result = TypeVar("Result")
Parsing: TypeAlias = Generator[None, None, Result]

SPACE = re.compile(r"\s*+")
# Characters of a name, a tag, a bare word, a number: what has to be whole to be used.
LONGEST = 4096


class Malformed(Exception):
    """What came is no call of the expected syntax. The reader stands before the fault."""


class Reader:
    """The unread text, and where reading stands in it.

    The owner of the reader calls `append` and then resumes the parser; `end` says that no more will
    come. `keep` starts a record of what is read, so that it can be given back when it turns out to
    be no call.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._keeping = False
        self._before = ""  # the record up to the first piece, and from there on
        self._kept: StringIO | None = None
        self._mark = 0

    def append(self, text: str) -> None:
        """Adds text that has arrived. What was read is forgotten, so the cost is the text's own."""
        if self._keeping and self.at > self._mark:
            if self._kept is None:
                self._kept = StringIO()
                self._kept.write(self._before)
            self._kept.write(self.text[self._mark : self.at])
        self.text = self.text[self.at :] + text
        self.at = self._mark = 0

    def end(self) -> None:
        """Says that no more text will come."""
        self.ended = True

    @property
    def waiting(self) -> int:
        """Bytes that are unread, or on record. Linear in the record."""
        record = self.kept() if self._keeping else ""
        return len((record + self.text[self.at :]).encode())

    @property
    def over(self) -> bool:
        """Everything is read and no more will come."""
        return self.ended and self.at == len(self.text)

    def keep(self, already_read: str = "") -> None:
        """Starts the record anew, with `already_read` in front."""
        self._keeping = True
        self._before = already_read
        self._kept = None
        self._mark = self.at

    def forget(self) -> None:
        """Ends the record."""
        self._keeping = False
        self._kept = None

    def kept(self) -> str:
        """What was read since `keep`."""
        assert self._keeping
        before = self._before if self._kept is None else self._kept.getvalue()
        return before + self.text[self._mark : self.at]

    def peek(self) -> Parsing[str]:
        """The next character, not consumed; "" at the end."""
        while self.at >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def run(self, pattern: re.Pattern[str]) -> Parsing[str]:
        """The longest stretch of `pattern`, which must be one repeated character class.

        Raises Malformed beyond `LONGEST` characters.
        """
        taken = yield from self._gathered(pattern, LONGEST + 1)
        if len(taken) > LONGEST:
            raise self.fault(f"more than {LONGEST} characters in one word")
        return taken

    def space(self) -> Parsing[str]:
        """White space, possibly none."""
        return (yield from self._gathered(SPACE, sys.maxsize))

    def spaced(self, parsing: Parsing[Result]) -> Parsing[Result]:
        """What it gives, which white space may surround."""
        yield from self.space()
        found = yield from parsing
        yield from self.space()
        return found

    def _gathered(self, pattern: re.Pattern[str], most: int) -> Parsing[str]:
        """The longest stretch of `pattern`, though not more than `most` characters."""
        taken = StringIO()
        while True:
            found = pattern.match(self.text, self.at, min(len(self.text), self.at + most))
            assert found is not None  # it may be empty
            self.at = found.end()
            most -= len(found[0])
            taken.write(found[0])
            if self.at < len(self.text) or self.ended or not most:
                return taken.getvalue()
            yield

    def ahead(self, pattern: re.Pattern[str]) -> Parsing[str]:
        """As `run`, not consumed, and cut behind `LONGEST` characters."""
        while True:
            found = pattern.match(self.text, self.at, self.at + LONGEST)
            assert found is not None
            if found.end() < len(self.text) or self.ended:
                return found[0]
            yield

    def looking_at(self, texts: tuple[str, ...]) -> Parsing[str]:
        """The longest of `texts` that comes next, not consumed; "" if none does."""
        while True:
            best, undecided = "", False
            rest = len(self.text) - self.at
            for text in texts:
                if len(text) > rest:
                    undecided = undecided or self.text.startswith(text[:rest], self.at)
                elif len(text) > len(best) and self.text.startswith(text, self.at):
                    best = text
            if self.ended or not undecided:
                return best
            yield

    def ends_inside(self, texts: tuple[str, ...]) -> bool:
        """The output ended before or within one of `texts`. To be asked after `looking_at`."""
        rest = len(self.text) - self.at
        return self.ended and any(
            len(text) >= rest and self.text.startswith(text[:rest], self.at) for text in texts
        )

    def accept(self, texts: tuple[str, ...]) -> Parsing[str]:
        """Consumes the longest of `texts` that comes next; "" if none does."""
        found = yield from self.looking_at(texts)
        self.at += len(found)
        return found

    def accept_close(self, texts: tuple[str, ...]) -> Parsing[bool]:
        """As `accept`, for what ends a call: the end of the output may cut it, or cut it off."""
        if (yield from self.accept(texts)):
            return True
        if cut := self.ends_inside(texts):
            self.at = len(self.text)
        return cut

    def expect(self, *texts: str) -> Parsing[str]:
        """As `accept`. Raises Malformed if none of the texts comes."""
        found = yield from self.accept(texts)
        if not found:
            raise self.fault(f"{' or '.join(map(repr, texts))} expected")
        return found

    def fault(self, what: str) -> Malformed:
        """The exception for text that does not fit, or that never came."""
        return Malformed(f"{what}, but the output ended" if self.over else what)

    def until(self, markers: Markers, sink: Callable[[str], object]) -> Parsing[str]:
        """Hands text to `sink` up to the first marker, which is returned; "" at the end.

        Only the longest tail that may still become a marker waits for more.
        """
        while True:
            found = markers.search(self.text, self.at)
            held = len(self.text) if self.ended else markers.held_from(self.text, self.at)
            if found is not None and (self.ended or found.start() < held):
                self._pass(found.start(), sink)
                self.at = found.end()
                return found.group()
            self._pass(held, sink)
            if self.ended:
                return ""
            yield

    def _pass(self, end: int, sink: Callable[[str], object]) -> None:
        if end > self.at:
            text = self.text[self.at : end]
            self.at = end  # before the sink, which may say that all that was read is delivered
            sink(text)
