"""The samplers mean what llama.cpp's mean (its own functions are the judge), for every row of a
batch alike.
"""

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import bundled
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.sampling.batch import SamplerBatch, logprobs
from backends.engines.sampling.draw import Draw, way
from backends.engines.sampling.state import Dry, SamplerState, SamplingContext
from backends.engines.sampling.truncation import wider, window
from backends.engines.transformers.sampler import Sampler
from backends.engines.vocabulary import HfVocabulary

CPU = torch.device("cpu")
PROMPT = (5, 9, 9, 11, 300, 301, 300, 301)


@cache
def vocabulary() -> HfVocabulary:
    return HfVocabulary(bundled.SAFETENSORS, 768)


def context() -> SamplingContext:
    return SamplingContext(vocabulary(), CPU)


def state(
    sampling: Sampling, shared: SamplingContext | None = None, **changes: Any
) -> SamplerState:
    job = msgspec.structs.replace(Generation(prompt=PROMPT, sampling=sampling), **changes)
    return SamplerState(job, list(job.prompt), shared or context())


def some_logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, 768, generator=torch.Generator().manual_seed(seed)) * 3


def ours(logits: torch.Tensor, sampling: Sampling) -> dict[int, float]:
    """What may be drawn, with its probability, when everything is applied but the draw."""
    draw = Draw([state(sampling)], [0], context(), way(sampling, 768))
    candidates = draw.candidates(logits)
    while candidates.open.any():
        draw = draw.wider([0])
        candidates = draw.candidates(logits)
    left = candidates.shares()
    pairs = zip(candidates.ids[0].tolist(), left[0].tolist(), strict=True)
    return {token: share for token, share in pairs if share > 0}


def theirs(logits: torch.Tensor, links: Sequence[Callable[[Any], Any]]) -> dict[int, float]:
    """The same by llama.cpp's samplers."""
    from backends.engines.llamacpp.library import api

    row = logits[0].tolist()
    data = (api.llama_token_data * len(row))(
        *(api.llama_token_data(token, logit, 0.0) for token, logit in enumerate(row))
    )
    array = api.llama_token_data_array(data, len(row), -1, False)
    for make in links:
        link = make(api)
        api.llama_sampler_apply(link, ctypes.byref(array))
        api.llama_sampler_free(link)
    left = [array.data[place] for place in range(array.size)]
    kept = {int(token.id): float(token.logit) for token in left}
    peak = max(kept.values())
    total = sum(math.exp(logit - peak) for logit in kept.values())
    return {token: math.exp(logit - peak) / total for token, logit in kept.items()}


