"""Hooks on the logits before a job's sampler, one token at a time: they record the model's own
distribution and apply the penalties that count the answer alone.

exllamav2 applies penalties and biases to the logits in place before it stores them, and its
probabilities are those after sampling, so afterwards it is too late. And its own frequency and
presence penalties count the prompt too, unlike OpenAI's and every other engine's here.
"""

from collections import deque
from typing import Any

import torch

from backends.exllama.jobs import ExLlamaJob
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Candidate, Sampling, TokenLogprob


class LogprobRecorder:
    """Stands before one library job's `receive_logits`, which the generator calls once for every
    token it draws. Remembers the logprobs of the tokens drawn and not yet taken, in order.
    """

    def __init__(self, job: Any, count: int, vocabulary: HfVocabulary) -> None:
        self._logprobs: deque[TokenLogprob] = deque()
        self._count = count
        self._vocabulary = vocabulary
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._receive = job.receive_logits
        job.receive_logits = self

    def __call__(self, logits: torch.Tensor) -> Any:
        """`logits` has the shape (1, 1, padded vocabulary), on the CPU; the sampler changes them
        in place, so the model's own distribution is taken before.
        """
        # Over 128k tokens this takes milliseconds on a CPU and microseconds on a card.
        row = logits[0, 0, : self._vocabulary.size].to(self._device, copy=True)
        logprobs = torch.log_softmax(row.float(), dim=-1)
        drawn = self._receive(logits)
        self._logprobs.append(self._logprob(logprobs, int(drawn[0].item())))
        return drawn

    def take(self, count: int, in_vain: int) -> list[TokenLogprob]:
        """The oldest `count`; the newest `in_vain` tokens were drawn in vain."""
        for _ in range(in_vain):
            self._logprobs.pop()
        return [self._logprobs.popleft() for _ in range(count)]

    def _logprob(self, logprobs: torch.Tensor, token: int) -> TokenLogprob:
        values, tokens = logprobs.topk(min(self._count, len(logprobs)))
        pairs = zip(tokens.tolist(), values.tolist(), strict=True)
        top = tuple(self._candidate(id_, value) for id_, value in pairs)
        return TokenLogprob(self._candidate(token, float(logprobs[token])), top)

    def _candidate(self, token: int, logprob: float) -> Candidate:
        return Candidate(token, self._vocabulary.piece(token), logprob)


class AnswerPenalties:
    """Stands before `receive_logits` likewise, and lowers the logits of tokens that the answer
    already has.
    """

    def __init__(self, job: Any, prompt_tokens: int, sampling: Sampling) -> None:
        self._sequence = job.sequences[0].sequence_ids  # a SeqTensor that grows with the answer
        self._prompt_tokens = prompt_tokens
        self._sampling = sampling
        self._receive = job.receive_logits
        job.receive_logits = self

    def __call__(self, logits: torch.Tensor) -> Any:
        """`logits` as the recorder's; changed in place, as exllamav2 itself does."""
        answer = self._sequence.torch()[0, self._prompt_tokens :]
        if (back := self._sampling.penalty_range) >= 0:
            answer = answer[max(0, len(answer) - back) :]
        tokens, times = answer.unique(return_counts=True)
        logits[0, 0, tokens] -= (
            self._sampling.frequency_penalty * times + self._sampling.presence_penalty
        )
        return self._receive(logits)


def add_hooks(job: Any, running: ExLlamaJob, vocabulary: HfVocabulary) -> None:
    """Put before `job`'s sampler what `running` needs; the recorder gets the logits first."""
    asked = running.job
    if asked.sampling.frequency_penalty or asked.sampling.presence_penalty:
        AnswerPenalties(job, len(running.prompt), asked.sampling)
    if asked.logprobs is not None:
        LogprobRecorder(job, asked.logprobs, vocabulary)
