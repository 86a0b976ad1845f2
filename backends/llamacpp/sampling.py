"""A job's wishes as a llama.cpp sampler chain, and logprobs from the model's own logits.

The order is that of the field (transformers, vLLM, exllamav2), so that the same request behaves
alike on every engine: biases and bans, penalties, DRY, temperature, then the truncations;
`temperature_last` moves it behind them. Repetition penalty and DRY look at the prompt too,
frequency and presence at the answer alone, as OpenAI's.
"""

import ctypes
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api

from backends.llamacpp.library import SMALL_VOCABULARY, keeping_gil
from backends.llamacpp.vocabulary import LlamaVocabulary
from backends.protocol import Candidate, Generation, Sampling, TokenLogprob

SUPPORTED = frozenset(Sampling.__struct_fields__) - {
    "smoothing_factor",
    "smoothing_curve",
    "top_a",
    "tfs",
    "skew",
    "repetition_decay",
    "banned_strings",
}
_NEVER = float("-inf")
# The fields of llama.h's struct of one biased token.
_LOGIT_BIAS = np.dtype([("token", np.int32), ("bias", np.float32)])
_MIN_KEEP = 1  # a truncation leaves at least one token

Biases: TypeAlias = npt.NDArray[np.float32]  # one number for each token of the vocabulary
Link = Any  # llama_sampler_p, which ctypes can't tell apart from other pointers


class Chain:
    """One job's samplers. `next` draws a token from a row of the last decode; `free` gives them
    back.
    """

    def __init__(self, job: Generation, vocabulary: LlamaVocabulary, context_length: int) -> None:
        self.pointer = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        self._min_tokens = job.min_tokens
        try:
            for link in _links(job, vocabulary, context_length):
                api.llama_sampler_chain_add(self.pointer, link)
        except BaseException:
            self.free()
            raise

    def drawn(self) -> None:
        """One more token has been drawn: once there are enough the answer may end."""
        if self._min_tokens:
            self._min_tokens -= 1
            if not self._min_tokens:
                api.llama_sampler_free(api.llama_sampler_chain_remove(self.pointer, 0))

    def accept(self, token: int) -> None:
        """A token that was not drawn but forced."""
        api.llama_sampler_accept(self.pointer, token)

    def free(self) -> None:
        api.llama_sampler_free(self.pointer)


def drawing(vocabulary: LlamaVocabulary) -> Callable[[Link, api.llama_context_p, int], int]:
    """The function that draws a token: (chain, context, row) -> token; see `library` for the
    choice.
    """
    if vocabulary.size <= SMALL_VOCABULARY:
        return keeping_gil(api.llama_sampler_sample)
    return api.llama_sampler_sample  # type: ignore[no-any-return]


def _links(job: Generation, vocabulary: LlamaVocabulary, context_length: int) -> Iterator[Link]:
    sampling = job.sampling
    if job.min_tokens:  # the first one, which `Chain.drawn` takes away
        yield _bias(_bans(vocabulary.ends, vocabulary), vocabulary)
    bias = _biases(sampling, vocabulary)
    if bias is not None:
        yield _bias(bias, vocabulary)
    yield from _penalties(job, vocabulary, context_length)
    if sampling.temperature <= 0:
        yield api.llama_sampler_init_greedy()
        return
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
    if sampling.mirostat_mode:
        yield from _temperature(sampling)
        yield _mirostat(sampling, vocabulary, seed)
        return
    if not sampling.temperature_last:
        yield from _temperature(sampling)
    yield from _truncations(sampling, seed)
    if sampling.temperature_last:
        yield from _temperature(sampling)
    yield api.llama_sampler_init_dist(seed)


def _biases(sampling: Sampling, vocabulary: LlamaVocabulary) -> Biases | None:
    """What is added to the logits, (vocabulary.size,); None: nothing.

    In bulk, because a vocabulary may have 260,000 tokens: one by one that takes half a second, in
    which nobody else gets the GIL.
    """
    ends = vocabulary.ends if sampling.ban_eos else ()
    said = sampling.allowed_tokens, sampling.logit_bias, sampling.banned_tokens, ends
    if not any(said):
        return None
    bias = np.zeros(vocabulary.size, np.float32)
    if sampling.allowed_tokens:
        bias[:] = _NEVER
        bias[list(sampling.allowed_tokens)] = 0
    for token, value in sampling.logit_bias:
        bias[token] = value
    bias[list(sampling.banned_tokens)] = _NEVER
    bias[list(ends)] = _NEVER
    return bias


