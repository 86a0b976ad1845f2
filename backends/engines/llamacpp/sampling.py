"""A job's sampling parameters as a llama.cpp sampler chain.

The order is `backends.contract.samplers`'s, so that the same request behaves alike on every engine.
llama.cpp's own samplers are used where it has them; those that it lacks are links of ours
(`OwnLink`): numpy on the candidates, in place. Repetition penalty and DRY count the prompt too,
frequency and presence the answer alone, as OpenAI's.
"""

import ctypes
import math
import secrets
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from backends.contract.protocol import Generation
from backends.contract.samplers import (
    FIELDS,
    FIRST,
    SAMPLERS,
    TRUNCATIONS,
    Sampling,
    fades,
    order_of,
)
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.vocabulary import LlamaVocabulary
from backends.engines.sampling.biases import biases
from backends.engines.sampling.formulas import (
    SCALE,
    above_top_a,
    divided,
    faded,
    halves,
    hashed,
    mixed,
    skewed,
    smoothed,
    within_tail_free,
)

# The fields of llama.h's struct of one candidate.
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# A candidate so far below the best adds less to a sum over a vocabulary than single precision sees.
NEGLIGIBLE = 30.0
LIKELY = 8.0  # below the best: of most distributions a few hundred candidates at most
SMALL = 4_096  # tokens of a vocabulary that is sorted in a moment
Floats: TypeAlias = npt.NDArray[np.float32]


