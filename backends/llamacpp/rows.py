"""What the logits of a decoded batch say: tokens drawn from them, and log probabilities."""

import ctypes

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api

from backends.engine import Token
from backends.llamacpp.batch import LlamaJob
from backends.llamacpp.library import keeping_gil
from backends.llamacpp.masking import draw_among
from backends.llamacpp.sampling import drawing, left_over, logprob
from backends.llamacpp.vocabulary import LlamaVocabulary
from backends.protocol import Candidate, TokenLogprob


class Rows:
    """Of the last batch of `context`. Only the engine's thread calls it."""

    def __init__(self, context: api.llama_context_p, vocabulary: LlamaVocabulary) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._drawn = drawing(vocabulary)
        self._logits = keeping_gil(api.llama_get_logits_ith)

    def draw(self, running: LlamaJob, row: int) -> Token:
        """The next token of `running`, drawn by what `row` says."""
        wanted = running.job.logprobs
        told: TokenLogprob | None
        if wanted is not None and running.job.after_samplers:
            token, told = self._left(running, row, wanted)
        else:
            token = self._token(running, row)
            told = None if wanted is None else self._told(row, token, wanted)
        running.chain.drawn()
        running.banned = ()
        running.tokens.append(token)
        return Token(running.key, token, told)

    def _token(self, running: LlamaJob, row: int) -> int:
        chain, ids = running.chain.pointer, running.allowed(self._vocabulary.size)
        if ids is None:
            return self._drawn(chain, self._context, row)
        return draw_among(chain, self.row(row), ids).token

    def _left(self, running: LlamaJob, row: int, wanted: int) -> tuple[int, TokenLogprob]:
        """A token, and what else the samplers left."""
        ids = running.allowed(self._vocabulary.size)
        among = np.arange(self._vocabulary.size) if ids is None else ids
        drawn = draw_among(running.chain.pointer, self.row(row), among)
        return drawn.token, left_over(drawn, wanted, self._vocabulary)

    def _told(self, row: int, token: int, wanted: int) -> TokenLogprob:
        return logprob(self.row(row), token, wanted, self._vocabulary)

    def told(self, running: LlamaJob, row: int, count: int) -> list[TokenLogprob]:
        """Of the prompt's tokens not told yet, as far as the `count` rows of its newest cells, the
        first of which is `row`, tell of the next.
        """
        prompt, wanted = running.job.prompt, running.job.prompt_logprobs or 0
        first, told = running.fed - count, []
        if not running.scored:
            told.append(TokenLogprob(Candidate(prompt[0], self._vocabulary.piece(prompt[0]), 0.0)))
        for at in range(max(running.scored, first + 1, 1), min(running.fed + 1, len(prompt))):
            logits = self.row(row + at - 1 - first)
            told.append(logprob(logits, prompt[at], wanted, self._vocabulary))
        return told

    def row(self, row: int) -> npt.NDArray[np.float32]:
        """The logits of the last batch's `row`, where llama.cpp keeps them until the next."""
        address = ctypes.addressof(self._logits(self._context, row).contents)
        there = (ctypes.c_float * self._vocabulary.size).from_address(address)
        return np.frombuffer(there, np.float32)
