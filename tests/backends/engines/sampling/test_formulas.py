"""Every sampler against its formula written out in plain Python, on both engines: through
llama.cpp's chain and on tensors.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch

pytest.importorskip("backends.engines.llamacpp.library")

from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.sampling import Chain
from backends.engines.llamacpp.vocabulary import LlamaVocabulary
from backends.engines.sampling.batch import SamplerBatch
from backends.engines.sampling.draw import Draw, way
from backends.engines.sampling.state import SamplerState, SamplingContext
from backends.engines.vocabulary import HfVocabulary

SIZE = 60
PROMPT = (5, 9, 9, 11, 30, 31, 30, 31)
Shares = dict[int, float]


class Vocabulary:
    """Only as large as it says."""

    size = SIZE
    ends = frozenset({2})
    pointer = None

    def containing(self, _: tuple[str, ...]) -> frozenset[int]:
        return frozenset()


def logits_of(kind: str) -> torch.Tensor:
    if kind == "ties":  # pairs of equal tokens, one of them cut by nothing but its neighbour's fate
        return torch.tensor([[2.0 - (token // 2) * 0.1 for token in range(SIZE)]])
    if kind == "flat":
        return torch.zeros(1, SIZE)
    generator = torch.Generator().manual_seed(int(kind))
    return torch.randn(1, SIZE, generator=generator) * 2.5


def on_tensors(logits: torch.Tensor, sampling: Sampling, answer: Sequence[int] = ()) -> Shares:
    context = SamplingContext(cast("HfVocabulary", Vocabulary()), torch.device("cpu"))
    tokens = list(PROMPT)
    job = Generation(prompt=PROMPT, sampling=sampling)
    state = SamplerState(job, tokens, context)
    batch = SamplerBatch([state], context)
    for token in answer:
        tokens.append(token)
        state.accepted()
    scores = batch._scores(logits)  # noqa: SLF001 - the one step without a draw
    draw = Draw([state], [0], context, way(sampling, SIZE))
    candidates = draw.candidates(scores)
    while candidates.open.any():
        draw = draw.wider([0])
        candidates = draw.candidates(scores)
    pairs = zip(candidates.ids[0].tolist(), candidates.shares()[0].tolist(), strict=True)
    return {token: share for token, share in pairs if share > 1e-9}


def in_llama_cpp(logits: torch.Tensor, sampling: Sampling, answer: Sequence[int] = ()) -> Shares:
    job = Generation(prompt=PROMPT, sampling=sampling)
    chain = Chain(job, cast("LlamaVocabulary", Vocabulary()), 1_000, answer=answer)
    row = logits[0].tolist()
    data = (api.llama_token_data * len(row))(
        *(api.llama_token_data(token, logit, 0.0) for token, logit in enumerate(row))
    )
    array = api.llama_token_data_array(data, len(row), -1, False)
    api.llama_sampler_apply(chain.pointer, ctypes.byref(array))
    chain.drawn()
    left = [array.data[place] for place in range(array.size)]
    return {int(one.id): float(one.p) for one in left if one.p > 1e-9}


# --------------------------------------------------------------- formulas, written out in full


def softmax(scores: Shares) -> Shares:
    peak = max(scores.values())
    powers = {token: math.exp(score - peak) for token, score in scores.items()}
    total = sum(powers.values())
    return {token: power / total for token, power in powers.items()}


def renormalized(shares: Shares) -> Shares:
    total = sum(shares.values())
    return {token: share / total for token, share in shares.items()}


def falling(shares: Shares) -> list[tuple[int, float]]:
    return sorted(shares.items(), key=lambda pair: -pair[1])


def cooled(scores: Shares, by: float) -> Shares:
    return {token: score / by for token, score in scores.items()}


def smoothed(scores: Shares, factor: float, curve: float) -> Shares:
    peak = max(scores.values())
    k, s = (3 - curve) / 2, (curve - 1) / 2
    return {
        token: peak - k * factor * (score - peak) ** 2 + s * factor * (score - peak) ** 3
        for token, score in scores.items()
    }


def top_a(shares: Shares, a: float) -> Shares:
    least = a * max(shares.values()) ** 2
    return renormalized({token: share for token, share in shares.items() if share >= least})


def top_k(shares: Shares, k: int) -> Shares:
    return renormalized(dict(falling(shares)[:k]))


def top_p(shares: Shares, p: float) -> Shares:
    kept, total = {}, 0.0
    for token, share in falling(shares):
        if total >= p:
            break
        kept[token] = share
        total += share
    return renormalized(kept)


def min_p(shares: Shares, p: float) -> Shares:
    least = p * max(shares.values())
    return renormalized({token: share for token, share in shares.items() if share >= least})


def tfs(shares: Shares, z: float) -> Shares:
    ordered = falling(shares)
    values = [share for _, share in ordered]
    bends = [abs(values[n] - 2 * values[n + 1] + values[n + 2]) for n in range(len(values) - 2)]
    total, reached, kept = sum(bends), 0.0, 1
    if not total:
        return shares
    for bend in bends:
        reached += bend / total
        if reached > z:
            break
        kept += 1
    return renormalized(dict(ordered[:kept]))


def skewed(shares: Shares, skew: float) -> Shares:
    found, before = {}, 0.0
    for token, share in falling(shares):
        after = min(1.0, before + share)
        found[token] = after ** math.exp(skew) - before ** math.exp(skew)
        before = after
    return found


def xtc(shares: Shares, threshold: float) -> Shares:
    above = [token for token, share in falling(shares) if share >= threshold]
    dropped = set(above[:-1])
    return renormalized({token: share for token, share in shares.items() if token not in dropped})


def adaptive(shares: Shares, target: float) -> Shares:
    """With the history it begins with, at which the target is the one asked for."""
    scores = {}
    for token, share in shares.items():
        far = abs(share - target) / 0.3
        scores[token] = 5.0 - 10.0 * far * far / (1 + far)
    return softmax(scores)


def mirostat_2(shares: Shares, tau: float) -> Shares:
    kept = {t: share for t, share in shares.items() if -math.log2(share) <= 2 * tau}
    return renormalized(kept or dict(falling(shares)[:1]))


def mirostat_1(shares: Shares, tau: float) -> Shares:
    values = [share for _, share in falling(shares)][:101]
    steps = [math.log((n + 2) / (n + 1)) for n in range(len(values) - 1)]
    falls = [math.log(values[n] / values[n + 1]) for n in range(len(values) - 1)]
    slope = sum(a * b for a, b in zip(steps, falls, strict=True)) / sum(a * a for a in steps)
    excess = slope - 1
    reach = excess * 2 ** (2 * tau) / (1 - SIZE ** (-excess))
    return top_k(shares, max(1, int(reach ** (1 / slope))))


Plain = Callable[[Shares], Shares]
CASES: dict[str, tuple[Sampling, Plain]] = {
    "neutral": (Sampling(), softmax),
    "smoothing": (
        Sampling(smoothing_factor=0.4),
        lambda scores: softmax(smoothed(scores, 0.4, 1.0)),
    ),
    "smoothing curve": (
        Sampling(smoothing_factor=0.3, smoothing_curve=2.5, temperature=1.5),
        lambda scores: softmax(cooled(smoothed(scores, 0.3, 2.5), 1.5)),
    ),
    "top_a": (Sampling(top_a=0.3), lambda scores: top_a(softmax(scores), 0.3)),
    "tfs": (Sampling(tfs=0.9), lambda scores: tfs(softmax(scores), 0.9)),
    "skew": (Sampling(skew=0.7), lambda scores: skewed(softmax(scores), 0.7)),
    "skew back": (
        Sampling(skew=-1.5, min_p=0.05),
        lambda scores: skewed(min_p(softmax(scores), 0.05), -1.5),
    ),
    "xtc": (
        Sampling(xtc_probability=1.0, xtc_threshold=0.05),
        lambda scores: xtc(softmax(scores), 0.05),
    ),
    "adaptive": (
        Sampling(adaptive_target=0.3, min_p=0.02),
        lambda scores: adaptive(min_p(softmax(scores), 0.02), 0.3),
    ),
    "mirostat 1": (
        Sampling(mirostat_mode=1, mirostat_tau=2.0, temperature=0.8),
        lambda scores: mirostat_1(softmax(cooled(scores, 0.8)), 2.0),
    ),
    "mirostat 2": (
        Sampling(mirostat_mode=2, mirostat_tau=1.5, temperature=0.8),
        lambda scores: mirostat_2(softmax(cooled(scores, 0.8)), 1.5),
    ),
    "all truncations": (
        Sampling(temperature=1.4, top_k=40, tfs=0.95, top_p=0.93, min_p=0.03, top_a=0.1),
        lambda scores: top_a(
            min_p(top_p(tfs(top_k(softmax(cooled(scores, 1.4)), 40), 0.95), 0.93), 0.03), 0.1
        ),
    ),
    "temperature last": (
        Sampling(temperature=2.0, temperature_last=True, top_p=0.81),
        lambda scores: softmax(
            {t: math.log(share) / 2.0 for t, share in top_p(softmax(scores), 0.81).items()}
        ),
    ),
    "an order": (
        Sampling(
            temperature=2.0, top_p=0.81, min_p=0.3, samplers=("min_p", "temperature", "top_p")
        ),
        lambda scores: top_p(
            softmax({t: math.log(s) / 2.0 for t, s in min_p(softmax(scores), 0.3).items()}), 0.81
        ),
    ),
    "left out of an order": (
        Sampling(temperature=2.0, top_p=0.5, top_a=0.2, samplers=("temperature",)),
        lambda scores: top_a(softmax(cooled(scores, 2.0)), 0.2),
    ),
}


@pytest.mark.parametrize("engine", [on_tensors, in_llama_cpp])
@pytest.mark.parametrize("kind", ["1", "2", "3"])
@pytest.mark.parametrize("name", CASES)
def test_a_sampler_is_its_formula(name: str, kind: str, engine: Any) -> None:
    sampling, plain = CASES[name]
    logits = logits_of(kind)
    expected = plain(dict(enumerate(logits[0].tolist())))
    found = engine(logits, sampling)
    for token in found.keys() | expected.keys():
        assert found.get(token, 0.0) == pytest.approx(expected.get(token, 0.0), abs=2e-5), token


@pytest.mark.parametrize("engine", [on_tensors, in_llama_cpp])
@pytest.mark.parametrize("kind", ["ties", "flat"])
@pytest.mark.parametrize("name", CASES)
def test_among_equals_it_keeps_as_much_and_as_many(name: str, kind: str, engine: Any) -> None:
    """Which of two equal tokens stays is nobody's to say."""
    sampling, plain = CASES[name]
    if name == "mirostat 1" and kind == "flat":
        pytest.skip("its estimate divides by nothing; that it draws at all is tested below")
    logits = logits_of(kind)
    expected = sorted(plain(dict(enumerate(logits[0].tolist()))).values())
    found = sorted(engine(logits, sampling).values())
    assert found == pytest.approx([share for share in expected if share > 1e-9], abs=2e-5)