class TokenDataArray:
    """llama.cpp's array of candidates, while a link is called. Only what the links before have left
    is read, so that what costs stands behind what is cheap.
    """

    def __init__(self, array: Any) -> None:
        self._array = array.contents
        count, address = self._array.size, ctypes.cast(self._array.data, ctypes.c_void_p).value
        memory = (ctypes.c_char * (count * _CANDIDATE.itemsize)).from_address(address)
        self._rows = np.frombuffer(memory, _CANDIDATE)

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        return self._rows["id"]

    @property
    def logits(self) -> Floats:
        """To be changed in place, by callers that then call `reordered` if others may lead."""
        return self._rows["logit"]

    def probabilities(self) -> Floats:
        powers = np.exp(self.logits - self.logits.max())
        return np.asarray(powers / powers.sum())

    def sort(self) -> None:
        """The most likely first."""
        if not self._array.sorted:
            self._rows[:] = self._rows[np.argsort(-self.logits, kind="stable")]
            self._array.sorted = True

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Only those of `mask`, in their order; never none."""
        kept = self._rows[mask]
        if len(kept):
            self._rows[: len(kept)] = kept
            self._rows = self._rows[: len(kept)]
            self._array.size = len(kept)

    def reordered(self) -> None:
        self._array.sorted = False

    def select(self, place: int) -> None:
        """It is the token that is drawn."""
        self._array.selected = place


class OwnLink:
    """A sampler made of a function. The owner of a chain with `pointer` keeps the link as long as
    the chain; the chain frees the pointer.
    """

    def __init__(
        self, apply: Callable[[TokenDataArray], None], accept: Callable[[int], None] | None = None
    ) -> None:
        self.error: Exception | None = None  # what `apply` raised: llama.cpp can't pass it on
        self._apply = apply
        self._called = api.llama_sampler_i_apply(self._on_apply)
        self._interface = api.llama_sampler_i(apply=self._called)
        if accept is not None:
            self._accepted = api.llama_sampler_i_accept(lambda _, token: accept(token))
            self._interface.accept = self._accepted
        self.pointer = api.llama_sampler_init(ctypes.byref(self._interface), None)

    def _on_apply(self, _: Any, array: Any) -> None:
        try:
            self._apply(TokenDataArray(array))
        except Exception as error:  # noqa: BLE001 - see `error`
            self.error = error


def _of_sampling(
    apply: Callable[[Sampling, TokenDataArray], None],
) -> Callable[[Sampling], OwnLink]:
    """A link that knows the parameters alone."""
    return lambda sampling: OwnLink(partial(apply, sampling))


@_of_sampling
def smoothing(sampling: Sampling, candidates: TokenDataArray) -> None:
    """See `formulas.smoothed`."""
    factor, curve = sampling.smoothing_factor, sampling.smoothing_curve
    candidates.logits[:] = smoothed(np, candidates.logits[None], factor, curve)[0]
    candidates.reordered()  # a curve below 1 may lift the tail


@_of_sampling
def tail_free(sampling: Sampling, candidates: TokenDataArray) -> None:
    """See `formulas.within_tail_free`."""
    logits = candidates.logits
    candidates.keep(logits >= logits.max() - NEGLIGIBLE)
    candidates.sort()
    candidates.keep(within_tail_free(np, candidates.probabilities()[None], sampling.tfs)[0])


@_of_sampling
def top_a(sampling: Sampling, candidates: TokenDataArray) -> None:
    """See `formulas.above_top_a`."""
    candidates.keep(above_top_a(np, candidates.probabilities()[None], sampling.top_a)[0])


@_of_sampling
def skewing(sampling: Sampling, candidates: TokenDataArray) -> None:
    """See `formulas.skewed`."""
    candidates.sort()
    moved = skewed(np, candidates.probabilities()[None], np.float32(sampling.skew))[0]
    with np.errstate(divide="ignore"):
        candidates.logits[:] = np.log(moved)
    candidates.reordered()


def fading_penalty(sampling: Sampling, size: int, tokens: Iterable[int]) -> OwnLink:
    """The repetition penalty where it decays, see `formulas.faded`; `tokens`: the prompt."""
    last = np.full(size, -np.inf, np.float32)  # the place where each token stood last
    count = 0

    def accept(token: int) -> None:
        nonlocal count
        last[token] = count
        count += 1

    def apply(candidates: TokenDataArray) -> None:
        ages = count - 1 - last[candidates.ids]
        back, decay = sampling.penalty_range, sampling.repetition_decay
        factors = faded(np, ages, np.float32(sampling.repetition_penalty), back, decay)
        candidates.logits[:] = divided(np, candidates.logits, factors)
        candidates.reordered()

    for token in tokens:
        accept(token)
    return OwnLink(apply, accept)


def drawing(seed: int) -> OwnLink:
    """Draws with random numbers that each token has by itself, from the seed and the place in the
    answer alone: so the same seed draws the same among others, where logits are a little different
    and may have another order. llama.cpp walks along the candidates with one number for all.

    Of exponential times at rates of the probabilities the first is drawn, as in `sampling.draw`.
    """
    place = 0

    def accept(_token: int) -> None:
        nonlocal place
        place += 1

    def apply(candidates: TokenDataArray) -> None:
        low, high = map(np.int32, halves(mixed(seed, place)))
        candidates.select(_first(candidates.logits, hashed(candidates.ids, low, high)))

    return OwnLink(apply, accept)


def _first(logits: Floats, bits: npt.NDArray[np.int32]) -> int:
    """The candidate whose time comes first. Of a whole vocabulary most can't be it: they are so
    unlikely that their bits had to be lower than they are, which needs no logarithms. There is one
    of logits that are no numbers, too: without it llama.cpp ends the process.
    """
    likely = ~(logits < logits.max() - LIKELY)
    best = float((logits[likely] - _log_times(bits[likely])).max())
    latest = -math.expm1(-math.exp(min(0.0, float(logits.max()) - LIKELY - best))) / SCALE
    [left] = np.nonzero(likely | (bits <= np.int32(latest)))
    return int(left[(logits[left] - _log_times(bits[left])).argmax()])


def _log_times(bits: npt.NDArray[np.int32]) -> Floats:
    """Logarithms of numbers of the exponential distribution, of 31 random bits each."""
    return np.asarray(np.log(-np.log(1.0 - (bits + 0.5) * SCALE)), np.float32)


_NEVER = float("-inf")
# The fields of llama.h's struct of one biased token.
_LOGIT_BIAS = np.dtype([("token", np.int32), ("bias", np.float32)])
_ANY_SEED = 0xFFFFFFFF
_MIN_KEEP = 1  # a truncation leaves at least one token
_SORTING = frozenset({"tfs", "typical_p", "xtc"})  # top_p sorts no more than it needs
UNLIKELY = 1e-4  # of the best candidate's probability have all together that are dropped unsorted

Biases: TypeAlias = npt.NDArray[np.float32]  # one number for each token of the vocabulary
Link = Any  # llama_sampler_p, which ctypes can't distinguish from other pointers


class Chain:
    """One job's samplers, freed with this. `drawn` is called with each token drawn from it.

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
        # Not at the process's end as well: the engine's thread may be drawing from it then.
        weakref.finalize(self, api.llama_sampler_free, self.pointer).atexit = False
        self._least = max(0, job.min_tokens - len(answer))
        banned = banned if _leaves_some(banned, job.sampling, vocabulary) else ()
        self._banned = bool(banned)
        self._ours: list[OwnLink] = []
        if banned:  # the first ones, which are taken away again
            self._add(_bias(_bans(banned, vocabulary)))
        if self._least:
            self._add(_bias(_bans(vocabulary.ends, vocabulary)))
        for link in Links(job, vocabulary, context_length, _seed(job.sampling, variant)).all():
            self._add(link)
        for token in answer:
            api.llama_sampler_accept(self.pointer, token)

    def _add(self, link: Link | OwnLink) -> None:
        if isinstance(link, OwnLink):
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


