"""What a load asks of exllamav2. What it tells meanwhile: tests/backends/exllama."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import bundled
from backends.errors import UnsupportedModel
from backends.exllamav2.sampling import SUPPORTED
from config.engines import ExLlamaV2Options
from tests.backends.exllama.folders import folder
from tests.backends.exllamav2.conftest import OPTIONS, files, load
from tests.backends.exllamav2.standin import Machine

pytestmark = pytest.mark.anyio


def options(**changes: Any) -> ExLlamaV2Options:
    return msgspec.structs.replace(OPTIONS, **changes)


async def generator_of(machine: Machine, chosen: ExLlamaV2Options) -> Any:
    """What a load with these options made; all is freed again."""
    container = await load(machine, chosen)
    made = machine.generators[-1]
    await container.aclose()
    assert machine.loaded == []
    return made


async def test_the_cards_are_filled_by_themselves_or_as_told(machine: Machine) -> None:
    made = await generator_of(machine, options(autosplit_reserve=(100.0,)))
    assert made.model.said == {"reserve_vram": [100 << 20, 100 << 20]}
    made = await generator_of(machine, options(gpu_split=(10.0, 20.0)))
    assert made.model.said == {"gpu_split": [10.0, 20.0]}
    assert not made.cache.lazy


@pytest.mark.parametrize(
    ("kind", "name"),
    [("fp16", "Cache"), ("q8", "Cache_Q8"), ("q6", "Cache_Q6"), ("q4", "Cache_Q4")],
)
async def test_the_cache_is_of_the_kind_asked_for(kind: str, name: str, machine: Machine) -> None:
    made = await generator_of(machine, options(cache_type=kind, cache_tokens=1000))
    assert type(made.cache).__name__ == name
    assert made.cache.max_seq_len == 1024


async def test_positions_are_scaled_as_told(machine: Machine) -> None:
    made = await generator_of(machine, options(rope_scale=2.0, rope_alpha=1.5, chunk_size=300))
    config = made.model.config
    assert (config.scale_pos_emb, config.scale_alpha_value) == (2.0, 1.5)
    assert (config.max_seq_len, config.max_input_len) == (512, 512)


async def test_a_draft_model_gets_a_cache_alike(machine: Machine) -> None:
    guessing = options(draft_model=str(bundled.SAFETENSORS), draft_tokens=3)
    container = await load(machine, guessing)
    assert len(machine.loaded) == 2
    assert machine.generators[-1].num_draft_tokens == 3
    assert container.info.samplers == SUPPORTED - {"banned_strings"}
    await container.aclose()
    assert machine.loaded == []


async def test_adapters_are_active_together(machine: Machine) -> None:
    container = await load(machine, options(adapters={"one": "a/one", "two": "a/two"}))
    assert [lora.directory for lora in machine.loras] == ["a/one", "a/two"]
    await container.aclose()
    assert machine.loaded == []


async def test_what_exllamav2_would_run_as_a_llama_is_refused(machine: Machine) -> None:
    machine.arch_string = "SomethingElse"
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM"):
        await load(machine)


async def test_positions_written_the_new_way_are_read(machine: Machine, tmp_path: Path) -> None:
    """exllamav2 0.3.2 looks at rope_theta alone."""
    new = folder(
        tmp_path, rope_theta=1.0, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}
    )
    container = await load(machine, model=files(new))
    assert machine.generators[-1].model.config.rotary_embedding_base == 5e5
    await container.aclose()


async def test_scaling_written_the_new_way_alone_is_refused(
    machine: Machine, tmp_path: Path
) -> None:
    scaled = folder(tmp_path, rope_parameters={"rope_theta": 5e5, "rope_type": "llama3"})
    with pytest.raises(UnsupportedModel, match="rope_scaling"):
        await load(machine, model=files(scaled))


async def test_without_flash_attention_scores_are_masked_and_bounded(
    machine: Machine,
) -> None:
    """Two bytes for each of product, mask and softmax, per head, query and key: 512 MiB at most."""
    machine.paged = False
    made = await generator_of(machine, options(context_length=65_536, cache_tokens=65_536))
    config = made.model.config
    assert config.no_sdpa
    assert config.max_input_len * config.max_seq_len * config.num_attention_heads * 6 <= 512 << 20
    assert config.max_input_len >= 16


async def test_a_draft_without_flash_attention_keeps_both_from_pages(
    machine: Machine, tmp_path: Path
) -> None:
    """Both models go by one page table."""
    capped = folder(tmp_path, attn_logit_softcapping=50.0)
    guessing = options(draft_model=str(capped), draft_tokens=3)
    container = await load(machine, guessing)
    assert container.info.max_concurrent == 1
    await container.aclose()


async def test_models_of_one_process_capture_no_graphs(machine: Machine) -> None:
    """They share one stream per card, so one would capture the other's kernels."""
    guessing = options(draft_model=str(bundled.SAFETENSORS))
    made = await generator_of(machine, guessing)
    assert made.model.config.no_graphs
    assert made.draft_model.config.no_graphs
