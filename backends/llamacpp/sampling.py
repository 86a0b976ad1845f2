"""A job's sampling parameters as a llama.cpp sampler chain.

The order is `backends.sampling.order`'s, so that the same request behaves alike on every engine.
llama.cpp's own samplers are used where it has them; the others are in `links`. Repetition penalty
and DRY count the prompt too, frequency and presence at the answer alone, as OpenAI's.
"""

import ctypes
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from backends.llamacpp import links
from backends.llamacpp.library import api
from backends.llamacpp.vocabulary import LlamaVocabulary
from backends.protocol import NEUTRAL, Generation, Sampling
from backends.sampling.formulas import mixed
from backends.sampling.order import FIRST, fades, order_of

SUPPORTED = frozenset(Sampling.__struct_fields__)
_NEVER = float("-inf")
# The fields of llama.h's struct of one biased token.
_LOGIT_BIAS = np.dtype([("token", np.int32), ("bias", np.float32)])
_ANY_SEED = 0xFFFFFFFF
_MIN_KEEP = 1  # a truncation leaves at least one token

Biases: TypeAlias = npt.NDArray[np.float32]  # one number for each token of the vocabulary
Link = Any  # llama_sampler_p, which ctypes can't distinguish from other pointers


class Chain:
    """One job's samplers. `drawn` is called with each token drawn from it; `free` gives them back.

    Where tokens are taken back a new chain is made: `answer` are the tokens that are left, `banned`
    may not come next, and `variant` counts the chains of a job: each has random numbers of its own.
    """

    def __init__(
        self,
        job: Generation,
        vocabulary: LlamaVocabulary,
        context_length: int,
        *,
        answer: Sequence[int] = (),
        banned: Collection[int] = (),
        variant: int = 0,
    ) -> None:
        self.pointer = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        self._least = max(0, job.min_tokens - len(answer))
        banned = banned if _leaves_some(banned, job.sampling, vocabulary) else ()
        self._banned = bool(banned)
        self._ours: list[links.OwnLink] = []
        try:
            if banned:  # the first ones, which are taken away again
                self._add(_bias(_bans(banned, vocabulary), vocabulary))
            if self._least:
                self._add(_bias(_bans(vocabulary.ends, vocabulary), vocabulary))
            for link in _links(job, vocabulary, context_length, variant):
                self._add(link)
            for token in answer:
                api.llama_sampler_accept(self.pointer, token)
        except BaseException:
            self.free()
            raise

    def _add(self, link: Link | links.OwnLink) -> None:
        if isinstance(link, links.OwnLink):
            self._ours.append(link)
            link = link.pointer
        api.llama_sampler_chain_add(self.pointer, link)

    def drawn(self) -> None:
        """One more token has been drawn: once there are enough the answer may end. Raises what a
        sampler of ours raised.
        """
        for link in self._ours:
            if link.error is not None:
                raise link.error
        if self._banned:
            self._banned = False
            self._drop_first()
        if self._least:
            self._least -= 1
            if not self._least:
                self._drop_first()

    def _drop_first(self) -> None:
        api.llama_sampler_free(api.llama_sampler_chain_remove(self.pointer, 0))

    def accept(self, token: int) -> None:
        """A token that was not drawn but forced."""
        api.llama_sampler_accept(self.pointer, token)
        self.drawn()

    def free(self) -> None:
        api.llama_sampler_free(self.pointer)


def _links(
    job: Generation, vocabulary: LlamaVocabulary, context_length: int, variant: int
) -> Iterator[Link | links.OwnLink]:
    sampling = job.sampling
    bias = _biases(sampling, vocabulary)
    if bias is not None:
        yield _bias(bias, vocabulary)
    makers = _makers(job, vocabulary, context_length, _seed(sampling, variant))
    if sampling.temperature <= 0:
        yield from makers["penalties"]() if "penalties" in order_of(sampling) else ()
        yield from makers["dry"]() if "dry" in order_of(sampling) else ()
        yield api.llama_sampler_init_greedy()
        return
    order = order_of(sampling)
    if sampling.mirostat_mode:
        order = (*(name for name in order if name in FIRST), "temperature")
    for name in order:
        yield from makers[name]()
    yield from _selection(sampling, vocabulary, _seed(sampling, variant))


def _makers(
    job: Generation, vocabulary: LlamaVocabulary, context_length: int, seed: int
) -> Mapping[str, Callable[[], Iterable[Link | links.OwnLink]]]:
    """How each sampler's links are made; neutral ones have none."""
    sampling = job.sampling
    return {
        "penalties": lambda: _penalties(job, vocabulary, context_length),
        "dry": lambda: _dry(job, vocabulary, context_length),
        "temperature": lambda: _temperature(sampling),
        **{name: partial(_truncation, name, sampling) for name in _TRUNCATIONS},
        "xtc": lambda: _xtc(sampling, seed),
    }


def _seed(sampling: Sampling, variant: int) -> int:
    """llama.cpp takes the greatest of 32 bits for "any"."""
    if sampling.seed is None:
        return secrets.randbelow(_ANY_SEED)
    seed = sampling.seed if not variant else mixed(sampling.seed, variant)
    return (seed & _ANY_SEED) % _ANY_SEED


