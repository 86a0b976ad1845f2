"""Logprobs from the model's own distribution.

exllamav2 applies penalties and biases to the logits in place before it stores them, and its
probabilities are those after sampling; so a job's logits are looked at on their way to its sampler.
"""

from collections import deque
from typing import Any

import torch

from backends.hf_vocabulary import Vocabulary
from backends.protocol import Candidate, TokenLogprob


class Witness:
    """Stands before one library job's `receive_logits`, which the generator calls once for every
    token it draws. `told` holds the logprobs of the tokens drawn and not yet taken, in order.
    """

    def __init__(self, job: Any, count: int, vocabulary: Vocabulary) -> None:
        self.told: deque[TokenLogprob] = deque()
        self._count = count
        self._vocabulary = vocabulary
        self._receive = job.receive_logits
        job.receive_logits = self

    def __call__(self, logits: torch.Tensor) -> Any:
        """`logits` has the shape (1, 1, padded vocabulary), on the CPU."""
        told = torch.log_softmax(logits[0, 0, : self._vocabulary.size].float(), dim=-1)
        drawn = self._receive(logits)
        self.told.append(self._tell(told, int(drawn[0].item())))
        return drawn

    def take_back(self, count: int) -> None:
        """The newest `count` tokens were drawn in vain."""
        for _ in range(count):
            self.told.pop()

    def _tell(self, told: torch.Tensor, token: int) -> TokenLogprob:
        values, tokens = told.topk(min(self._count, len(told)))
        pairs = zip(tokens.tolist(), values.tolist(), strict=True)
        top = tuple(self._candidate(id_, value) for id_, value in pairs)
        return TokenLogprob(self._candidate(token, float(told[token])), top)

    def _candidate(self, token: int, logprob: float) -> Candidate:
        return Candidate(token, self._vocabulary.piece(token), logprob)
