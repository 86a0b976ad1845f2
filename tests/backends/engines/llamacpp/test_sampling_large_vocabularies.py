"""What the samplers that sort are given of a large vocabulary."""

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling, order_of
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.sampling import (
    SMALL,
    UNLIKELY,
    Link,
    Links,
    OwnLink,
    TokenDataArray,
    ordered,
)
from backends.engines.llamacpp.vocabulary import LlamaVocabulary

SIZE = 150_000
CASES = [
    Sampling(tfs=0.95),
    Sampling(typical_p=0.9),
    Sampling(xtc_probability=1.0, xtc_threshold=0.1),
    Sampling(tfs=0.95, temperature=2.0, temperature_last=True),
    Sampling(xtc_probability=1.0, xtc_threshold=0.05, min_p=0.02),
]


def logits(seed: int) -> npt.NDArray[np.float32]:
    """A few likely candidates, and a vocabulary behind them."""
    chance = np.random.default_rng(seed)
    found = chance.normal(0, 2, SIZE).astype(np.float32)
    found[chance.integers(0, SIZE, 500)] += chance.exponential(4, 500).astype(np.float32)
    found[chance.integers(0, SIZE, 3)] += 16
    return found


def left(chain: Sequence[Link | OwnLink], among: npt.NDArray[np.float32]) -> dict[int, float]:
    """The candidates that `chain` leaves, and their probabilities."""
    rows = np.empty((SIZE, 3), np.int32)
    rows[:, 0], rows[:, 1] = np.arange(SIZE), among.view(np.int32)
    data = ctypes.cast(rows.ctypes.data, ctypes.POINTER(api.llama_token_data))
    array = api.llama_token_data_array(data=data, size=SIZE, selected=-1, sorted=False)
    for link in chain:
        pointer = link.pointer if isinstance(link, OwnLink) else link
        api.llama_sampler_apply(pointer, ctypes.byref(array))
        api.llama_sampler_free(pointer)
    kept = rows[: array.size]
    powers = np.exp(kept[:, 1].copy().view(np.float32).astype(np.float64) - float(among.max()))
    return dict(zip(kept[:, 0].tolist(), (powers / powers.sum()).tolist(), strict=True))


@pytest.mark.parametrize("sampling", CASES, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_dropped_unsorted_changes_probabilities_by_less_than_the_bound(
    sampling: Sampling, seed: int
) -> None:
    vocabulary = cast(LlamaVocabulary, SimpleNamespace(size=SIZE, ends=frozenset(), pointer=None))
    links = Links(Generation(prompt=(1,), sampling=sampling), vocabulary, 1_000, 5)
    order, among = order_of(sampling), logits(seed)
    whole = left([link for name in order for link in links.of(name)], among)
    ours = left(list(ordered(sampling, order, links.of, SIZE)), among)
    apart = sum(abs(whole.get(token, 0) - ours.get(token, 0)) for token in {*whole, *ours})
    assert apart <= 20 * UNLIKELY


@pytest.mark.parametrize("name", ["tfs", "typical_p", "xtc"])
def test_what_sorts_is_given_a_part_of_a_large_vocabulary_alone(name: str) -> None:
    seen: list[int] = []

    def count(candidates: TokenDataArray) -> None:
        seen.append(len(candidates.ids))

    for size in (SIZE, SMALL):
        left(list(ordered(Sampling(), [name], lambda _: [OwnLink(count)], size)), logits(1))
    assert seen[0] < SIZE / 4
    assert seen[1] == SIZE
