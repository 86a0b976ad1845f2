"""The evaluation harness that most published scores come from: the same weights get the same scores
by its `local-completions`, which asks a server, as by its own `hf`.

`lm_eval` brings data libraries of 300 MB, so these run only where it is there:
`pip install --no-deps lm_eval aiohttp tenacity`, and what those lack.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("aiohttp")
pytest.importorskip("backends.engines.llamacpp.library")
pytest.importorskip("torch")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI

import bundled
from tests.served import Served, served

pytestmark = pytest.mark.slow

# As precise as `hf` computes; the half precision of the GGUF's weights is that of the folder's.
PRECISE = {"flash_attention": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
MODELS = [
    {"name": "gguf", "path": str(bundled.GGUF), "options": PRECISE},
    {"name": "folder", "path": str(bundled.SAFETENSORS), "options": {"dtype": "float32"}},
]
WINDOW = 512  # tokens; longer texts are scored in several
SUMS = [(a, b) for a in (1, 3, 6) for b in (2, 5)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("evaluated")
    with served(folder, {"models": MODELS, "default_model": "gguf"}) as running:
        yield running


@pytest.fixture(scope="module")
def truth() -> HFLM:
    return HFLM(
        pretrained=str(bundled.SAFETENSORS), device="cpu", dtype="float32", max_length=WINDOW
    )


@pytest.fixture(params=["gguf", "folder", "tokens from the server"])
def harness(request: pytest.FixtureRequest, server: Served) -> LocalCompletionsAPI:
    remote = request.param not in ("gguf", "folder")
    return LocalCompletionsAPI(
        base_url=f"{server.url}/v1/completions",
        model="gguf" if remote else request.param,
        tokenizer_backend="auto" if remote else "huggingface",
        tokenizer=None if remote else str(bundled.SAFETENSORS),
        max_length=WINDOW + 2,  # two tokens are kept free for the answer
        num_concurrent=3,
    )


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


def thought(a: int, b: int) -> str:
    """All of an answer but the sum, behind which the model ends."""
    asked = f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n"
    return f"{asked}<think>\nI add {a} and {b}.\n</think>\n\n{a} + {b} ="


def choices(a: int, b: int) -> Sequence[str]:
    return tuple(f" {number}" for number in (a + b, a + b + 1, 9, 5))


def test_choices_of_a_token_are_scored_where_the_end_comes_next(
    harness: LocalCompletionsAPI, truth: HFLM
) -> None:
    asked = requests(
        "loglikelihood", *((thought(*sum_), one) for sum_ in SUMS for one in choices(*sum_))
    )
    scores = harness.loglikelihood(asked, disable_tqdm=True)
    expected = truth.loglikelihood(asked, disable_tqdm=True)
    assert [score for score, _ in scores] == pytest.approx(
        [score for score, _ in expected], abs=1e-3
    )
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in expected]
    for start, (a, b) in zip(range(0, len(scores), 4), SUMS, strict=True):
        likelihoods = [score for score, _ in scores[start : start + 4]]
        assert choices(a, b)[likelihoods.index(max(likelihoods))] == f" {a + b}"


def test_texts_longer_than_the_window_are_scored_in_turn(
    harness: LocalCompletionsAPI, truth: HFLM
) -> None:
    texts = ("The engine turns. " * 40, "Hello there, how are you?" * 100, "Hi")
    asked = requests("loglikelihood_rolling", *((text,) for text in texts))
    scores = harness.loglikelihood_rolling(asked, disable_tqdm=True)
    expected = truth.loglikelihood_rolling(asked, disable_tqdm=True)
    assert scores == pytest.approx(expected, rel=1e-5)


def test_answers_are_the_same(harness: LocalCompletionsAPI, truth: HFLM) -> None:
    wishes = {"until": ["<|im_end|>"], "max_gen_toks": 40}
    asked = requests(
        "generate_until", *((thought(*one).partition("<think>")[0], dict(wishes)) for one in SUMS)
    )
    said = harness.generate_until(asked, disable_tqdm=True)
    assert said == truth.generate_until(asked, disable_tqdm=True)
    assert all(text.endswith(f"= {a + b}") for text, (a, b) in zip(said, SUMS, strict=True))


def test_the_tokenizer_is_described_as_its_folder_does(server: Served, truth: HFLM) -> None:
    server.client.post("/tokenize", json={"model": "gguf", "prompt": "loads it"})
    found = server.client.get("/tokenizer_info?model=gguf").json()
    own = truth.tokenizer
    assert {name: found[name] for name in ("bos_token", "eos_token", "pad_token")} == {
        "bos_token": own.bos_token,
        "eos_token": own.eos_token,
        "pad_token": own.pad_token,
    }
    assert found["chat_template"] == own.chat_template
