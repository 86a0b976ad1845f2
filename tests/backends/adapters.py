"""LoRA adapters of the bundled model, and what a container promises whose jobs may choose of them.

For containers with the adapters `NAMES`, at least four jobs at once and a context of 512 tokens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import gguf
import numpy
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from backends.contract.errors import InvalidJob
from backends.contract.protocol import AdapterScale, Ended, Generation, ModelContainer
from tests.backends.batching import GREETING, STORY
from tests.backends.container_contract import GREEDY, run
from training.gguf_file import finish

NAMES = ("poet", "clerk")
WIDTH, RANK, LAYERS = 128, 8, 4
SURE = 28  # with which no two tokens of the texts below are nearly as likely
SETS: Mapping[str, tuple[AdapterScale, ...] | None] = {
    "as loaded": None,
    "none": (),
    "poet": (AdapterScale("poet", 1.0),),
    "clerk, by number": (AdapterScale(1, 1.0),),
    "weaker": (AdapterScale("poet", 0.8),),
    "both": (AdapterScale("clerk", 0.5), AdapterScale("poet", 1.0)),
}


def tensors(name: str) -> Mapping[tuple[int, str], NDArray[Any]]:
    """By layer and side, of the attention's values, which say something."""
    random = numpy.random.default_rng((SURE, NAMES.index(name)))
    shapes = {"A": (RANK, WIDTH), "B": (WIDTH, RANK)}
    return {
        (layer, side): (random.standard_normal(shape) * 0.3).astype(numpy.float32)
        for layer in range(LAYERS)
        for side, shape in shapes.items()
    }


def write_folder(folder: Path, name: str) -> Path:
    """As peft writes it."""
    found = {
        f"base_model.model.model.layers.{layer}.self_attn.v_proj.lora_{side}.weight": values
        for (layer, side), values in tensors(name).items()
    }
    folder.mkdir(parents=True)
    save_file(found, folder / "adapter_model.safetensors")
    fields = {"r": RANK, "lora_alpha": RANK, "peft_type": "LORA", "target_modules": ["v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


def write_gguf(path: Path, name: str) -> Path:
    """As llama.cpp's `convert_lora_to_gguf.py` writes it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for (layer, side), values in tensors(name).items():
        writer.add_tensor(f"blk.{layer}.attn_v.weight.lora_{side.lower()}", values)
    finish(writer)
    return path


async def answered(
    container: ModelContainer, prompt: tuple[int, ...], chosen: str, limit: int = 10
) -> tuple[tuple[int, ...], Ended]:
    asked = Generation(prompt=prompt, sampling=GREEDY, max_tokens=limit, adapters=SETS[chosen])
    pieces, ended = await run(container, asked)
    return tuple(token for piece in pieces for token in piece.tokens), ended


async def each_gets_its_own_in_any_company(container: ModelContainer) -> None:
    """Twelve at once, of all sets by turns; nobody's text is another's."""
    prompts = {text: container.tokenize(text, special=True) for text in (GREETING, STORY)}
    asked = [(text, chosen) for text in prompts for chosen in SETS]
    alone = {pair: (await answered(container, prompts[pair[0]], pair[1]))[0] for pair in asked}
    told = {alone[STORY, chosen] for chosen in SETS}
    assert len(told) == len(SETS) - _as_loaded_is_named(container)
    together: dict[tuple[str, str], tuple[int, ...]] = {}

    async def one(pair: tuple[str, str]) -> None:
        together[pair], _ = await answered(container, prompts[pair[0]], pair[1])

    async with anyio.create_task_group() as tasks:
        for pair in asked:
            tasks.start_soon(one, pair)
    assert together == alone


def _as_loaded_is_named(container: ModelContainer) -> int:
    """How many of the other sets are the one that the model is loaded with."""
    scales = [container.info.adapter_scales(chosen) for chosen in SETS.values()]
    return scales[1:].count(scales[0])


async def what_one_set_computed_no_other_finds(container: ModelContainer) -> None:
    """And what its own set computed is still there after others' turns."""
    prompt = container.tokenize("It may be used by its own set alone. " * 40, special=True)[:400]
    sets = ("poet", "none", "both")
    first = [await answered(container, prompt, chosen) for chosen in sets]
    again = [await answered(container, prompt, chosen) for chosen in sets]
    assert [ended.cached_tokens for _, ended in first] == [0, 0, 0]
    assert all(ended.cached_tokens >= 256 for _, ended in again)
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in first]


async def a_waiting_set_has_its_turn(container: ModelContainer) -> None:
    """While others with another set never stop coming."""
    prompt = container.tokenize(STORY, special=True)
    async with anyio.create_task_group() as tasks:

        async def ask_again() -> None:
            while True:
                await answered(container, prompt, "poet")

        for _ in range(6):
            tasks.start_soon(ask_again)
        await answered(container, prompt, "poet")
        await answered(container, prompt, "none")
        tasks.cancel_scope.cancel()


async def an_unknown_adapter_is_refused(container: ModelContainer) -> None:
    prompt = container.tokenize(GREETING, special=True)
    for adapter in (len(NAMES), -1, "painter"):
        asked = Generation(prompt=prompt, adapters=(AdapterScale(adapter, 1.0),))
        with pytest.raises(InvalidJob, match=r"no adapter .*0 \(poet\), 1 \(clerk\)") as caught:
            await run(container, asked)
        assert caught.value.param == "lora"


async def leaving_while_another_set_computes(container: ModelContainer) -> None:
    """Who waits for its set's turn may leave, and the next turns come all the same."""
    prompt = container.tokenize(STORY, special=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answered, container, prompt, "poet", 60)
        with anyio.move_on_after(0):
            await answered(container, prompt, "none")
        await answered(container, prompt, "both")
        await answered(container, prompt, "none")


PROMISES = (
    each_gets_its_own_in_any_company,
    what_one_set_computed_no_other_finds,
    a_waiting_set_has_its_turn,
    leaving_while_another_set_computes,
    an_unknown_adapter_is_refused,
)