class Links(msgspec.Struct, frozen=True, eq=False):
    """Makes the samplers of a job."""

    _job: Generation
    _vocabulary: LlamaVocabulary
    _context_length: int
    _seed: int

    def all(self) -> Iterator[Link | OwnLink]:
        """In their order."""
        sampling, size = self._job.sampling, self._vocabulary.size
        bias = biases(sampling, size, self._vocabulary.ends)
        if bias is not None:
            yield _bias(bias)
        order: Sequence[str] = order_of(sampling)
        if sampling.temperature <= 0:
            order = [name for name in FIRST if name in order]
        elif sampling.mirostat_mode:
            order = [*(name for name in order if name in FIRST), "temperature"]
        yield from ordered(sampling, order, self.of, size)
        yield from self._selection()

    def of(self, name: str) -> Sequence[Link | OwnLink]:
        """Those of one sampler; a neutral one has none."""
        sampling = self._job.sampling
        if sampling.requested().isdisjoint(FIELDS[name]):
            return ()
        match name:
            case "penalties":
                return [*self._penalties()]
            case "dry":
                return [self._dry()]
            case "temperature":
                return [*_temperature(sampling)]
            case "xtc":
                chance, threshold = sampling.xtc_probability, sampling.xtc_threshold
                return [api.llama_sampler_init_xtc(chance, threshold, _MIN_KEEP, self._seed)]
        return [_TRUNCATIONS[name](sampling)]

    def _penalties(self) -> Iterator[Link | OwnLink]:
        sampling, size = self._job.sampling, self._vocabulary.size
        back = self._context_length if sampling.penalty_range < 0 else sampling.penalty_range
        repetition = sampling.repetition_penalty
        if repetition != 1 and fades(sampling):
            yield fading_penalty(sampling, size, self._job.prompt)
        elif repetition != 1:
            link = api.llama_sampler_init_penalties(size, back, repetition, 0.0, 0.0)
            yield _primed(link, self._job.prompt[-back:] if back else ())
        frequency, presence = sampling.frequency_penalty, sampling.presence_penalty
        if frequency or presence:
            yield api.llama_sampler_init_penalties(size, back, 1.0, frequency, presence)

    def _dry(self) -> Link:
        sampling = self._job.sampling
        far = self._context_length if sampling.dry_range <= 0 else sampling.dry_range
        breakers = [text.encode() for text in sampling.dry_sequence_breakers]
        link = api.llama_sampler_init_dry(
            self._vocabulary.pointer,
            sampling.dry_multiplier,
            sampling.dry_base,
            sampling.dry_allowed_length,
            far,
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )
        return _primed(link, self._job.prompt[-far:])

    def _selection(self) -> Iterator[Link | OwnLink]:
        """What draws the token from what is left."""
        sampling, seed = self._job.sampling, self._seed
        tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
        if sampling.temperature <= 0:
            yield api.llama_sampler_init_greedy()
        elif sampling.mirostat_mode == 1:
            # m = 100 is the number of tokens the paper estimates s_hat from (arXiv:2007.14966).
            yield api.llama_sampler_init_mirostat(self._vocabulary.size, seed, tau, eta, 100)
        elif sampling.mirostat_mode:
            yield api.llama_sampler_init_mirostat_v2(seed, tau, eta)
        else:
            if sampling.skew:
                yield skewing(sampling)
            yield self._draw()

    def _draw(self) -> Link | OwnLink:
        sampling = self._job.sampling
        if sampling.adaptive_target >= 0:
            target, decay = sampling.adaptive_target, sampling.adaptive_decay
            return api.llama_sampler_init_adaptive_p(target, decay, self._seed)
        if sampling.seed is not None:
            return drawing(sampling.seed)
        return api.llama_sampler_init_dist(self._seed)