@pytest.mark.parametrize("engine", [on_tensors, in_llama_cpp])
@pytest.mark.parametrize("name", CASES)
def test_one_token_that_is_left_is_drawn(name: str, engine: Any) -> None:
    sampling, _ = CASES[name]
    logits = torch.full((1, SIZE), -math.inf)
    logits[0, 7] = -3.0
    assert engine(logits, sampling) == {7: pytest.approx(1.0)}


@pytest.mark.parametrize("engine", [on_tensors])
def test_mirostat_1_draws_from_equals(engine: Any) -> None:
    assert engine(logits_of("flat"), CASES["mirostat 1"][0])


@pytest.mark.parametrize("engine", [on_tensors, in_llama_cpp])
@pytest.mark.parametrize("kind", ["1", "2"])
@pytest.mark.parametrize(("back", "decay"), [(4, 6), (0, 3), (2, 1_000), (500, 5), (-1, 5)])
def test_a_repetition_penalty_decays_with_age(
    back: int, decay: int, kind: str, engine: Any
) -> None:
    answer = (20, 21, 20, 9, 22)
    wishes = Sampling(repetition_penalty=1.8, penalty_range=back, repetition_decay=decay)
    logits = logits_of(kind)
    scores = dict(enumerate(logits[0].tolist()))
    penalized: set[int] = set()
    for age, token in enumerate(reversed((*PROMPT, *answer))):
        fading = 0.0 if back < 0 else max(0, age - back) / decay
        if token in penalized or fading >= 1:
            continue
        penalized.add(token)
        penalty = 1.8 + (1 - 1.8) * fading
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    assert engine(logits, wishes, answer) == pytest.approx(softmax(scores), abs=1e-5)