def _bans(tokens: Collection[int], vocabulary: LlamaVocabulary) -> Biases:
    bias = np.zeros(vocabulary.size, np.float32)
    bias[list(tokens)] = _NEVER
    return bias


def _bias(bias: Biases, vocabulary: LlamaVocabulary) -> Link:
    [tokens] = np.nonzero(bias)
    entries = np.empty(len(tokens), _LOGIT_BIAS)
    entries["token"], entries["bias"] = tokens, bias[tokens]
    pointer = ctypes.cast(entries.ctypes.data, ctypes.POINTER(api.llama_logit_bias))
    return api.llama_sampler_init_logit_bias(vocabulary.size, len(entries), pointer)


def _penalties(job: Generation, vocabulary: LlamaVocabulary, context_length: int) -> Iterator[Link]:
    sampling = job.sampling
    back = context_length if sampling.penalty_range < 0 else sampling.penalty_range
    if sampling.repetition_penalty != 1:
        repetition = sampling.repetition_penalty
        link = api.llama_sampler_init_penalties(vocabulary.size, back, repetition, 0.0, 0.0)
        yield _told(link, job.prompt[-back:] if back else ())
    if sampling.frequency_penalty or sampling.presence_penalty:
        yield api.llama_sampler_init_penalties(
            vocabulary.size, back, 1.0, sampling.frequency_penalty, sampling.presence_penalty
        )
    if sampling.dry_multiplier:
        far = context_length if sampling.dry_range <= 0 else sampling.dry_range
        yield _told(_dry(sampling, vocabulary, far), job.prompt[-far:])


def _told(link: Link, tokens: Sequence[int]) -> Link:
    for token in tokens:
        api.llama_sampler_accept(link, token)
    return link


def _dry(sampling: Sampling, vocabulary: LlamaVocabulary, back: int) -> Link:
    breakers = [text.encode() for text in sampling.dry_sequence_breakers]
    return api.llama_sampler_init_dry(
        vocabulary.pointer,
        sampling.dry_multiplier,
        sampling.dry_base,
        sampling.dry_allowed_length,
        back,
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )


def _temperature(sampling: Sampling) -> Iterator[Link]:
    low, high = sampling.min_temp, sampling.max_temp
    if low != high:
        middle, spread = (low + high) / 2, (high - low) / 2
        yield api.llama_sampler_init_temp_ext(middle, spread, sampling.temp_exponent)
    elif sampling.temperature != 1:
        yield api.llama_sampler_init_temp(sampling.temperature)


def _mirostat(sampling: Sampling, vocabulary: LlamaVocabulary, seed: int) -> Link:
    tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
    if sampling.mirostat_mode == 1:
        # m = 100 is the number of tokens the paper estimates s_hat from (arXiv:2007.14966).
        return api.llama_sampler_init_mirostat(vocabulary.size, seed, tau, eta, 100)
    return api.llama_sampler_init_mirostat_v2(seed, tau, eta)


def _truncations(sampling: Sampling, seed: int) -> Iterator[Link]:
    if sampling.top_n_sigma > 0:
        yield api.llama_sampler_init_top_n_sigma(sampling.top_n_sigma)
    if sampling.top_k > 0:
        yield api.llama_sampler_init_top_k(sampling.top_k)
    if sampling.typical_p < 1:
        yield api.llama_sampler_init_typical(sampling.typical_p, _MIN_KEEP)
    if sampling.top_p < 1:
        yield api.llama_sampler_init_top_p(sampling.top_p, _MIN_KEEP)
    if sampling.min_p > 0:
        yield api.llama_sampler_init_min_p(sampling.min_p, _MIN_KEEP)
    if sampling.xtc_probability > 0:
        yield api.llama_sampler_init_xtc(
            sampling.xtc_probability, sampling.xtc_threshold, _MIN_KEEP, seed
        )


def logprob(
    logits: npt.NDArray[np.float32], token: int, alternatives: int, vocabulary: LlamaVocabulary
) -> TokenLogprob:
    """The chosen token's logprob and the `alternatives` best; `logits` has shape
    (vocabulary.size,).
    """
    peak = float(logits.max())
    normal = peak + float(np.log(np.exp(logits - peak).sum()))

    def candidate(index: int) -> Candidate:
        return Candidate(index, vocabulary.piece(index), float(logits[index]) - normal)

    count = min(alternatives, len(logits))
    best = np.argpartition(logits, -count)[-count:] if count else np.empty(0, np.int64)
    ordered = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprob(candidate(token), tuple(candidate(int(index)) for index in ordered))
