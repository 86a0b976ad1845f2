"""Biases reach llama.cpp in bulk."""

import ctypes
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.contract.samplers import Sampling
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.sampling import _bias
from backends.engines.llamacpp.vocabulary import LlamaVocabulary
from backends.engines.sampling.biases import biases

NEVER = float("-inf")
SMALL, LARGE = 8, 262_144
ENDS = frozenset({1})


def vocabulary(size: int) -> LlamaVocabulary:
    return cast("LlamaVocabulary", SimpleNamespace(size=size, ends=ENDS))


def applied(sampling: Sampling, size: int) -> list[float]:
    """What llama.cpp makes of logits that are all 0."""
    bias = biases(sampling, size, ENDS)
    assert bias is not None
    data = (api.llama_token_data * size)(
        *(api.llama_token_data(id=token, logit=0.0, p=0.0) for token in range(size))
    )
    candidates = api.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)
    link: Any = _bias(bias)
    api.llama_sampler_apply(link, ctypes.byref(candidates))
    api.llama_sampler_free(link)
    return [data[token].logit for token in range(size)]


@pytest.mark.parametrize(
    ("sampling", "added"),
    [
        (Sampling(logit_bias=((2, 1.5), (7, -3.0))), {2: 1.5, 7: -3.0}),
        (Sampling(banned_tokens=(0, 3)), {0: NEVER, 3: NEVER}),
        (Sampling(ban_eos=True), {1: NEVER}),
        (Sampling(allowed_tokens=(2, 5)), dict.fromkeys((0, 1, 3, 4, 6, 7), NEVER)),
        (
            Sampling(allowed_tokens=(2, 5), logit_bias=((2, 1.0), (3, 2.0)), banned_tokens=(5,)),
            {**dict.fromkeys((0, 1, 3, 4, 5, 6, 7), NEVER), 2: 1.0},
        ),
    ],
)
def test_llama_cpp_adds_each_bias_to_its_token(sampling: Sampling, added: dict[int, float]) -> None:
    assert applied(sampling, SMALL) == [added.get(token, 0.0) for token in range(SMALL)]


def test_without_biases_there_is_nothing_to_add() -> None:
    assert biases(Sampling(), SMALL, ENDS) is None


def test_a_bias_over_a_large_vocabulary_makes_no_object_for_each_token() -> None:
    """Making them holds the GIL: half a second with one for each token."""
    tracemalloc.start()
    try:
        bias = biases(Sampling(allowed_tokens=(5, 6)), LARGE, ENDS)
        assert bias is not None
        api.llama_sampler_free(_bias(bias))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * LARGE
