"""Draws a request's tokens with the samplers of all engines here (`backends.sampling`), in place of
the library's own.

exllamav2's XTC and top_p are not what they are named after, both libraries have their own order and
lack some samplers, and a seed means something else to each. So the library draws where it is told
nothing but a temperature, which is the sooner, and all else is drawn here, on the logits' device.
"""

from collections import deque
from collections.abc import Collection, Sequence

import torch

from backends.constraints import Mask
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Generation, TokenLogprob
from backends.sampling.batch import SamplerBatch, logprobs
from backends.sampling.state import SamplerState, SamplingContext

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
        vocabulary: HfVocabulary,
        known: int,
    ) -> None:
        """`known`: the tokens that the library's tokenizer has; the model may have rows for more,
        which only fill it up.
        """
        self.error: Exception | None = None
        self.logprobs: deque[TokenLogprob] = deque()  # of what was drawn and not yet taken
        self._context = context
        self._vocabulary = vocabulary
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
        [logprob] = logprobs(row, [token], [self._state.logprobs], self._vocabulary.piece)
        if self._mask is not None and token not in self._vocabulary.ends:
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
