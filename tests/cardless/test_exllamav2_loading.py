"""What a load makes of options, files and cards, with exllamav2 itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed, OutOfMemory
from backends.contract.protocol import Generation, ModelContainer, Progress
from backends.engines.exllamav2 import loading
from backends.engines.exllamav2.container import installed
from backends.engines.exllamav2.loading import ExLlamaV2Model
from config.engines import DraftOptions, ExLlamaV2Options
from tests.backends.batching import GREETING
from tests.backends.container_contract import GREEDY, run, text_of
from tests.backends.parity import load

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPTIONS = ExLlamaV2Options(max_concurrent=2, context_length=512)


def options(**changes: Any) -> ExLlamaV2Options:
    return msgspec.structs.replace(OPTIONS, **changes)


def made(chosen: ExLlamaV2Options, path: Path = bundled.SAFETENSORS) -> ExLlamaV2Model:
    files = catalog.recognise(path, "exllamav2")
    return loading.load(files, chosen, installed(), lambda _: True)


async def greeting(container: ModelContainer) -> str:
    prompt = container.tokenize(GREETING, special=True)
    text = text_of((await run(container, Generation(prompt=prompt, sampling=GREEDY)))[0])
    await container.aclose()
    return text


async def test_layers_lie_on_the_cards_as_told() -> None:
    """Little goes onto the first card, the rest onto the second; the text stays."""
    split = options(gpu_split=(0.0025, 1.0), cache_tokens=512, chunk_size=256)
    loaded = made(split)
    places = {module.device_idx for module in loaded.main.model.modules}
    assert places == {-1, 0, 1}  # the embedding is in the CPU's memory
    loaded.free()
    alone = await greeting(await load("exllamav2", OPTIONS))
    assert await greeting(await load("exllamav2", split)) == alone


async def test_a_full_card_is_followed_by_the_next() -> None:
    reserved = (100 << 20) + (256 << 20)  # as told, and exllamav2's own
    with torch.cuda.limited(reserved + (1 << 20), 1 << 30):
        loaded = made(options(autosplit_reserve=(100.0,)))
        places = [module.device_idx for module in loaded.main.model.modules]
        loaded.free()
    assert sorted(places) == places
    assert {-1, 0, 1} == set(places)


async def test_cards_without_room_are_said_and_left_empty() -> None:
    with torch.cuda.limited(1 << 20, 1 << 20):
        with pytest.raises(OutOfMemory, match="not enough memory for"):
            made(OPTIONS)
        torch.zeros(1 << 20, dtype=torch.uint8, device="cuda:1")
    assert await greeting(await load("exllamav2", OPTIONS))


@pytest.mark.parametrize("kind", ["q8", "q6", "q4"])
async def test_a_quantized_cache_says_the_same_of_a_sure_model(kind: str) -> None:
    plain = await greeting(await load("exllamav2", OPTIONS))
    assert await greeting(await load("exllamav2", options(cache_type=kind))) == plain


async def test_a_draft_model_changes_no_text() -> None:
    drafting = options(draft=DraftOptions(model=str(bundled.SAFETENSORS), tokens=3))
    container = await load("exllamav2", drafting)
    assert container.info.modalities == ("text",)
    assert await greeting(container) == await greeting(await load("exllamav2", OPTIONS))


async def test_positions_are_scaled_as_told() -> None:
    loaded = made(options(rope_scale=2.0, rope_alpha=1.5, chunk_size=300))
    config = loaded.main.model.config
    assert (config.scale_pos_emb, config.scale_alpha_value) == (2.0, 1.5)
    assert (config.max_seq_len, config.max_input_len) == (512, 512)
    loaded.free()


async def test_models_of_one_process_capture_no_graphs() -> None:
    """They share one stream per card, so one would capture the other's kernels."""
    loaded = made(options(draft=DraftOptions(model=str(bundled.SAFETENSORS))))
    assert loaded.draft is not None
    assert loaded.main.model.config.no_graphs
    assert loaded.draft.model.config.no_graphs
    loaded.free()


async def test_an_adapter_changes_what_is_said(tmp_path: Path) -> None:
    """Of the attention's queries, with weights that say something."""
    torch.manual_seed(1)
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight": weights
        for layer in range(4)
        for side, weights in (("A", torch.randn(8, 128)), ("B", torch.randn(128, 8)))
    }
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    fields = {"r": 8, "lora_alpha": 8, "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(fields))
    adapted = options(adapters={"one": str(tmp_path)})
    plain = await greeting(await load("exllamav2", OPTIONS))
    assert await greeting(await load("exllamav2", adapted)) != plain


# -- what goes wrong -------------------------------------------------------------------------------


async def test_a_load_that_nobody_wants_stops_at_its_next_module() -> None:
    steps: list[Progress] = []
    async with anyio.create_task_group() as tasks:

        def report(progress: Progress) -> None:
            steps.append(progress)
            tasks.cancel_scope.cancel()

        async def begin() -> None:
            files = catalog.recognise(bundled.SAFETENSORS, "exllamav2")
            await catalog.BACKENDS["exllamav2"].container.load(files, OPTIONS, report)

        tasks.start_soon(begin)
    assert 0 < len(steps) < 11


async def test_progress_is_reported_module_by_module() -> None:
    steps: list[Progress] = []
    files = catalog.recognise(bundled.SAFETENSORS, "exllamav2")
    guessing = options(draft=DraftOptions(model=str(bundled.SAFETENSORS)))
    container = await catalog.BACKENDS["exllamav2"].container.load(files, guessing, steps.append)
    await container.aclose()
    assert steps == [
        Progress(stage, done, 11) for stage in ("draft", "model") for done in range(12)
    ]


async def test_a_file_without_a_layer_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(bundled.SAFETENSORS, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(LoadFailed, match=r"layers\.2\.mlp\.up_proj"):
        await load("exllamav2", OPTIONS, folder)
    assert await greeting(await load("exllamav2", OPTIONS))