CASES: Sequence[tuple[Sampling, Sequence[Callable[[Any], Any]]]] = (
    (Sampling(top_k=7), [lambda api: api.llama_sampler_init_top_k(7)]),
    (Sampling(top_p=0.8), [lambda api: api.llama_sampler_init_top_p(0.8, 1)]),
    (Sampling(top_p=0.995), [lambda api: api.llama_sampler_init_top_p(0.995, 1)]),
    (Sampling(min_p=0.05), [lambda api: api.llama_sampler_init_min_p(0.05, 1)]),
    (Sampling(typical_p=0.7), [lambda api: api.llama_sampler_init_typical(0.7, 1)]),
    (Sampling(top_n_sigma=1.5), [lambda api: api.llama_sampler_init_top_n_sigma(1.5)]),
    (
        Sampling(xtc_probability=1.0, xtc_threshold=0.05),
        [lambda api: api.llama_sampler_init_xtc(1.0, 0.05, 1, 0)],
    ),
    (
        Sampling(min_temp=0.3, max_temp=1.9, temp_exponent=1.5),
        [lambda api: api.llama_sampler_init_temp_ext(1.1, 0.8, 1.5)],
    ),
    (
        Sampling(temperature=1.7, top_k=40, top_p=0.9, min_p=0.02),
        [
            lambda api: api.llama_sampler_init_temp(1.7),
            lambda api: api.llama_sampler_init_top_k(40),
            lambda api: api.llama_sampler_init_top_p(0.9, 1),
            lambda api: api.llama_sampler_init_min_p(0.02, 1),
        ],
    ),
    (
        Sampling(temperature=3.0, temperature_last=True, top_p=0.9),
        [
            lambda api: api.llama_sampler_init_top_p(0.9, 1),
            lambda api: api.llama_sampler_init_temp(3.0),
        ],
    ),
    (
        Sampling(temperature=1.7, typical_p=0.9, top_p=0.95, min_p=0.01),
        [
            lambda api: api.llama_sampler_init_temp(1.7),
            lambda api: api.llama_sampler_init_typical(0.9, 1),
            lambda api: api.llama_sampler_init_top_p(0.95, 1),
            lambda api: api.llama_sampler_init_min_p(0.01, 1),
        ],
    ),
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(sorted(case[0].requested())))
def test_what_may_be_drawn_is_what_llama_cpp_would_draw(
    case: tuple[Sampling, Sequence[Callable[[Any], Any]]], seed: int
) -> None:
    sampling, links = case
    logits = some_logits(seed)
    found, expected = ours(logits, sampling), theirs(logits, links)
    kept = {token: share for token, share in expected.items() if share > 1e-12}
    assert set(found) >= set(kept)
    assert found == pytest.approx({token: kept.get(token, 0.0) for token in found}, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_penalties_are_llama_cpps(seed: int) -> None:
    """Repetition over prompt and answer, frequency and presence over the answer."""
    answer = (20, 21, 20, 9)
    wishes = Sampling(
        temperature=0, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2
    )
    job_state = state(wishes)
    batch = SamplerBatch([job_state], context())
    for token in answer:
        job_state.tokens.append(token)  # type: ignore[attr-defined]
        job_state.accepted()
    logits = some_logits(seed)

    def repetition(api: Any) -> Any:
        link = api.llama_sampler_init_penalties(768, 100, 1.3, 0.0, 0.0)
        for token in (*PROMPT, *answer):
            api.llama_sampler_accept(link, token)
        return link

    def frequency(api: Any) -> Any:
        link = api.llama_sampler_init_penalties(768, 100, 1.0, 0.4, 0.2)
        for token in answer:
            api.llama_sampler_accept(link, token)
        return link

    expected = theirs(logits, [repetition, frequency])
    scores = batch._scores(logits).softmax(-1)[0].tolist()  # noqa: SLF001 - the one step without a draw
    assert dict(enumerate(scores)) == pytest.approx(expected, abs=1e-6)


def test_a_penalty_range_forgets_what_is_further_back() -> None:
    wishes = Sampling(temperature=0, repetition_penalty=2.0, penalty_range=2)
    job_state = state(wishes)
    batch = SamplerBatch([job_state], context())
    logits = torch.zeros(1, 768)
    logits[0, [300, 301, 20]] = torch.tensor([3.0, 2.5, 2.0])
    drawn = []
    for _ in range(3):
        [token] = batch.draw(logits)
        batch.count([token])
        drawn.append(token)
        job_state.tokens.append(token)  # type: ignore[attr-defined]
        job_state.drawn()
    # 300 and 301 end the prompt: 1.5 and 1.25 are left of them, until 20 has pushed 300 out.
    assert drawn == [20, 300, 301]


@given(st.integers(0, 1000), st.permutations(range(5)))
def test_a_row_does_not_depend_on_its_neighbours(seed: int, order: list[int]) -> None:
    wishes = [
        Sampling(temperature=0),
        Sampling(seed=1),
        Sampling(seed=2, top_p=0.5, temperature=1.5),
        Sampling(seed=3, min_temp=0.5, max_temp=2.0, repetition_penalty=1.2, xtc_probability=0.5),
        Sampling(
            seed=4, typical_p=0.5, tfs=0.9, top_a=0.1, smoothing_factor=0.3, dry_multiplier=1.0
        ),
    ]
    logits = some_logits(seed, rows=len(wishes))
    alone = [
        SamplerBatch([state(wish)], context()).draw(logits[row : row + 1])[0]
        for row, wish in enumerate(wishes)
    ]
    together = SamplerBatch([state(wishes[row]) for row in order], context()).draw(logits[order])
    assert together == [alone[row] for row in order]


def test_a_low_temperature_is_what_it_is_beside_a_dynamic_one() -> None:
    logits = torch.tensor([[0.0, -1e-4, *[-40.0] * 766]])
    dynamic = Sampling(seed=1, min_temp=0.5, max_temp=2.0)
    for seed in range(30):
        low = Sampling(seed=seed, temperature=2e-5)
        alone = SamplerBatch([state(low)], context()).draw(logits)
        assert (
            SamplerBatch([state(low), state(dynamic)], context()).draw(logits.expand(2, -1))[:1]
            == alone
        )


@pytest.mark.parametrize("seed", [7, None])
def test_draws_follow_the_probabilities(seed: int | None) -> None:
    logits = torch.full((1, 768), -40.0)
    logits[0, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    job_state = state(Sampling(seed=seed))
    batch = SamplerBatch([job_state], context())
    count = 4000
    for _ in range(count):
        job_state.tokens += batch.draw(logits)  # type: ignore[operator]
    drawn = Counter(job_state.tokens[len(PROMPT) :])
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert drawn[token] / count == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("share", [1.0, 0.999], ids=["plain", "truncated"])
def test_what_is_banned_is_never_drawn(share: float) -> None:
    allowed = (3, 700)
    wishes = Sampling(
        seed=1, temperature=5.0, allowed_tokens=allowed, banned_tokens=(3,), top_p=share
    )
    batch = SamplerBatch([state(wishes)], context())
    assert {batch.draw(some_logits(seed))[0] for seed in range(50)} == {700}


def test_a_flat_distribution_needs_more_than_the_first_candidates() -> None:
    """top_p over 768 equal tokens keeps more than the ones looked at first."""
    assert len(ours(torch.zeros(1, 768), Sampling(top_p=0.75))) == 576


def test_the_end_waits_for_the_least_length() -> None:
    logits = torch.zeros(1, 768)
    logits[0, 2] = 10.0
    job_state = state(Sampling(temperature=0), min_tokens=2)
    batch = SamplerBatch([job_state], context())
    drawn = []
    for _ in range(3):
        drawn += batch.draw(logits)
        job_state.drawn()
    assert 2 not in drawn[:2]
    assert drawn[2] == 2


def test_dry_punishes_what_would_repeat() -> None:
    wishes = Sampling(dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=2)
    dry = Dry(wishes, breakers=frozenset({99}))
    assert dry.penalties([1, 2, 3, 4, 1, 2, 3]) == {4: pytest.approx(0.8 * 2.0)}
    assert dry.penalties([1, 2, 3, 4, 5, 3]) == {}  # a match of one is allowed
    assert dry.penalties([1, 2, 99, 4, 1, 2, 99]) == {}  # nothing matches over a breaker
    ranged = msgspec.structs.replace(wishes, dry_range=4)
    assert Dry(ranged, frozenset()).penalties([1, 2, 3, 4, 1, 2, 3]) == {}


def test_dry_without_limit_forbids() -> None:
    """A penalty that no float holds doesn't raise: it is infinite."""
    wishes = Sampling(dry_multiplier=1.0, dry_base=1e300, dry_allowed_length=0)
    assert Dry(wishes, frozenset()).penalties([5, 6, 7, 5, 6]) == {7: math.inf}


class Copies(TorchFunctionMode):  # type: ignore[misc]
    """Counts what waits for the device: every reading of a tensor's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        waiting = ("tolist", "item", "__bool__", "__int__", "__float__", "cpu", "numpy", "nonzero")
        self.count += getattr(function, "__name__", "") in waiting
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("alternatives", [None, 3])
def test_a_step_waits_for_the_device_once_and_once_for_logprobs(alternatives: int | None) -> None:
    wishes = [
        Sampling(temperature=0),
        Sampling(top_p=0.9),
        Sampling(seed=1, top_k=40, min_p=0.05),
        Sampling(temperature_last=True, typical_p=0.9, xtc_probability=0.5),
        Sampling(repetition_penalty=1.1, presence_penalty=0.5),
    ]
    shared = context()
    shared.on_host = False  # as where the logits lie on a card
    sampler = Sampler(shared)
    states = [state(wish, shared, logprobs=alternatives) for wish in wishes]
    with Copies() as copies:
        sampler.sample(states, some_logits(1, rows=5))
    assert copies.count == (1 if alternatives is None else 2)


def test_dry_breakers_are_tokens_that_contain_them() -> None:
    """A repetition of two lines is one of their words alone: the newline between them breaks it."""
    words = vocabulary().tokenize("one two three\none two three\n", special=False)
    wishes = Sampling(temperature=0, dry_multiplier=100.0, dry_sequence_breakers=("\n",))
    job_state = state(wishes, prompt=words)
    assert job_state.dry is not None
    assert job_state.dry.penalties(words) == {}
    unbroken = Dry(wishes, frozenset())
    assert unbroken.penalties(words) != {}


def test_logprobs_are_of_the_raw_distribution_and_only_where_asked_for() -> None:
    logits = some_logits(1, rows=3)
    found = logprobs(logits, [4, 5, 6], [None, 0, 3], lambda token: str(token).encode())
    assert found[0] is None
    assert found[1] is not None
    assert found[2] is not None
    assert found[1].top == ()
    assert found[1].chosen.logprob == pytest.approx(float(logits[1].log_softmax(-1)[5]), abs=1e-5)
    values, ids = logits[2].log_softmax(-1).topk(3)
    assert [candidate.token for candidate in found[2].top] == ids.tolist()
    assert [candidate.logprob for candidate in found[2].top] == pytest.approx(
        values.tolist(), abs=1e-5
    )
    assert found[2].top[0].text == str(ids[0].item()).encode()


@pytest.mark.parametrize(
    ("sampling", "size", "expected"),
    [
        (Sampling(temperature=0.8), 150_000, None),
        (Sampling(top_p=0.9), 150_000, 64),
        (Sampling(top_k=64), 150_000, 64),
        (Sampling(top_k=65), 150_000, 256),
        (Sampling(top_k=257), 768, 768),
        (Sampling(top_k=5_000), 150_000, 150_000),
        (Sampling(top_k=5, typical_p=0.9), 150_000, 64),
        (Sampling(top_p=0.9, typical_p=0.9), 150_000, 150_000),
    ],
)
def test_the_first_window_holds_what_a_job_s_own_wishes_can_leave(
    sampling: Sampling, size: int, expected: int | None
) -> None:
    assert window(sampling, size) == expected


def test_windows_widen_up_to_everything() -> None:
    assert [wider(count, 150_000) for count in (0, 64, 256, 1024)] == [64, 256, 1024, 150_000]
