"""Every sampler means the same on every engine that runs here; `docs/samplers.md` has the numbers.

A seed gives the same text on transformers and exllamav2, where half and single precision don't
disagree on a tie. llama.cpp's own samplers are compared by the probabilities that they leave.
"""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

import bundled
from backends.contract.protocol import Generation, ModelContainer, TokenLogprob
from backends.contract.samplers import SAMPLERS, Sampling
from backends.engines.sampling.batch import SamplerBatch
from backends.engines.sampling.draw import Draw, way
from backends.engines.sampling.state import SamplerState, SamplingContext
from backends.engines.vocabulary import HfVocabulary
from config.engines import ExLlamaV2Options, LlamaCppOptions, TransformersOptions
from tests.backends.batching import GREETING, STORY
from tests.backends.container_contract import run
from tests.backends.parity import load
from tests.backends.sampler_settings import SETTINGS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEEDS = 8  # of each of two prompts
TOKENS = 8
PLACE = 12  # of an answer: where what it has said already counts, too
TABLE = Path("docs/samplers.md")
ON_CPU = LlamaCppOptions(context_length=512, gpu_layers=0)


async def texts(container: ModelContainer, sampling: Sampling) -> list[tuple[int, ...]]:
    found: dict[tuple[str, int], tuple[int, ...]] = {}

    async def one(prompt: str, seed: int) -> None:
        tokens = container.tokenize(prompt, special=True)
        seeded = msgspec.structs.replace(sampling, seed=seed)
        asked = Generation(prompt=tokens, sampling=seeded, max_tokens=TOKENS)
        pieces, _ = await run(container, asked)
        found[prompt, seed] = tuple(token for piece in pieces for token in piece.tokens)

    async with anyio.create_task_group() as tasks:
        for prompt in (GREETING, STORY):
            for seed in range(SEEDS):
                tasks.start_soon(one, prompt, seed)
    return [found[key] for key in sorted(found)]


async def all_texts(container: ModelContainer) -> Mapping[str, list[tuple[int, ...]]]:
    found = {name: await texts(container, sampling) for name, sampling in SETTINGS.items()}
    await container.aclose()
    return found


async def left(
    container: ModelContainer, prompt: tuple[int, ...], sampling: Sampling
) -> list[dict[int, float]]:
    """For each place of an answer its candidates, as llama.cpp's samplers leave them."""
    seeded = msgspec.structs.replace(sampling, seed=3)
    asked = Generation(
        prompt=prompt, sampling=seeded, max_tokens=PLACE + 1, logprobs=768, after_samplers=True
    )
    pieces, _ = await run(container, asked)
    return [chances(found) for piece in pieces for found in piece.logprobs]


def chances(logprob: TokenLogprob) -> dict[int, float]:
    """The likely ones, of which the chosen need not be one."""
    candidates = (logprob.chosen, *logprob.top)
    return {one.token: math.exp(one.logprob) for one in candidates}


async def unbent(container: ModelContainer, prompt: tuple[int, ...]) -> torch.Tensor:
    """The model's own logits after `prompt`, (1, vocabulary). Logprobs lack a constant, which
    counts for a penalty; transformers has it, near enough.
    """
    with torch.inference_mode():
        [scores] = the_model()(torch.tensor([prompt])).logits[:, -1]
    going_on = Sampling(ban_eos=True)
    asked = Generation(prompt=prompt, sampling=going_on, max_tokens=1, logprobs=768)
    pieces, _ = await run(container, asked)
    [logprob] = [found for piece in pieces for found in piece.logprobs]
    row = torch.full((1, 768), -math.inf)
    for one in logprob.top:
        row[0, one.token] = one.logprob
    return row + scores.logsumexp(-1)


@cache
def the_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(bundled.SAFETENSORS, dtype=torch.float32)


