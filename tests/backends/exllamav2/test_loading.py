"""What a load asks of exllamav2, what it tells meanwhile, and that nothing stays behind."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

import bundled
from backends import catalog
from backends.errors import BackendMissing, LoadFailed, OutOfMemory, UnsupportedModel
from backends.exllamav2 import library
from backends.exllamav2.sampling import SUPPORTED
from backends.protocol import Progress
from config.engines import ExLlamaV2Options
from tests.backends.exllamav2.conftest import OPTIONS, files, load
from tests.backends.exllamav2.standin import World

pytestmark = pytest.mark.anyio


def folder(tmp_path: Path, **changes: Any) -> Path:
    made = tmp_path / "model"
    shutil.copytree(bundled.SAFETENSORS, made)
    config = json.loads((made / "config.json").read_text()) | changes
    (made / "config.json").write_text(json.dumps(config))
    return made


def options(**changes: Any) -> ExLlamaV2Options:
    return msgspec.structs.replace(OPTIONS, **changes)


async def generator_of(world: World, chosen: ExLlamaV2Options) -> Any:
    """What a load with these options made; all is freed again."""
    container = await load(world, chosen)
    made = world.generators[-1]
    await container.aclose()
    assert world.loaded == []
    return made


async def test_what_is_loaded_is_described(world: World) -> None:
    container = await load(world)
    info = container.info
    assert (info.backend, info.format, info.architecture) == ("exllamav2", "safetensors", "llama")
    assert (info.context_length, info.max_concurrent, info.vocab_size) == (512, 4, 768)
    assert info.special.eos == "<|im_end|>"
    assert info.modalities == ("text",)
    assert info.samplers == SUPPORTED
    assert info.generation_defaults is not None  # the bundled model's file says greedy
    await container.aclose()


async def test_the_cards_are_filled_by_themselves_or_as_told(world: World) -> None:
    made = await generator_of(world, options(autosplit_reserve=(100.0,)))
    assert made.model.said == {"reserve_vram": [100 << 20, 100 << 20]}
    made = await generator_of(world, options(gpu_split=(10.0, 20.0)))
    assert made.model.said == {"gpu_split": [10.0, 20.0]}
    assert not made.cache.lazy


@pytest.mark.parametrize(
    ("kind", "name"),
    [("fp16", "Cache"), ("q8", "Cache_Q8"), ("q6", "Cache_Q6"), ("q4", "Cache_Q4")],
)
async def test_the_cache_is_of_the_kind_asked_for(kind: str, name: str, world: World) -> None:
    made = await generator_of(world, options(cache_type=kind, cache_tokens=1000))
    assert type(made.cache).__name__ == name
    assert made.cache.max_seq_len == 1024


async def test_positions_are_scaled_as_told(world: World) -> None:
    made = await generator_of(world, options(rope_scale=2.0, rope_alpha=1.5, chunk_size=300))
    config = made.model.config
    assert (config.scale_pos_emb, config.scale_alpha_value) == (2.0, 1.5)
    assert (config.max_seq_len, config.max_input_len) == (512, 512)


async def test_a_draft_model_gets_a_cache_alike(world: World) -> None:
    guessing = options(draft_model=str(bundled.SAFETENSORS), draft_tokens=3)
    container = await load(world, guessing)
    assert len(world.loaded) == 2
    assert world.generators[-1].num_draft_tokens == 3
    assert container.info.samplers == SUPPORTED - {"banned_strings"}
    await container.aclose()
    assert world.loaded == []


async def test_adapters_are_active_together(world: World) -> None:
    container = await load(world, options(adapters={"one": "a/one", "two": "a/two"}))
    assert [lora.directory for lora in world.loras] == ["a/one", "a/two"]
    await container.aclose()
    assert world.loaded == []


async def test_progress_is_told_module_by_module(world: World) -> None:
    told: list[Progress] = []
    guessing = options(draft_model=str(bundled.SAFETENSORS))
    container = await load(world, guessing, report=told.append)
    assert told[:5] == [Progress("draft", done, 4) for done in range(5)]
    assert told[5:] == [Progress("model", done, 4) for done in range(5)]
    await container.aclose()


async def test_a_load_that_nobody_wants_stops_at_its_next_module(world: World) -> None:
    told: list[Progress] = []
    async with anyio.create_task_group() as tasks:

        def report(progress: Progress) -> None:
            told.append(progress)
            tasks.cancel_scope.cancel()

        tasks.start_soon(lambda: load(world, report=report))
    assert told
    assert world.loaded == []


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory, "no room"),
        (RuntimeError("Insufficient VRAM for model and cache"), OutOfMemory, "Insufficient VRAM"),
        (AssertionError("Insufficient space in device allocation"), OutOfMemory, "no room"),
        (ValueError("could not find model.norm"), LoadFailed, "could not find model.norm"),
    ],
)
async def test_a_failed_load_says_why_and_leaves_nothing(
    error: Exception, kind: type[Exception], words: str, world: World
) -> None:
    world.fail_load = error
    with pytest.raises(kind, match=words) as caught:
        await load(world)
    assert type(caught.value) is kind
    assert world.loaded == []


async def test_what_exllamav2_would_run_as_a_llama_is_refused(world: World) -> None:
    world.arch_string = "SomethingElse"
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM"):
        await load(world)


async def test_positions_written_the_new_way_are_read(world: World, tmp_path: Path) -> None:
    """exllamav2 0.3.2 looks at rope_theta alone."""
    new = folder(
        tmp_path, rope_theta=1.0, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}
    )
    container = await load(world, model=files(new))
    assert world.generators[-1].model.config.rotary_embedding_base == 5e5
    await container.aclose()


async def test_scaling_written_the_new_way_alone_is_refused(world: World, tmp_path: Path) -> None:
    scaled = folder(tmp_path, rope_parameters={"rope_theta": 5e5, "rope_type": "llama3"})
    with pytest.raises(UnsupportedModel, match="rope_scaling"):
        await load(world, model=files(scaled))


async def test_a_folder_without_a_tokenizer_is_refused(world: World, tmp_path: Path) -> None:
    bare = folder(tmp_path)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(LoadFailed):
        await load(world, model=files(bare))
    assert world.loaded == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA card")
async def test_without_a_card_the_reason_and_the_way_out_are_told() -> None:
    container = catalog.BACKENDS["exllamav2"].container
    with pytest.raises(BackendMissing, match=r"needs a CUDA card.*GGUF or as plain safetensors"):
        await container.load(files(), OPTIONS, lambda _: None)


@pytest.mark.skipif(find_spec("exllamav2") is None, reason="exllamav2's source is not installed")
def test_the_gateway_s_modules_do_not_import_exllamav2() -> None:
    import sys

    assert library.__name__ in sys.modules
    assert torch.cuda.is_available() or "exllamav2" not in sys.modules
