"""How likely a prompt's own tokens are: what evaluation harnesses ask for, from both engines."""

import math
from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

pytest.importorskip("backends.engines.llamacpp.library")
pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM

import bundled
from backends.contract.errors import InvalidJob
from backends.contract.protocol import Ended, Generation, ModelContainer, Scored, TokenLogprob
from backends.contract.samplers import Sampling
from backends.engines.vocabulary import HfVocabulary
from config.engines import LlamaCppOptions, TransformersOptions
from tests.backends.container_contract import GREEDY
from tests.backends.engines.transformers.test_container import load_solo
from tests.backends.parity import load

pytestmark = pytest.mark.anyio

LENGTH = 400  # several chunks on each engine
SAID = "".join(
    f"<|im_start|>user\nWhat is {number} + {number + 3}?<|im_end|>\n"
    f"<|im_start|>assistant\n{2 * number + 3}<|im_end|>\n"
    for number in range(1, 30)
)
PROMPT = HfVocabulary(bundled.SAFETENSORS, 768).tokenize(SAID, special=True)[:LENGTH]
ENDLESS = Sampling(temperature=0, ban_eos=True)


@pytest.fixture(scope="module", params=["transformers", "llamacpp"])
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    if request.param == "transformers":
        precise = TransformersOptions(
            device="cpu", dtype="float32", context_length=512, max_concurrent=4, cache_tokens=1024
        )
        loaded = await load("transformers", precise)
    else:
        options = LlamaCppOptions(
            context_length=512,
            gpu_layers=0,
            threads=1,
            threads_batch=1,
            max_concurrent=4,
            cache_tokens=1024,
            cache_type_k="f32",
            cache_type_v="f32",
            flash_attention="off",  # it computes in half precision
        )
        loaded = await load("llamacpp", options, bundled.GGUF)
    yield loaded
    await loaded.aclose()


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    """(LENGTH - 1, vocabulary): transformers' own, in one pass."""
    model = AutoModelForCausalLM.from_pretrained(bundled.SAFETENSORS, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([PROMPT])).logits
    return logits[0, :-1].log_softmax(-1)


async def scored(
    container: ModelContainer, prompt: Sequence[int] = PROMPT, limit: int = 0
) -> tuple[list[TokenLogprob], Ended]:
    found: list[TokenLogprob] = []
    job = Generation(prompt=tuple(prompt), sampling=GREEDY, max_tokens=limit, prompt_logprobs=3)
    async with container.generate(job) as outputs:
        async for output in outputs:
            match output:
                case Scored(logprobs):
                    found += logprobs
                case Ended():
                    return found, output
    raise AssertionError("no end")


def near(expected: Sequence[float]) -> Sequence[object]:
    """The bundled GGUF has half precision, which counts for more where a token is unlikely."""
    coarse = ((-1, 0.02), (-7, 0.05), (-math.inf, 0.25))
    return [
        pytest.approx(one, abs=next(apart for least, apart in coarse if one >= least))
        for one in expected
    ]


def check(logprobs: Sequence[TokenLogprob], truth: torch.Tensor) -> None:
    assert [one.chosen.token for one in logprobs] == list(PROMPT[: len(logprobs)])
    assert (logprobs[0].chosen.logprob, logprobs[0].top) == (0.0, ())
    rows = truth[: len(logprobs) - 1]
    expected = rows.gather(-1, torch.tensor(PROMPT[1 : len(logprobs)])[:, None]).squeeze(-1)
    assert [one.chosen.logprob for one in logprobs[1:]] == near(expected.tolist())
    best = [other.logprob for one in logprobs[1:] for other in one.top]
    assert best == near(rows.topk(3).values.flatten().tolist())


async def test_a_prompt_is_scored_as_one_pass_of_the_model_does(
    container: ModelContainer, truth: torch.Tensor
) -> None:
    found, ended = await scored(container)
    assert len(found) == LENGTH
    check(found, truth)
    assert (ended.cause, ended.completion_tokens, ended.prompt_tokens) == ("max_tokens", 0, LENGTH)


async def test_what_is_in_the_cache_is_scored_all_the_same(
    container: ModelContainer, truth: torch.Tensor
) -> None:
    for length in (LENGTH, LENGTH, 200, 2, 1):
        found, _ = await scored(container, PROMPT[:length])
        assert len(found) == length
        check(found, truth)


async def test_scoring_and_answers_leave_each_other_alone(
    container: ModelContainer, truth: torch.Tensor
) -> None:
    """Also where the cache is too small for all, so that some are computed again."""
    answers: list[list[int]] = []
    scores: list[list[TokenLogprob]] = []

    async def answer() -> None:
        tokens: list[int] = []
        job = Generation(prompt=PROMPT[:50], sampling=ENDLESS, max_tokens=250)
        async with container.generate(job) as outputs:
            async for output in outputs:
                tokens += getattr(output, "tokens", ())
        answers.append(tokens)

    async def score() -> None:
        scores.append((await scored(container))[0])

    await answer()
    async with anyio.create_task_group() as tasks:
        for one in (answer, score, score, answer, score):
            tasks.start_soon(one)
    assert answers[1:] == [answers[0]] * 2
    for found in scores:
        check(found, truth)


async def test_an_answer_follows_the_scores(container: ModelContainer) -> None:
    found, ended = await scored(container, PROMPT[:60], limit=5)
    assert len(found) == 60
    assert ended.completion_tokens == 5


async def test_scoring_can_be_left_at_any_time(
    container: ModelContainer, truth: torch.Tensor
) -> None:
    job = Generation(prompt=PROMPT, sampling=GREEDY, prompt_logprobs=0)
    for _ in range(6):
        async with container.generate(job) as outputs:
            await anext(outputs)
    check((await scored(container))[0], truth)


async def test_who_can_not_score_says_so() -> None:
    container = await load_solo()
    with pytest.raises(InvalidJob, match="log probabilities") as caught:
        await scored(container)
    assert caught.value.param == "logprobs"
    await container.aclose()
