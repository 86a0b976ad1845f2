"""One request as one or several jobs of the library.

A job reserves cache pages for all that it may write when it starts. A request without a limit would
so keep the rest of the context for itself; instead it gets `STRETCH` tokens at a time. Where a job
ends the next one begins with all that was written, whose pages are still in the cache. Tokens that
are forced are such a new beginning too.
"""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backends.engine import Token
from backends.errors import InvalidJob
from backends.exllama.mask import GuardedMask
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Generation, Sampling, TokenLogprob

# ------------------------------------------------------------------------------------------ results
# Reads the tokens in results of a generator's `iterate`.
#
# Their text is not used: stop strings, characters and limits are `backends.transcript`'s. But the
# generator holds tokens back with their text, while a character is incomplete or a banned string
# may be coming; where a stop token then ends a job, nothing was emitted and all that was held
# stands in `held`, the stop token last.


Result = Mapping[str, Any]


def field(result: Result, name: str) -> list[Any]:
    """A field of a result of the stage "streaming", for each of its new tokens: a tensor of the
    shape (1, n, …), as a list.
    """
    parts = [result]
    if result.get("eos_reason") == "stop_token":
        parts.append(result.get("held", {}))
    return [value for part in parts if name in part for value in part[name][0].tolist()]


def at_limit(result: Result) -> bool:
    """Whether the job ended because it had written as much as it was allowed to."""
    return bool(result.get("eos_reason") == "max_new_tokens")


# ----------------------------------------------------------------------------------------- sampling
# Parameters of single tokens, as far as both libraries take them alike.


def check_tokens(sampling: Sampling, vocabulary: HfVocabulary) -> None:
    """Raises InvalidJob for a token that isn't there."""
    named = {
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "banned_tokens": sampling.banned_tokens,
        "allowed_tokens": sampling.allowed_tokens,
    }
    for param, tokens in named.items():
        wrong = [token for token in tokens if not 0 <= token < vocabulary.size]
        if wrong:
            raise InvalidJob(f"token {wrong[0]} is not in the vocabulary", param)


def barred(sampling: Sampling, vocabulary: HfVocabulary) -> list[int]:
    """The tokens that must not come."""
    return [*sampling.banned_tokens, *(vocabulary.ends if sampling.ban_eos else ())]


STRETCH = 2048  # tokens


class Drawn(msgspec.Struct, frozen=True):
    """One result of the generator: new tokens of one job, with their logprobs where they are
    wanted, and whether its limit ended it.
    """

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    at_limit: bool


class ExLlamaJob:
    """`prompt` is the request's as the generator takes it, `sampler` the library's, with state."""

    def __init__(self, key: int, job: Generation) -> None:
        self.key = key
        self.job = job
        self.prompt = list(job.prompt)
        self.embeddings: list[Any] = []  # of its pictures
        self.sampler: Any = None
        self.mask: GuardedMask | None = None  # None: it is free
        self.limit = 0  # tokens that fit, or are wanted
        self.written: list[int] = []  # after the prompt
        self.current: Any = None  # the library's job that writes on; None: there is none
        self.first: Any = None  # the first job: it knows what was in the cache
        self._ready: deque[Token] = deque()  # of what is written, not handed over yet
        self._forced = 0  # of these, the first ones
        self._dice: random.Random | None = None

    @property
    def ready(self) -> bool:
        return bool(self._ready)

    @property
    def left(self) -> int:
        """How many more tokens may be written."""
        return self.limit - len(self.written)

    @property
    def stretch(self) -> int:
        """How many of them to reserve pages for. A banned string must see what was said before, so
        there all is one stretch.
        """
        return self.left if self.job.sampling.banned_strings else min(self.left, STRETCH)

    @property
    def least(self) -> int:
        """How many tokens must still come before an end token may."""
        return max(0, self.job.min_tokens - len(self.written))

    def begin(self, current: Any) -> None:
        """`current` writes on. The dice are those of the first job: its seed counts for all."""
        self.first = self.first or current
        self._dice = self._dice or current.rng
        current.rng = self._dice
        self.current = current

    def write(self, drawn: Drawn) -> None:
        """The present job has drawn something."""
        logprobs = iter(drawn.logprobs)
        for token in drawn.tokens:
            self.written.append(token)
            self._ready.append(Token(self.key, token, next(logprobs, None)))

    def force(self, tokens: Sequence[int]) -> None:
        """`tokens` follow what was handed over; what was written beyond that is forgotten."""
        if self._ready:
            del self.written[-len(self._ready) :]
            self._ready.clear()
        for token in tokens[: self.left]:
            self.written.append(token)
            self._ready.append(Token(self.key, token))
        self._forced = len(self._ready)

    def hand_over(self) -> list[Token]:
        """The oldest token that is ready, or all that are forced."""
        count, self._forced = self._forced or 1, 0
        return [self._ready.popleft() for _ in range(count)]
