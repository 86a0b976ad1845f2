"""One request as one or several jobs of the library, and how its tokens are drawn.

A job reserves cache pages for all that it may write when it starts. A request without a limit would
so keep the rest of the context for itself; instead it gets `STRETCH` tokens at a time. Where a job
ends the next one begins with all that was written, whose pages are still in the cache. Tokens that
are forced are such a new beginning too.

Tokens are drawn with the samplers of all engines here (`backends.engines.sampling`), on the logits'
device: exllamav2's XTC and top_p are not what they are named after, both libraries have their own
order and lack some samplers, and a seed means something else to each. The library draws where it is
told nothing but a temperature, which is the sooner.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from backends.contract.protocol import Generation, TokenLogprob
from backends.engines.constraints import Mask
from backends.engines.engine import Token
from backends.engines.sampling.batch import SamplerBatch, logprobs
from backends.engines.sampling.state import SamplerState, SamplingContext

SIMPLE = frozenset({"temperature"})
_NEVER = float("-inf")


def is_simple(job: Generation, mask: Mask | None) -> bool:
    """Whether any sampler draws this job's tokens alike: greedily, or by a temperature alone."""
    plain = job.sampling.requested() <= SIMPLE
    return plain and mask is None and job.logprobs is None and not job.min_tokens


class Drawing:
    """Of one request, whichever jobs of the library it takes.

    What goes wrong is kept in `error`, since an exception within the library's step would end all
    jobs; until the engine fails this one, any token is drawn.
    """

    def __init__(
        self,
        job: Generation,
        mask: Mask | None,
        context: SamplingContext,
        known: int,
    ) -> None:
        """`known`: the tokens that the library's tokenizer has; the model may have rows for more,
        which only fill it up.
        """
        self.error: Exception | None = None
        self.logprobs: deque[TokenLogprob] = deque()  # of what was drawn and not yet taken
        self._context = context
        self._known = known
        self._mask = mask
        self._prompt = len(job.prompt)
        self._tokens = list(job.prompt)  # with what was drawn
        self._state = SamplerState(job, self._tokens, context)
        self._state.mask = mask
        self._batch: SamplerBatch | None = None

    def draw(self, logits: torch.Tensor) -> int:
        """The next token. `logits`: (…, vocabulary or more), left as they are."""
        if self.error is None:
            try:
                with torch.inference_mode():  # the library may call from threads of its own
                    return self._draw(logits)
            except Exception as error:  # noqa: BLE001 - see the class
                self.error = error
        return 0

    def _draw(self, logits: torch.Tensor) -> int:
        row = logits.view(1, -1)[:, : self._context.size]
        row = row.to(self._context.device, torch.float32, copy=True)
        row[:, self._known :] = _NEVER
        if self._batch is None:
            self._batch = SamplerBatch([self._state], self._context)
        [token] = self._batch.draw(row)
        [logprob] = logprobs(row, [token], [self._state.logprobs], self._context.vocabulary.piece)
        if self._mask is not None and token not in self._context.vocabulary.ends:
            self._mask.drawn(token)
        self._batch.count([token])
        self._tokens.append(token)
        self._state.drawn()
        if logprob is not None:
            self.logprobs.append(logprob)
        return token

    def take(self, count: int) -> list[TokenLogprob]:
        """The oldest `count` logprobs, if they are wanted at all."""
        return [self.logprobs.popleft() for _ in range(min(count, len(self.logprobs)))]

    def force(self, answer: Sequence[int], forced: Sequence[int]) -> None:
        """Only `answer` was said; `forced` follows it."""
        with torch.inference_mode():
            self._back_to(answer, ())
            for token in forced:
                self._tokens.append(token)
                self._state.accepted()

    def rewind(self, answer: Sequence[int], banned: Collection[int]) -> None:
        """Only `answer` was said, and none of `banned` may follow it."""
        with torch.inference_mode():
            self._back_to(answer, banned)

    def _back_to(self, answer: Sequence[int], banned: Collection[int]) -> None:
        self.logprobs.clear()
        if len(self._tokens) > self._prompt + len(answer) or banned:
            del self._tokens[self._prompt + len(answer) :]
            self._state.rewound(banned)
            self._batch = None


# Reads the tokens in results of a generator's `iterate`.
#
# Their text is not used: stop strings, characters and limits are `backends.engines.transcript`'s.
# But the generator holds tokens back with their text, while a character is incomplete or a banned
# string may be coming; where a stop token then ends a job, nothing was emitted and all that was
# held stands in `held`, the stop token last.


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