def ordered(
    sampling: Sampling,
    order: Sequence[str],
    links_of: Callable[[str], Sequence[Link | OwnLink]],
    size: int,
) -> Iterator[Link | OwnLink]:
    """Before the first of those that sort, a link that drops what can't matter: sorting all of a
    large vocabulary takes ten to fifty milliseconds.
    """
    small = size <= SMALL
    for place, name in enumerate(order):
        links = links_of(name)
        if links and name in _SORTING and not small:
            hottest = max(sampling.temperature, sampling.max_temp)
            hottest = max(1.0, hottest if "temperature" in order[place:] else 1.0)
            yield api.llama_sampler_init_min_p((UNLIKELY / size) ** hottest, _MIN_KEEP)
        small |= bool(links) and name in _TRUNCATIONS
        yield from links


def _seed(sampling: Sampling, variant: int) -> int:
    """llama.cpp takes the greatest of 32 bits for "any"."""
    if sampling.seed is None:
        return secrets.randbelow(_ANY_SEED)
    seed = sampling.seed if not variant else mixed(sampling.seed, variant)
    return (seed & _ANY_SEED) % _ANY_SEED


def _leaves_some(banned: Collection[int], sampling: Sampling, vocabulary: LlamaVocabulary) -> bool:
    """Whether a token may come at all that is none of `banned`."""
    bias = biases(sampling, vocabulary.size, vocabulary.ends) if banned else None
    if bias is None:
        return bool(len(banned) < vocabulary.size)
    bias[list(banned)] = _NEVER
    return bool(np.any(bias > _NEVER))


def _bans(tokens: Collection[int], vocabulary: LlamaVocabulary) -> Biases:
    bias = np.zeros(vocabulary.size, np.float32)
    bias[list(tokens)] = _NEVER
    return bias


def _bias(bias: Biases) -> Link:
    [tokens] = np.nonzero(bias)
    entries = np.empty(len(tokens), _LOGIT_BIAS)
    entries["token"], entries["bias"] = tokens, bias[tokens]
    pointer = ctypes.cast(entries.ctypes.data, ctypes.POINTER(api.llama_logit_bias))
    return api.llama_sampler_init_logit_bias(len(bias), len(entries), pointer)


def _primed(link: Link, tokens: Sequence[int]) -> Link:
    for token in tokens:
        api.llama_sampler_accept(link, token)
    return link


def _temperature(sampling: Sampling) -> Iterator[Link | OwnLink]:
    if sampling.smoothing_factor > 0:
        yield smoothing(sampling)
    low, high = sampling.min_temp, sampling.max_temp
    if low != high:
        middle, spread = (low + high) / 2, (high - low) / 2
        yield api.llama_sampler_init_temp_ext(middle, spread, sampling.temp_exponent)
    elif sampling.temperature != 1:
        yield api.llama_sampler_init_temp(sampling.temperature)


_TRUNCATIONS: Mapping[str, Callable[[Sampling], Link | OwnLink]] = {
    "top_n_sigma": lambda sampling: api.llama_sampler_init_top_n_sigma(sampling.top_n_sigma),
    "top_k": lambda sampling: api.llama_sampler_init_top_k(sampling.top_k),
    "tfs": tail_free,
    "typical_p": lambda sampling: api.llama_sampler_init_typical(sampling.typical_p, _MIN_KEEP),
    "top_p": lambda sampling: api.llama_sampler_init_top_p(sampling.top_p, _MIN_KEEP),
    "min_p": lambda sampling: api.llama_sampler_init_min_p(sampling.min_p, _MIN_KEEP),
    "top_a": top_a,
}
SUPPORTED = frozenset(SAMPLERS) - (set(TRUNCATIONS) - _TRUNCATIONS.keys())
