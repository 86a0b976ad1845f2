"""What exllamav2 makes of the families it knows: the numbers of transformers, at any length."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from config.engines import ExLlamaV2Options, ExLlamaV3Options
from tests.backends.container_contract import run
from tests.backends.parity import load
from tests.cardless.random_models import FAMILIES, write

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPTIONS = ExLlamaV2Options(max_concurrent=2, context_length=768, chunk_size=256)
LENGTHS = (3, 200, 700)
ORDINARY = 300  # a token with a text
NEAR = 0.06  # half precision on the one side, single on the other


def prompt(length: int) -> tuple[int, ...]:
    return tuple(random.Random(length).choices(range(300, 700), k=length))


async def chances(
    options: ExLlamaV2Options | ExLlamaV3Options, folder: Path, lengths: Sequence[int] = LENGTHS
) -> list[list[float]]:
    """Logprobs of all tokens after a prompt of each length."""
    found = []
    name = "exllamav2" if isinstance(options, ExLlamaV2Options) else "exllamav3"
    container = await load(name, options, folder)
    for length in lengths:
        # An end token has no piece: a model of random weights may choose it, so an ordinary one is.
        chosen = Sampling(temperature=0, logit_bias=((ORDINARY, 1000.0),))
        asked = Generation(prompt=prompt(length), sampling=chosen, max_tokens=1, logprobs=768)
        pieces, _ = await run(container, asked)
        [logprob] = [found for piece in pieces for found in piece.logprobs]
        found.append([one.logprob for one in sorted(logprob.top, key=lambda one: one.token)])
    await container.aclose()
    return found


def expected(folder: Path, lengths: Sequence[int] = LENGTHS) -> list[list[float]]:
    """The same, by transformers in single precision, a whole prompt in one pass."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = [model(torch.tensor([prompt(length)])).logits[0, -1] for length in lengths]
    return [row.log_softmax(-1).tolist() for row in logits]


def farthest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
async def test_its_numbers_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", *FAMILIES[family])
    lengths = (700,) if family == "phi 3, long" else LENGTHS  # transformers chooses by the prompt's
    ours, theirs = await chances(OPTIONS, folder, lengths), expected(folder, lengths)
    assert max(theirs[-1]) - min(theirs[-1]) > 1  # the model has an opinion
    assert max(farthest(*pair) for pair in zip(ours, theirs, strict=True)) < NEAR


async def test_positions_scaled_in_the_old_way_are_the_same(tmp_path: Path) -> None:
    kind, settings = FAMILIES["llama 3.1"]
    new = write(tmp_path / "new", kind, settings)
    scaling = dict(settings["rope_parameters"])  # type: ignore[call-overload]
    base = scaling.pop("rope_theta")
    old = write(tmp_path / "old", kind, settings, rope_scaling=scaling, rope_theta=base)
    path = old / "config.json"
    fields = json.loads(path.read_text())
    del fields["rope_parameters"]
    path.write_text(json.dumps(fields))
    assert await chances(OPTIONS, old) == await chances(OPTIONS, new)


@pytest.mark.parametrize("kind", ["GPTNeoX", "Starcoder2", "OPT"])
async def test_another_architecture_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", kind, {})
    with pytest.raises(UnsupportedModel, match=f"{kind}ForCausalLM"):
        await load("exllamav2", OPTIONS, folder)


async def test_a_scaling_that_exllamav2_lacks_is_refused(tmp_path: Path) -> None:
    scaled = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}}
    folder = write(tmp_path / "model", "Llama", scaled)
    with pytest.raises(UnsupportedModel, match="dynamic"):
        await load("exllamav2", OPTIONS, folder)


@pytest.mark.parametrize("kind", ["Mistral", "Phi3"])
async def test_a_context_ends_where_an_ignored_window_does(kind: str, tmp_path: Path) -> None:
    """Within the window nothing is missing; beyond it exllamav2 would go on as no one trained."""
    folder = write(tmp_path / "model", kind, {"sliding_window": 200})
    free = msgspec.structs.replace(OPTIONS, context_length=None)
    container = await load("exllamav2", free, folder)
    assert container.info.context_length == 200
    await container.aclose()
    with pytest.raises(LoadFailed, match="context_length can be 200 at most"):
        await load("exllamav2", OPTIONS, folder)
