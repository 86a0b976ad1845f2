"""From tokens to text, for one job: incremental UTF-8, stop strings across piece boundaries, banned
strings, token limits and the thinking budget, the same for every engine.

It knows no engine: the driver passes it each token's bytes and carries out what it decides.
"""

import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from backends.contract.bounds import MOST_TRIES, SPARE_REWINDS
from backends.contract.protocol import (
    Candidate,
    Cause,
    Generation,
    Piece,
    ThinkingBudget,
    TokenLogprob,
)
from backends.contract.stops import StopFound, StopScanner


class Taken(msgspec.Struct, frozen=True, gc=False):
    """A token of the answer. `ends`: it is an end-of-generation token, its text is not shown;
    `last`: it is none, but nothing can follow it.
    """

    token: int
    text: bytes
    logprob: TokenLogprob | None = None
    ends: bool = False
    last: bool = False


class Written(msgspec.Struct, frozen=True, gc=False):
    """What one token led to: text to hand on, tokens to force next, or the end. `token` and
    `logprob`: see `Ended`.
    """

    piece: Piece | None = None
    cause: Cause | None = None
    stop_string: str | None = None
    token: int | None = None
    logprob: TokenLogprob | None = None
    force: tuple[int, ...] = ()
    void: bool = False  # tokens were taken back, also those that were handed over behind


class BudgetWatch:
    """Counts the tokens between what opens reasoning and what closes it."""

    def __init__(self, budget: ThinkingBudget) -> None:
        self._budget = budget
        self._inside = budget.is_open
        self._spent = 0
        self._done = False
        self._tail = ""
        self._longest = max(map(len, (*budget.opens, *budget.closes)))

    def feed(self, text: str, *, inside_character: bool) -> tuple[int, ...]:
        """The tokens to force after this one: the closing when the budget is spent, once; else
        none. A character that was begun is finished first: no grammar allows anything else in it.
        """
        if self._done:
            return ()
        self._tail += text
        while (end := self._end_of_marker()) is not None:
            self._tail = self._tail[end:]
            self._done = self._inside and not self._budget.anywhere
            self._inside = not self._inside
        if not self._inside or self._done:
            return ()
        self._spent += 1
        if self._spent < self._budget.tokens or inside_character:
            return ()
        self._done = True
        return self._budget.closing

    def _end_of_marker(self) -> int | None:
        """Where the first marker of this phase ends; else what can't begin one is dropped."""
        if self._done:
            return None
        markers = self._budget.closes if self._inside else self._budget.opens
        found = [(at, -len(text)) for text in markers if (at := self._tail.find(text)) >= 0]
        first = self._inside or self._budget.anywhere or self._may_open(self._tail.lstrip())
        if found and first:
            at, length = min(found)
            return at - length
        self._done = not first
        self._tail = self._tail[-self._longest :]  # a marker may be cut by a token border
        return None

    def _may_open(self, text: str) -> bool:
        """The output so far is, or may become, what opens reasoning."""
        return any(text.startswith(one) or one.startswith(text) for one in self._budget.opens)


class Transcript:
    """One job's text so far. `add` is called once per token, in order, by the thread that steps the
    engine.
    """

    def __init__(self, job: Generation, room: int) -> None:
        """`room`: tokens that fit behind the prompt."""
        self.limit = min(job.max_tokens or room, room)  # tokens
        self._at_limit: Cause = (
            "max_tokens" if job.max_tokens and job.max_tokens <= room else "context_full"
        )
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopScanner(job.stop) if job.stop else None
        self._watch = BudgetWatch(job.thinking) if job.thinking else None
        self._tokens: list[int] = []  # not handed on yet: their text is held back
        self._lengths: list[int] = []  # of their texts, in characters
        self._logprobs: list[TokenLogprob] = []
        self._wants_logprobs = job.logprobs is not None
        self._freed = 0  # characters handed on before their token
        self.completion_tokens = 0

    def add(self, taken: Taken) -> Written:
        """Take one token."""
        self.completion_tokens += 1
        token, logprob, last = taken.token, taken.logprob, taken.last
        if logprob is None and self._wants_logprobs:  # it was forced
            logprob = TokenLogprob(Candidate(token, taken.text, 0.0))
        if taken.ends:
            return Written(self._rest(""), "end_token", token=token, logprob=logprob)
        decoded = self._decoder.decode(taken.text)
        watch, inside = self._watch, bool(self._decoder.getstate()[0])
        force = () if watch is None else watch.feed(decoded, inside_character=inside)
        free = decoded if self._stops is None else self._stops.feed(decoded)
        limited = self.completion_tokens >= self.limit
        self._tokens.append(token)
        self._lengths.append(len(decoded))
        if logprob is not None:
            self._logprobs.append(logprob)
        if isinstance(free, StopFound):
            return Written(self._piece(free.before), "stop_string", free.stop)
        if last or limited:
            return Written(self._rest(free), "end_token" if last else self._at_limit)
        return Written(self._part(free) if free else None, force=force)

    def _rest(self, free: str) -> Piece | None:
        """All that is still held back: an unfinished character becomes U+FFFD."""
        held = "" if self._stops is None else self._stops.flush()
        text = free + held + self._decoder.decode(b"", final=True)
        return self._piece(text) if text or self._tokens else None

    def _part(self, text: str) -> Piece:
        """`text` and the tokens that end in it; the others wait for the rest of theirs."""
        self._freed += len(text)
        ended = 0
        for length in self._lengths:
            if length > self._freed:
                break
            self._freed -= length
            ended += 1
        return self._hand_on(text, ended)

    def _piece(self, text: str) -> Piece:
        """`text` and all tokens that wait."""
        return self._hand_on(text, len(self._tokens))

    def _hand_on(self, text: str, count: int) -> Piece:
        piece = Piece(text, tuple(self._tokens[:count]), tuple(self._logprobs[:count]))
        del self._tokens[:count], self._lengths[:count], self._logprobs[:count]
        return piece


Trie: TypeAlias = dict[str, Any]  # by the next character; under "" the string that ends there


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
    """Strings that must not occur in one job's answer: generation is rewound to before them and
    continued differently. `limit`: tokens that it may have.

    The newest tokens are held back while their text may still become such a string. Where it does,
    the driver has the engine take them back, down to the token in which the string begins, and that
    token may not come at its place again (`Verdict`). So what is handed on never held the string.
    Upper and lower case are the same, as in exllamav2. What was forced upon the job begins no
    string.

    Where a model keeps writing it (`bounds.MOST_TRIES`, `bounds.SPARE_REWINDS`) the string ends the
    answer as a stop string would: neither does it come nor does the job go on for ever.
    """

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
