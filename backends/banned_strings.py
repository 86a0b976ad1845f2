"""Strings that must not occur in an answer: generation is rewound to before them and continued
differently.

A job's newest tokens are held back while their text may still become such a string. Where it does,
the driver has the engine take them back, down to the token in which the string begins, and that
token may not come at its place again (`Verdict`). So what is handed on never held the string. Upper
and lower case are the same, as in exllamav2. What was forced upon the job begins no string.

Where a model keeps writing it (`bounds.MOST_TRIES`, `bounds.SPARE_REWINDS`) the string ends the
answer as a stop string would: neither does it come nor does the job go on for ever. Knows no
engine.
"""

import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from backends.bounds import MOST_TRIES, SPARE_REWINDS
from backends.protocol import TokenLogprob

Trie: TypeAlias = dict[str, Any]  # by the next character; under "" the string that ends there


class Taken(msgspec.Struct, frozen=True):
    """A token of the answer; see `Transcript.add`."""

    token: int
    text: bytes
    logprob: TokenLogprob | None = None
    ends: bool = False
    last: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """What one more token led to: tokens that are now final; and either nothing more, or that the
    newest `back` tokens are to be taken back and none of `banned` may come in their place, or that
    the answer ends, because it can't go on without the string `stop`.
    """

    final: Sequence[Taken] = ()
    back: int = 0
    banned: frozenset[int] = frozenset()
    stop: str | None = None


class _Held(msgspec.Struct):
    taken: Taken
    begins: bool  # a string may begin in it
    since: int = 0  # the place where the oldest of the strings begins that might come before it


class BannedStrings:
    """Of one job. `limit`: tokens that it may have."""

    def __init__(self, strings: tuple[str, ...], limit: int) -> None:
        self._trie = _trie(strings)
        self._limit = limit
        self._final = 0  # tokens released
        self._forced = 0  # tokens to come that are not the model's own
        self._tried: dict[int, set[int]] = {}  # by place in the answer: what may not stand there
        self._rewound = 0  # tokens taken back, all together
        self._tail = b""  # of what was released: its last bytes may begin a character
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begin([])

    def _begin(self, held: Sequence[_Held]) -> None:
        """Nothing is held back but `held`."""
        self._held: list[_Held] = []
        self._begun: list[tuple[Trie, int]] = []  # strings that may come, and where they begin
        self._inside = 0  # tokens, the newest ones, that are parts of one character
        self._decoder.reset()
        self._decoder.decode(self._tail)
        for one in held:
            self._read(one)

    def forced(self, count: int) -> None:
        """The next `count` tokens are forced, not sampled."""
        self._forced = count

    @property
    def holds(self) -> bool:
        """Whether tokens are held back."""
        return bool(self._held)

    def forget(self) -> int:
        """What is held back was taken back for another reason; how many tokens."""
        count = len(self._held)
        self._begin([])
        self._forced = 0
        return count

    def add(self, taken: Taken) -> Verdict:
        """Take one token."""
        forced, self._forced = self._forced > 0, max(0, self._forced - 1)
        if taken.ends:
            return Verdict((*self._let_go(len(self._held)), taken))
        found = self._read(_Held(taken, begins=not forced))
        if found is not None:
            return self._avoided(*found)
        if taken.last or self._final + len(self._held) >= self._limit:
            return Verdict(self._let_go(len(self._held)))
        return Verdict(self._let_go(self._free()))

    def _free(self) -> int:
        """How many of the held are no part of a string that may come, here or at a place that may
        be gone back to.
        """
        end = self._final + len(self._held)
        place = min((place for _, place in self._begun), default=end - self._inside)
        while place < end and (since := self._held[place - self._final].since) < place:
            place = since
        return place - self._final

    def _read(self, one: _Held) -> tuple[str, int] | None:
        """Hold it back. The first string that ends in it, and the place of the token in which it
        begins.
        """
        newest = self._final + len(self._held)
        one.since = min((place for _, place in self._begun), default=newest - self._inside)
        self._held.append(one)
        first = max(self._final, newest - self._inside)  # where the next character begins
        text = self._decoder.decode(one.taken.text)
        unfinished = bool(self._decoder.getstate()[0])
        self._inside = self._inside + 1 if unfinished and not text else int(unfinished)
        for character in map(_lower, text):
            begun = [*self._begun, (self._trie, first)] if one.begins else self._begun
            self._begun = [(trie[character], at) for trie, at in begun if character in trie]
            found = next(((trie[""], at) for trie, at in self._begun if "" in trie), None)
            if found is not None:
                return found
            first = newest
        return None

    def _avoided(self, string: str, place: int) -> Verdict:
        """The string has come: back before it, unless that has been tried too often."""
        at = place - self._final
        back, token = len(self._held) - at, self._held[at].taken.token
        self._tried = {one: tokens for one, tokens in self._tried.items() if one <= place}
        tried = self._tried.setdefault(place, set())
        self._rewound += back
        spent = self._rewound > SPARE_REWINDS + 2 * place
        if token in tried or len(tried) >= MOST_TRIES or spent:
            return Verdict(self._let_go(at), stop=string)
        tried.add(token)
        self._forced = 0
        self._begin(self._held[:at])
        return Verdict(self._let_go(self._free()), back, frozenset(tried))

    def _let_go(self, count: int) -> list[Taken]:
        gone, self._held = self._held[:count], self._held[count:]
        self._final += count
        if gone:
            self._tail = (self._tail + b"".join(one.taken.text for one in gone))[-3:]
        return [one.taken for one in gone]


@lru_cache(8)
def _trie(strings: tuple[str, ...]) -> Trie:
    """Read only: all choices of a request share it."""
    root: Trie = {}
    for string in strings:
        node = root
        for character in map(_lower, string):
            node = node.setdefault(character, {})
        node[""] = string
    return root


def _lower(character: str) -> str:
    """Of one character one: lengths must not change."""
    lower = character.lower()
    return lower if len(lower) == 1 else character
