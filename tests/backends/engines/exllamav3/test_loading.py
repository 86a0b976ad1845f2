"""What a load asks of exllamav3. What it tells meanwhile: tests/backends/engines/exllama."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import bundled
from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, OutOfMemory, UnsupportedModel
from backends.contract.protocol import Progress
from backends.engines.sampling.truncation import SUPPORTED
from config.engines import DraftOptions, ExLlamaV3Options, ExLlamaV3SpeculationOptions
from tests.backends.engines.exllama.folders import folder, with_experts
from tests.backends.engines.exllamav3.conftest import OPTIONS, files, load
from tests.backends.engines.exllamav3.standin import Machine
from tests.backends.engines.exllamav3.standin_models import CacheLayer_quant

pytestmark = pytest.mark.anyio


def options(**changes: Any) -> ExLlamaV3Options:
    return msgspec.structs.replace(OPTIONS, **changes)


async def generator_of(
    machine: Machine, chosen: ExLlamaV3Options, model: ModelFiles | None = None
) -> Any:
    """What a load with these options made; all is freed again."""
    container = await load(machine, chosen, model)
    made = machine.generators[-1]
    await container.aclose()
    assert machine.loaded == []
    assert made.closed
    return made


async def test_what_it_can_is_reported(machine: Machine) -> None:
    container = await load(machine)
    assert container.info.samplers == SUPPORTED
    await container.aclose()


async def test_the_cards_are_filled_by_themselves_or_as_told(machine: Machine) -> None:
    made = await generator_of(machine, options(autosplit_reserve=(1024.0,)))
    assert made.model.said["reserve_per_device"] == [1.0, 1.0]  # GB
    assert made.model.said["use_per_device"] is None
    made = await generator_of(machine, options(gpu_split=(10.0, 20.0)))
    assert made.model.said["reserve_per_device"] is None
    assert made.model.said["use_per_device"] == [10.0, 20.0]


@pytest.mark.parametrize(
    ("kind", "layer", "bits"),
    [
        ("fp16", None, (None, None)),
        ("q6", CacheLayer_quant, (6, 6)),
        ("8,4", CacheLayer_quant, (8, 4)),
    ],
)
async def test_the_cache_is_of_the_kind_asked_for(
    kind: str, layer: type | None, bits: tuple[int | None, int | None], machine: Machine
) -> None:
    made = await generator_of(machine, options(cache_type=kind, cache_tokens=1000))
    assert (made.cache.layer_type, made.cache.bits) == (layer, bits)
    assert made.cache.max_num_tokens == 1024
    assert made.cache.num_slots == made.max_batch_size == 4


async def test_prompts_are_read_in_whole_pages(machine: Machine) -> None:
    made = await generator_of(machine, options(chunk_size=300))
    assert made.max_chunk_size == made.model.said["max_chunk_size"] == 512
    assert made.model.config.longest == 512


async def test_a_draft_model_gets_a_cache_alike(machine: Machine) -> None:
    guessing = options(
        draft=DraftOptions(model=str(bundled.SAFETENSORS), tokens=3), cache_type="q4"
    )
    container = await load(machine, guessing)
    assert len(machine.loaded) == 2
    made = machine.generators[-1]
    assert made.guesses == made.cache.max_history == 3
    assert made.model.said["draft_model"] is not None  # its share is planned for
    assert container.info.samplers == SUPPORTED  # bans too
    await container.aclose()
    assert machine.loaded == []


async def test_a_draft_model_lies_on_its_own_cards_if_told(machine: Machine) -> None:
    split = options(draft=DraftOptions(model=str(bundled.SAFETENSORS)), gpu_split=(10.0, 0.0))
    made = await generator_of(machine, split)
    assert made.draft_model.said["use_per_device"] == [10.0, 0.0]
    apart = msgspec.structs.replace(split, draft_gpu_split=(0.0, 1.0))
    made = await generator_of(machine, apart)
    assert made.draft_model.said["use_per_device"] == [0.0, 1.0]
    assert made.model.said["use_per_device"] == [10.0, 0.0]


async def test_experts_are_left_to_the_cpu_as_told(machine: Machine, tmp_path: Path) -> None:
    model = files(with_experts(tmp_path))
    made = await generator_of(machine, options(moe_cpu_offload=1, moe_cpu_threads=3), model)
    chosen = made.model.config.infer_params
    assert (chosen.moe_cpu_offload, chosen.moe_cpu_split, chosen.moe_cpu_threads) == (1, 0, 3)
    made = await generator_of(machine, options(moe_cpu_split=2), model)
    assert made.model.config.infer_params.moe_cpu_split == 2
    with pytest.raises(LoadFailed, match="has no experts"):
        await load(machine, options(moe_cpu_split=2))
    assert machine.loaded == []


async def test_a_kind_of_layer_is_shared_by_as_many_cards_as_told(machine: Machine) -> None:
    parallel = options(tensor_parallel=True, tensor_parallel_limits={"attn": 2, "moe": 1})
    made = await generator_of(machine, parallel)
    assert made.model.said["tp_dev_limits"] == {"attn": 2, "moe": 1}


async def test_repeated_text_is_guessed_from_as_told(machine: Machine) -> None:
    assert (await generator_of(machine, OPTIONS)).ngram_match_min == 0
    made = await generator_of(machine, options(ngram_speculation=True, ngram_match_min=2))
    assert made.ngram_match_min == 2
    assert made.guesses == 4
    same = ExLlamaV3SpeculationOptions(mode="ngram", tokens=6)
    made = await generator_of(machine, options(speculation=same, ngram_match_min=2))
    assert (made.ngram_match_min, made.guesses) == (2, 6)


async def test_adapters_are_loaded_and_must_fit(machine: Machine) -> None:
    container = await load(machine, options(adapters={"one": "a/one", "two": "a/two"}))
    assert [name for name in machine.loaded if "lora" in name] == ["lora a/one", "lora a/two"]
    await container.aclose()
    assert machine.loaded == []
    machine.adapters_fit = False
    with pytest.raises(LoadFailed, match="a/one fits"):
        await load(machine, options(adapters={"one": "a/one"}))
    assert machine.loaded == []


async def test_it_is_warmed_up_unless_told_otherwise(machine: Machine) -> None:
    steps: list[Progress] = []
    container = await load(machine, report=steps.append)
    assert steps[-2:] == [Progress("warmup", 1, 2), Progress("warmup", 2, 2)]
    assert machine.generators[-1].model.warm
    await container.aclose()
    assert not (await generator_of(machine, options(warmup=False))).model.warm


async def test_an_architecture_it_does_not_know_is_reported(machine: Machine) -> None:
    machine.unknown = True
    with pytest.raises(UnsupportedModel, match=r"exllamav3 can't read.*Unknown architecture"):
        await load(machine)


# -- nothing stays behind --------------------------------------------------------------------------


async def test_a_load_that_fails_takes_its_limit_off_the_process(machine: Machine) -> None:
    """exllamav3 limits what the whole process may use while it places layers."""
    machine.fail_load = RuntimeError("CUDA out of memory")
    with pytest.raises(OutOfMemory):
        await load(machine)
    assert not machine.limited


async def test_so_does_one_that_nobody_wants(machine: Machine) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: load(machine, report=lambda _: tasks.cancel_scope.cancel()))
    assert not machine.limited


@pytest.mark.parametrize("fails", [False, True])
async def test_processes_of_a_parallel_model_end_with_it(fails: bool, machine: Machine) -> None:
    parallel = options(tensor_parallel=True)
    if not fails:
        await generator_of(machine, parallel)
        return
    machine.fail_load = ValueError("could not find model.norm")
    with pytest.raises(LoadFailed):
        await load(machine, parallel)
    assert machine.loaded == []


# -- pictures --------------------------------------------------------------------------------------


def seeing(tmp_path: Path, architecture: str, **changes: Any) -> Path:
    made = folder(tmp_path, architectures=[architecture], vision_config={}, **changes)
    (made / "preprocessor_config.json").write_text("{}")
    return made


async def test_where_pictures_stand_is_read_from_the_config(
    machine: Machine, tmp_path: Path
) -> None:
    model = files(seeing(tmp_path, "Qwen3VLForConditionalGeneration", image_token_id=5))
    container = await load(machine, model=model)
    assert container.info.modalities == ("text", "image")
    assert len(machine.loaded) == 2
    await container.aclose()
    assert machine.loaded == []


@pytest.mark.parametrize(
    "architecture", ["Qwen3VLForConditionalGeneration", "Gemma3ForConditionalGeneration"]
)
async def test_where_nobody_knows_it_the_model_is_refused(
    architecture: str, machine: Machine, tmp_path: Path
) -> None:
    model = files(seeing(tmp_path, architecture))
    with pytest.raises(UnsupportedModel, match="image placeholder token"):
        await load(machine, model=model)


async def test_a_load_limits_the_process_for_one_module_of_a_card_at_most(
    machine: Machine,
) -> None:
    """exllamav3 caps what all models of the process may allocate while it loads one."""
    await generator_of(machine, OPTIONS)
    assert machine.limits == [True, False, False, False, False]


async def test_a_cache_that_is_smaller_than_a_chunk_is_loaded(machine: Machine) -> None:
    """exllamav3 refuses to load where its longest pass doesn't fit into the cache."""
    alone = msgspec.structs.replace(OPTIONS, max_concurrent=1, chunk_size=2048)
    container = await load(machine, alone)
    made = machine.generators[-1]
    assert made.max_chunk_size == made.cache.max_num_tokens == 768
    await container.aclose()


async def test_evicted_pages_are_kept_in_main_memory_as_told(machine: Machine) -> None:
    made = await generator_of(machine, options(cpu_cache_size=64))
    assert made.cpu_cache_size == 64 << 20


async def test_cards_exchange_results_as_told(machine: Machine) -> None:
    parallel = options(tensor_parallel=True, tensor_parallel_backend="nccl")
    made = await generator_of(machine, parallel)
    assert made.model.said["tp_backend"] == "nccl"
