"""One request as one or several jobs of the library.

A job reserves cache pages for all that it may write when it starts. A request without a limit would
so keep the rest of the context for itself; instead it gets `STRETCH` tokens at a time. Where a job
ends the next one begins with all that was written, whose pages are still in the cache. Tokens that
are forced are such a new beginning too.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from backends.engine import Token
from backends.exllama.drawing import Drawing
from backends.protocol import Generation

# ------------------------------------------------------------------------------------------ results
# Reads the tokens in results of a generator's `iterate`.
#
# Their text is not used: stop strings, characters and limits are `backends.transcript`'s. But the
# generator holds tokens back with their text, while a character is incomplete or a banned string
# may be coming; where a stop token then ends a job, nothing was emitted and all that was held
# stands in `held`, the stop token last.


Result = Mapping[str, Any]


def tokens_of(result: Result) -> list[int]:
    """The new tokens of a result of the stage "streaming"; in each part a tensor (1, n)."""
    parts = [result]
    if result.get("eos_reason") == "stop_token":
        parts.append(result.get("held", {}))
    name = "token_ids"
    return [token for part in parts if name in part for token in part[name][0].tolist()]


def at_limit(result: Result) -> bool:
    """Whether the job ended because it had written as much as it was allowed to."""
    return bool(result.get("eos_reason") == "max_new_tokens")


STRETCH = 2048  # tokens


class ExLlamaJob:
    """`prompt` is the request's as the generator takes it."""

    def __init__(self, key: int, job: Generation) -> None:
        self.key = key
        self.job = job
        self.prompt = list(job.prompt)
        self.embeddings: list[Any] = []  # of its pictures
        self.drawing: Drawing | None = None  # None: the library draws
        self.limit = 0  # tokens that fit, or are wanted
        self.written: list[int] = []  # after the prompt
        self.current: Any = None  # the library's job that writes on; None: there is none
        self.first: Any = None  # the first job: it knows what was in the cache
        self._ready: deque[Token] = deque()  # of what is written, not handed over yet
        self._forced = 0  # of these, the first ones

    @property
    def ready(self) -> bool:
        return bool(self._ready)

    @property
    def left(self) -> int:
        """How many more tokens may be written."""
        return self.limit - len(self.written)

    @property
    def stretch(self) -> int:
        """How many of them to reserve pages for."""
        return min(self.left, STRETCH)

    def begin(self, current: Any) -> None:
        """`current` writes on."""
        self.first = self.first or current
        self.current = current

    def write(self, tokens: Sequence[int]) -> None:
        """The present job has drawn these."""
        logprobs = iter(self.drawing.take(len(tokens)) if self.drawing is not None else ())
        for token in tokens:
            self.written.append(token)
            self._ready.append(Token(self.key, token, next(logprobs, None)))

    def force(self, tokens: Sequence[int]) -> None:
        """`tokens` follow what was handed over; what was written beyond that is forgotten."""
        self._forget(0)
        following = tokens[: self.left]
        if self.drawing is not None:
            self.drawing.force(self.written, following)
        for token in following:
            self.written.append(token)
            self._ready.append(Token(self.key, token))
        self._forced = len(self._ready)

    def rewind(self, count: int, banned: Collection[int]) -> None:
        """The newest `count` tokens that were handed over are forgotten, too."""
        self._forget(count)
        assert self.drawing is not None  # where strings are banned it isn't the library that draws
        self.drawing.rewind(self.written, banned)

    def _forget(self, count: int) -> None:
        """All that is ready, and the newest `count` before that."""
        kept = len(self.written) - len(self._ready) - count
        del self.written[kept:]
        self._ready.clear()
        self._forced = 0

    def hand_over(self) -> list[Token]:
        """The oldest token that is ready, or all that are forced."""
        count, self._forced = self._forced or 1, 0
        return [self._ready.popleft() for _ in range(count)]
