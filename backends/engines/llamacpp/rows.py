"""The logits of llama.cpp's last batch: tokens drawn from its rows, and log probabilities."""

import ctypes
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from backends.contract.protocol import Candidate, TokenLogprob
from backends.engines.engine import Token
from backends.engines.llamacpp.batch import LlamaJob
from backends.engines.llamacpp.library import Context, api
from backends.engines.llamacpp.vocabulary import LlamaVocabulary

_NEVER = float("-inf")
_FIELDS = 3  # of llama.h's struct of one candidate, each of four bytes: id, logit, probability


class Rows(msgspec.Struct, eq=False):
    """The logits of the last batch of `context`: tokens drawn from them, and log probabilities.
    Only the engine's thread calls it.
    """

    _context: Context
    _vocabulary: LlamaVocabulary

    def draw(self, running: LlamaJob, row: int) -> Token:
        """The next token of `running`, drawn from the logits of `row`."""
        wanted = running.job.logprobs
        found: TokenLogprob | None
        if wanted is not None and running.job.after_samplers:
            token, found = self._left(running, row, wanted)
        else:
            token = self._token(running, row)
            found = None if wanted is None else self._logprob(row, token, wanted)
        running.chain.drawn()
        running.banned = ()
        running.tokens.append(token)
        return Token(running.key, token, found)

    def _token(self, running: LlamaJob, row: int) -> int:
        chain, ids = running.chain.pointer, running.allowed(self._vocabulary.size)
        if ids is None:
            return int(self._context.api.llama_sampler_sample(chain, self._context, row))
        return draw_among(chain, self.row(row), ids).token

    def _left(self, running: LlamaJob, row: int, wanted: int) -> tuple[int, TokenLogprob]:
        """A token, and what else the samplers left."""
        ids = running.allowed(self._vocabulary.size)
        among = np.arange(self._vocabulary.size) if ids is None else ids
        drawn = draw_among(running.chain.pointer, self.row(row), among)
        possible = drawn.logits > _NEVER  # what can't come any more has no place in it
        left, logits = drawn.ids[possible].tolist(), drawn.logits[possible].astype(np.float64)
        return drawn.token, logprob(left, logits, drawn.token, wanted, self._vocabulary)

    def _logprob(self, row: int, token: int, wanted: int) -> TokenLogprob:
        ids = range(self._vocabulary.size)
        return logprob(ids, self.row(row), token, wanted, self._vocabulary)

    def prompt_logprobs(self, running: LlamaJob, end: int, places: range) -> list[TokenLogprob]:
        """Of the prompt's tokens at `places`; the rows of its newest cells end before `end`."""
        job = running.job
        return [
            self._logprob(end - running.fed + at - 1, job.prompt[at], job.prompt_logprobs or 0)
            for at in places
        ]

    def row(self, row: int) -> npt.NDArray[np.float32]:
        """The logits of the last batch's `row`, where llama.cpp keeps them until the next."""
        return self._context.row(row, self._vocabulary.size)


class DrawnToken(msgspec.Struct, frozen=True):
    """The token, and what the samplers left to draw it from: ids and their logits, (left,) each."""

    token: int
    ids: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]


def draw_among(
    chain: Any, logits: npt.NDArray[np.float32], ids: npt.NDArray[np.intp]
) -> DrawnToken:
    """As `llama_sampler_sample`, of `ids` alone. `logits`: (vocabulary,).

    llama.cpp's chain is given an array of those alone. So nothing is computed for the others, and
    where a grammar leaves a handful of 128,000 tokens, drawing costs a hundredth. The logits stay
    as they are: log probabilities are computed from them.
    """
    candidates = np.empty((len(ids), _FIELDS), np.int32)
    candidates[:, 0] = ids
    candidates[:, 1] = logits.view(np.int32)[ids]  # the same bits
    data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(api.llama_token_data))
    array = api.llama_token_data_array(data=data, size=len(ids), selected=-1, sorted=False)
    api.llama_sampler_apply(chain, ctypes.byref(array))
    token = int(candidates[array.selected, 0])
    api.llama_sampler_accept(chain, token)
    left = candidates[: array.size]
    return DrawnToken(token, left[:, 0], left[:, 1].view(np.float32))


def logprob(
    ids: Sequence[int],
    logits: npt.NDArray[np.floating[Any]],
    token: int,
    alternatives: int,
    vocabulary: LlamaVocabulary,
) -> TokenLogprob:
    """The chosen token's logprob and the `alternatives` best, among `ids`, whose `logits` these
    are.
    """
    peak = float(logits.max())
    normal = peak + float(np.log(np.exp(logits - peak).sum()))

    def candidate(place: int) -> Candidate:
        piece = vocabulary.piece(ids[place])
        return Candidate(ids[place], piece, float(logits[place]) - normal)

    count = min(alternatives, len(logits))
    best = np.argpartition(logits, -count)[-count:] if count else np.empty(0, np.int64)
    ordered = best[np.argsort(-logits[best], kind="stable")].tolist()
    return TokenLogprob(candidate(ids.index(token)), tuple(map(candidate, ordered)))
