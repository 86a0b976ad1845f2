"""What a client may count on whichever engine it got: the same tokens for a text, the same effect
of penalties, biases and bans, and seeds that decide.
"""

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("backends.engines.llamacpp.library")
pytest.importorskip("transformers")

import bundled
from backends.contract.protocol import Generation, ModelContainer
from backends.contract.samplers import Sampling
from config.engines import LlamaCppOptions, TransformersOptions
from tests.backends.container_contract import run, text_of
from tests.backends.parity import load, prompts

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Both = tuple[ModelContainer, ModelContainer]


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    one = await load("transformers", TransformersOptions(device="cpu", context_length=1024))
    other = await load("llamacpp", LlamaCppOptions(context_length=1024, gpu_layers=0), bundled.GGUF)
    yield one, other
    await one.aclose()
    await other.aclose()


async def said(engine: ModelContainer, prompt: str, sampling: Sampling, limit: int = 40) -> str:
    tokens = engine.tokenize(prompt, special=True)
    generation = Generation(prompt=tokens, sampling=sampling, max_tokens=limit)
    return text_of((await run(engine, generation))[0])


async def test_texts_are_the_same_tokens(both: Both) -> None:
    one, other = both
    for text in (*prompts(), "Grüße, 蒸気機関車 🚂<|im_end|>", "  two  spaces\n\n\n12345"):
        for special in (True, False):
            tokens = one.tokenize(text, special=special)
            assert tokens == other.tokenize(text, special=special)
            assert one.detokenize(tokens) == other.detokenize(tokens) == text
    named = [(e.info.special.eos, e.info.special.pad, e.info.special.control) for e in both]
    assert named[0] == named[1]
    assert one.info.adds_bos == other.info.adds_bos


COMMA, THINK = ",", "<think>"


@pytest.mark.parametrize(
    "wishes",
    [
        {"repetition_penalty": 2.0},
        {"frequency_penalty": 1.5, "presence_penalty": 1.0},
        {"repetition_penalty": 1.8, "penalty_range": 4},
        {"dry_multiplier": 3.0, "dry_sequence_breakers": ()},
        {"biased": -50.0},
        {"banned": True},
        {"ban_eos": True},
    ],
    ids=",".join,
)
async def test_wishes_bend_a_greedy_answer_alike(both: Both, wishes: dict[str, object]) -> None:
    (comma,) = both[0].tokenize(COMMA, special=False)
    (think,) = both[0].tokenize(THINK, special=True)
    known = {key: value for key, value in wishes.items() if key not in ("biased", "banned")}
    if "biased" in wishes:
        known["logit_bias"] = ((comma, wishes["biased"]), (think, wishes["biased"]))
    if "banned" in wishes:
        known["banned_tokens"] = (comma, think)
    sampling = Sampling(temperature=0, **known)  # type: ignore[arg-type]
    plain, bent = [], []
    for prompt in prompts()[:12]:
        texts = [await said(engine, prompt, sampling) for engine in both]
        assert texts[0] == texts[1], prompt
        bent.append(texts[0])
        plain.append(await said(both[0], prompt, Sampling(temperature=0)))
    assert bent != plain


async def test_a_seed_decides(both: Both) -> None:
    """Each engine repeats itself for a seed and differs between seeds; their rng are their own."""
    for engine in both:
        wishes = [Sampling(seed=seed, temperature=3.0) for seed in (1, 1, 2)]
        first, again, other = [await said(engine, prompts()[3], wish, 150) for wish in wishes]
        assert first == again != other