def _biases(sampling: Sampling, vocabulary: LlamaVocabulary) -> Biases | None:
    """What is added to the logits, (vocabulary.size,); None: nothing.

    In bulk, because a vocabulary may have 260,000 tokens: one by one that takes half a second, in
    which no other thread gets the GIL.
    """
    ends = vocabulary.ends if sampling.ban_eos else ()
    given = sampling.allowed_tokens, sampling.logit_bias, sampling.banned_tokens, ends
    if not any(given):
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


def _leaves_some(banned: Collection[int], sampling: Sampling, vocabulary: LlamaVocabulary) -> bool:
    """Whether a token may come at all that is none of `banned`."""
    bias = _biases(sampling, vocabulary) if banned else None
    if bias is None:
        return bool(len(banned) < vocabulary.size)
    bias[list(banned)] = _NEVER
    return bool(np.any(bias > _NEVER))


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


def _penalties(
    job: Generation, vocabulary: LlamaVocabulary, context_length: int
) -> Iterator[Link | links.OwnLink]:
    sampling = job.sampling
    back = context_length if sampling.penalty_range < 0 else sampling.penalty_range
    repetition = sampling.repetition_penalty
    if repetition != 1 and fades(sampling):
        yield links.fading_penalty(sampling, vocabulary.size, job.prompt)
    elif repetition != 1:
        link = api.llama_sampler_init_penalties(vocabulary.size, back, repetition, 0.0, 0.0)
        yield _primed(link, job.prompt[-back:] if back else ())
    if sampling.frequency_penalty or sampling.presence_penalty:
        yield api.llama_sampler_init_penalties(
            vocabulary.size, back, 1.0, sampling.frequency_penalty, sampling.presence_penalty
        )


def _primed(link: Link, tokens: Sequence[int]) -> Link:
    for token in tokens:
        api.llama_sampler_accept(link, token)
    return link


def _dry(job: Generation, vocabulary: LlamaVocabulary, context_length: int) -> Iterator[Link]:
    sampling = job.sampling
    if not sampling.dry_multiplier:
        return
    far = context_length if sampling.dry_range <= 0 else sampling.dry_range
    breakers = [text.encode() for text in sampling.dry_sequence_breakers]
    link = api.llama_sampler_init_dry(
        vocabulary.pointer,
        sampling.dry_multiplier,
        sampling.dry_base,
        sampling.dry_allowed_length,
        far,
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )
    yield _primed(link, job.prompt[-far:])


def _temperature(sampling: Sampling) -> Iterator[Link | links.OwnLink]:
    if sampling.smoothing_factor > 0:
        yield links.smoothing(sampling)
    low, high = sampling.min_temp, sampling.max_temp
    if low != high:
        middle, spread = (low + high) / 2, (high - low) / 2
        yield api.llama_sampler_init_temp_ext(middle, spread, sampling.temp_exponent)
    elif sampling.temperature != 1:
        yield api.llama_sampler_init_temp(sampling.temperature)


def _selection(
    sampling: Sampling, vocabulary: LlamaVocabulary, seed: int
) -> Iterator[Link | links.OwnLink]:
    """What draws the token from what is left."""
    if sampling.mirostat_mode:
        yield _mirostat(sampling, vocabulary, seed)
        return
    if sampling.skew:
        yield links.skewing(sampling)
    if sampling.adaptive_target >= 0:
        target, decay = sampling.adaptive_target, sampling.adaptive_decay
        yield api.llama_sampler_init_adaptive_p(target, decay, seed)
    elif sampling.seed is not None:
        yield links.drawing(sampling.seed, vocabulary.size)
    else:
        yield api.llama_sampler_init_dist(seed)


def _mirostat(sampling: Sampling, vocabulary: LlamaVocabulary, seed: int) -> Link:
    tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
    if sampling.mirostat_mode == 1:
        # m = 100 is the number of tokens the paper estimates s_hat from (arXiv:2007.14966).
        return api.llama_sampler_init_mirostat(vocabulary.size, seed, tau, eta, 100)
    return api.llama_sampler_init_mirostat_v2(seed, tau, eta)


_TRUNCATIONS: Mapping[str, Callable[[Sampling], Link | links.OwnLink]] = {
    "top_n_sigma": lambda sampling: api.llama_sampler_init_top_n_sigma(sampling.top_n_sigma),
    "top_k": lambda sampling: api.llama_sampler_init_top_k(sampling.top_k),
    "tfs": links.tail_free,
    "typical_p": lambda sampling: api.llama_sampler_init_typical(sampling.typical_p, _MIN_KEEP),
    "top_p": lambda sampling: api.llama_sampler_init_top_p(sampling.top_p, _MIN_KEEP),
    "min_p": lambda sampling: api.llama_sampler_init_min_p(sampling.min_p, _MIN_KEEP),
    "top_a": links.top_a,
}


def _truncation(name: str, sampling: Sampling) -> Iterator[Link | links.OwnLink]:
    if getattr(sampling, name) != getattr(NEUTRAL, name):
        yield _TRUNCATIONS[name](sampling)


def _xtc(sampling: Sampling, seed: int) -> Iterator[Link]:
    if sampling.xtc_probability > 0:
        yield api.llama_sampler_init_xtc(
            sampling.xtc_probability, sampling.xtc_threshold, _MIN_KEEP, seed
        )
