"""From tokens to text, for one job: detokenization, stop strings and limits, the same for every
engine.

Incremental UTF-8, stop strings across piece boundaries, token limits, the thinking budget. It knows
no engine: the driver passes it each token's bytes and carries out what it decides.
"""

import codecs
from collections.abc import Sequence

import msgspec

from backends.protocol import Candidate, Cause, Generation, Piece, ThinkingBudget, TokenLogprob


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


class StopFound(msgspec.Struct, frozen=True):
    """The text before a stop string, and which one it was."""

    before: str
    stop: str


class StopScanner:
    """Holds back text only while it may still become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._first = frozenset(stop[0] for stop in stops)
        self._held = ""

    @property
    def held(self) -> str:
        """The text that may still become a stop string."""
        return self._held

    def feed(self, text: str) -> str | StopFound:
        """The text that can be handed on now, or where it stops."""
        if not self._stops:
            return text
        window = self._held + text
        if found := self._first_stop(window):
            return found
        keep = self._held_length(window)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep]

    def flush(self) -> str:
        """Text held back that turned out to be only text."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, window: str) -> StopFound | None:
        hits = [(at, stop) for stop in self._stops if (at := window.find(stop)) >= 0]
        if not hits:
            return None
        at, stop = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
        return StopFound(window[:at], stop)

    def _held_length(self, window: str) -> int:
        tail = window[-(self._longest - 1) :] if self._longest > 1 else ""
        for start in range(len(tail)):
            if tail[start] not in self._first:
                continue
            begun = tail[start:]
            if any(stop.startswith(begun) for stop in self._stops):
                return len(tail) - start
        return 0


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
        self._inside_character = False
        self._stops = StopScanner(job.stop)
        self._watch = BudgetWatch(job.thinking) if job.thinking else None
        self._flows = not job.stop and self._watch is None  # whole characters hold nothing back
        self._tokens: list[int] = []  # not handed on yet: their text is held back
        self._lengths: list[int] = []  # of their texts, in characters
        self._logprobs: list[TokenLogprob] = []
        self._wants_logprobs = job.logprobs is not None
        self._freed = 0  # characters handed on before their token
        self.completion_tokens = 0

    def add(
        self,
        token: int,
        text: bytes,
        logprob: TokenLogprob | None,
        *,
        ends: bool,
        last: bool = False,
    ) -> Written:
        """Take one token. `ends`: it is an end-of-generation token, its text is not shown; `last`:
        it is none, but nothing can follow it.
        """
        self.completion_tokens += 1
        if logprob is None and self._wants_logprobs:  # it was forced
            logprob = TokenLogprob(Candidate(token, text, 0.0))
        if ends:
            return Written(self._rest(""), "end_token", token=token, logprob=logprob)
        waits = self._tokens or self._inside_character or self.completion_tokens >= self.limit
        if (
            self._flows
            and not waits
            and not last
            and (written := _flowing(token, text, logprob)) is not None
        ):
            return written
        self._tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        decoded = self._decode(text)
        self._lengths.append(len(decoded))
        force = self._forced(decoded)
        match self._stops.feed(decoded):
            case StopFound(before, stop):
                return Written(self._piece(before), "stop_string", stop)
            case str(free):
                return Written(self._rest(free), "end_token") if last else self._go_on(free, force)

    def _go_on(self, free: str, force: tuple[int, ...]) -> Written:
        if self.completion_tokens >= self.limit:
            return Written(self._rest(free), self._at_limit)
        return Written(self._part(free) if free else None, force=force)

    def _forced(self, decoded: str) -> tuple[int, ...]:
        if self._watch is None:
            return ()
        return self._watch.feed(decoded, inside_character=self._inside_character)

    def _decode(self, text: bytes) -> str:
        # Most tokens are whole characters: the incremental decoder is only for the others.
        if not self._inside_character:
            try:
                return text.decode()
            except UnicodeDecodeError:
                pass
        decoded = self._decoder.decode(text)
        self._inside_character = bool(self._decoder.getstate()[0])
        return decoded

    def _rest(self, free: str) -> Piece | None:
        """All that is still held back: an unfinished character becomes U+FFFD."""
        match self._stops.feed(self._decoder.decode(b"", final=True)):
            case StopFound(
                before, _
            ):  # pragma: no cover - no stop string ends in U+FFFD in practice
                text = before
            case str(more):
                text = more
        text = free + text + self._stops.flush()
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


def _flowing(token: int, text: bytes, logprob: TokenLogprob | None) -> Written | None:
    """Nearly every token: whole characters, and nothing waits. None where they aren't."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return None
    if not decoded:
        return None
    return Written(Piece(decoded, (token,), () if logprob is None else (logprob,)))