def on_tensors(
    logits: torch.Tensor, prompt: tuple[int, ...], answer: tuple[int, ...], sampling: Sampling
) -> dict[int, float]:
    """What `backends.engines.sampling` draws from."""
    context = SamplingContext(HfVocabulary(bundled.SAFETENSORS, 768), torch.device("cpu"))
    tokens = list(prompt)
    state = SamplerState(Generation(prompt=prompt, sampling=sampling), tokens, context)
    batch = SamplerBatch([state], context)
    for token in answer:
        tokens.append(token)
        state.accepted()
    scores = batch._scores(logits)  # noqa: SLF001 - the one step without a draw
    draw = Draw([state], [0], context, way(sampling, context.size))
    candidates = draw.candidates(scores)
    while candidates.open.any():
        draw = draw.wider([0])
        candidates = draw.candidates(scores)
    pairs = zip(candidates.ids[0].tolist(), candidates.shares()[0].tolist(), strict=True)
    return {token: share for token, share in pairs if share > 1e-9}


async def apart(container: ModelContainer, sampling: Sampling) -> float:
    """The most that both are apart, as a share of all: at an answer's beginning and further on."""
    prompt = container.tokenize(STORY, special=True)
    found = await left(container, prompt, sampling)
    answer = tuple(await drawn(container, prompt, sampling))
    learns = sampling.mirostat_mode or sampling.adaptive_target >= 0  # by what was drawn
    places = (0,) if learns else (0, min(PLACE, len(found) - 1))
    distances = []
    for place in places:
        said = answer[:place]
        logits = await unbent(container, (*prompt, *said))
        one, other = on_tensors(logits, prompt, said, sampling), found[place]
        tokens = one.keys() | other.keys()
        distances.append(sum(abs(one.get(t, 0.0) - other.get(t, 0.0)) for t in tokens) / 2)
    return max(distances)


async def drawn(
    container: ModelContainer, prompt: tuple[int, ...], sampling: Sampling
) -> list[int]:
    seeded = msgspec.structs.replace(sampling, seed=3)
    asked = Generation(prompt=prompt, sampling=seeded, max_tokens=PLACE + 1)
    pieces, _ = await run(container, asked)
    return [token for piece in pieces for token in piece.tokens]


def row(name: str, alike: int, distance: float) -> str:
    return f"| {name} | {alike} of {2 * SEEDS} | {distance:.1%} |"


async def test_every_sampler_is_the_same_everywhere() -> None:
    options = TransformersOptions(device="cpu", dtype="float32", context_length=512)
    theirs = await all_texts(await load("transformers", options))
    ours = await all_texts(
        await load("exllamav2", ExLlamaV2Options(max_concurrent=8, context_length=512))
    )
    alike = {
        name: sum(a == b for a, b in zip(ours[name], theirs[name], strict=True))
        for name in SETTINGS
    }
    native = await load("llamacpp", ON_CPU, bundled.GGUF)
    distances = {name: await apart(native, sampling) for name, sampling in SETTINGS.items()}
    await native.aclose()
    rows = [row(name, alike[name], distances[name]) for name in SETTINGS]
    print("\n".join(rows))  # noqa: T201 - the document's table
    assert len({tokens for found in theirs.values() for tokens in found}) > 100
    assert min(alike.values()) >= 2 * SEEDS - 2, alike
    # Tail-free sampling cuts by second differences: the last digit of a logit, which a pass of
    # another width rounds otherwise, takes a token on the edge in or out.
    on_the_edge = distances.pop("`tfs`")
    assert on_the_edge < 0.05
    assert max(distances.values()) < 2e-3, distances


def test_every_parameter_of_a_sampler_is_in_a_setting() -> None:
    """Seeds are in all of them; banned strings are the transcript's, and no sampler's."""
    tried = set[str]().union(*(sampling.requested() for sampling in SETTINGS.values()))
    assert set(SAMPLERS) - tried == {"seed", "banned_strings"}


def test_the_table_has_every_setting() -> None:
    told = [line.split("|")[1].strip() for line in TABLE.read_text().splitlines() if "%" in line]
    assert told == list(SETTINGS)
