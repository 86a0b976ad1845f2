"""The tests that `make test-gpu` runs on a card, with exllamav2 on none."""

import pytest

from tests.gpu.conftest import card, library
from tests.gpu.test_exllama import (
    test_contract,
    test_loading_ten_times_gives_the_memory_back,
    test_logprobs_are_those_of_transformers,
    test_other_caches_and_guesses_give_an_answer,
    test_samplers_run_in_the_real_sampler,
    test_the_extension_compiles_and_loads,
    test_the_greedy_text_is_that_of_transformers_and_llama_cpp,
)

__all__ = [
    "backend",
    "card",
    "library",
    "test_contract",
    "test_loading_ten_times_gives_the_memory_back",
    "test_logprobs_are_those_of_transformers",
    "test_other_caches_and_guesses_give_an_answer",
    "test_samplers_run_in_the_real_sampler",
    "test_the_extension_compiles_and_loads",
    "test_the_greedy_text_is_that_of_transformers_and_llama_cpp",
]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def backend() -> str:
    return "exllamav2"
