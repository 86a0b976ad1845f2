"""exllamav3's own options, with exllamav3 itself: what drafts, and what is kept where."""

import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.protocol import Ended, Generation
from backends.engines.exllamav3 import loading
from backends.engines.exllamav3.container import installed
from backends.engines.exllamav3.files import KINDS, SEES, Kind
from backends.engines.exllamav3.loading import ExLlamaV3Model
from config.engines import DraftOptions, ExLlamaV3Options
from tests.backends.batching import STORY
from tests.backends.container_contract import GREEDY, run, text_of
from tests.backends.parity import load
from tests.cardless.random_models import RECURRENT, write, write_dflash, write_with_heads
from tests.cardless.test_exllamav2_architectures import NEAR, chances, expected, farthest

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENVIRONMENT: Mapping[str, str] = {"EXL3_FUSED_SAMPLER": "0"}  # one kernel for several steps
OPTIONS = ExLlamaV3Options(max_concurrent=4, context_length=512, warmup=False)


def options(**changes: Any) -> ExLlamaV3Options:
    return msgspec.structs.replace(OPTIONS, **changes)


def made(chosen: ExLlamaV3Options, path: Path = bundled.SAFETENSORS) -> ExLlamaV3Model:
    files = catalog.recognise(path, "exllamav3")
    return loading.load(files, chosen, installed(), lambda _: True)


async def said(
    chosen: ExLlamaV3Options, path: Path = bundled.SAFETENSORS, times: int = 1
) -> tuple[str, Ended]:
    """To a story of several pages: the text, and the last of `times` ends."""
    container = await load("exllamav3", chosen, path)
    prompt = container.tokenize((STORY + " ") * 20, special=True)[:400]
    asked = Generation(prompt=prompt, sampling=GREEDY, max_tokens=24)
    answers = [await run(container, asked) for _ in range(times)]
    await container.aclose()
    pieces, ended = answers[-1]
    return text_of(pieces), ended


@pytest.fixture
def recurrent(tmp_path: Path) -> Path:
    return write(tmp_path / "recurrent", "Lfm2", RECURRENT)


# -- drafts ----------------------------------------------------------------------------------------


async def test_a_dflash_model_drafts_its_block_and_changes_no_text(tmp_path: Path) -> None:
    folder = write_dflash(tmp_path / "draft", bundled.SAFETENSORS, block=4)
    drafting = options(draft=DraftOptions(model=str(folder)))
    loaded = made(drafting)
    assert loaded.generator.dflash_draft
    assert loaded.generator.num_draft_tokens == 3
    loaded.free()
    plain, _ = await said(OPTIONS)
    assert (await said(drafting))[0] == plain
    assert (await said(options(draft=DraftOptions(model=str(folder)), draft_cache_type="q8")))[
        0
    ] == plain


async def test_a_model_s_own_heads_draft_and_change_no_text(tmp_path: Path) -> None:
    folder = write_with_heads(tmp_path / "model")
    loaded = made(options(mtp=True), folder)
    assert loaded.generator.mtp_draft
    assert loaded.generator.num_draft_tokens == 4
    assert loaded.info.modalities == ("text",)
    loaded.free()
    plain, _ = await said(options(vision=False), folder)
    assert (await said(options(mtp=True), folder))[0] == plain
    assert (await said(options(mtp=True, draft=DraftOptions(tokens=2)), folder))[0] == plain


async def test_a_model_without_such_heads_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="has no MTP heads"):
        await load("exllamav3", options(mtp=True))


async def test_the_draft_s_cache_is_of_its_own_type() -> None:
    drafting = options(
        draft=DraftOptions(model=str(bundled.SAFETENSORS)), cache_type="q8", draft_cache_type="fp16"
    )
    loaded = made(drafting)
    assert loaded.draft is not None
    kinds = [type(part.cache.layers[0, 0]).__name__ for part in (loaded.main, loaded.draft)]
    assert kinds == ["CacheLayer_quant", "CacheLayer_fp16"]
    loaded.free()


# -- what is kept, and where -----------------------------------------------------------------------


async def test_a_recurrent_model_s_numbers_are_those_of_transformers(recurrent: Path) -> None:
    ours, theirs = await chances(options(context_length=768), recurrent), expected(recurrent)
    assert max(farthest(*pair) for pair in zip(ours, theirs, strict=True)) < NEAR


async def test_a_conversation_with_a_recurrent_model_goes_on_where_it_was_left(
    recurrent: Path,
) -> None:
    text, ended = await said(OPTIONS, recurrent, times=2)
    assert ended.cached_tokens == 256
    forgetful = options(recurrent_cache_size=0)
    again, ended = await said(forgetful, recurrent, times=2)
    assert (again, ended.cached_tokens) == (text, 0)


async def test_pages_and_states_are_found_on_the_disk_after_a_restart(
    recurrent: Path, tmp_path: Path
) -> None:
    kept = options(cpu_cache_size=16, disk_cache_dir=str(tmp_path / "kept"), disk_cache_size=1)
    text, ended = await said(kept, recurrent)
    assert ended.cached_tokens == 0
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    again, ended = await said(kept, recurrent)
    assert (again, ended.cached_tokens) == (text, 256)


async def test_a_disk_cache_without_one_in_main_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="requires cpu_cache_size"):
        await load("exllamav3", options(disk_cache_dir=str(tmp_path)))


# -- adapters --------------------------------------------------------------------------------------


def adapter(folder: Path) -> Path:
    """Of the attention's queries, with weights that say something."""
    torch.manual_seed(1)
    folder.mkdir()
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight": weights
        for layer in range(4)
        for side, weights in (("A", torch.randn(8, 128)), ("B", torch.randn(128, 8)))
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"r": 8, "lora_alpha": 8, "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("backend", ["exllamav2", "exllamav3"])
async def test_an_adapter_counts_as_strongly_as_told(backend: str, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter")
    plain = catalog.BACKENDS[backend].options(max_concurrent=2, context_length=512)
    whole = msgspec.structs.replace(plain, adapters={"one": str(folder)})

    async def of(**changes: Any) -> str:
        chosen = msgspec.structs.replace(whole, **changes)
        container = await load(backend, chosen)
        prompt = container.tokenize(STORY, special=True)
        pieces, _ = await run(container, Generation(prompt=prompt, sampling=GREEDY, max_tokens=24))
        await container.aclose()
        return text_of(pieces)

    without = await of(adapters={})
    assert await of() != without
    assert await of(adapter_scaling={"one": 0.0}) == without
    assert await of(adapter_scaling={"one": 1.0}) == await of()
    with pytest.raises(LoadFailed, match="unknown adapter 'other'"):
        await of(adapter_scaling={"other": 1.0})


# -- what its architectures are --------------------------------------------------------------------


def test_what_we_say_of_its_classes_is_in_its_source() -> None:
    from exllamav3.architecture.architectures import ARCHITECTURES

    def written(kind: type, words: str) -> bool:
        bases = (base.__module__ for base in kind.__mro__)
        modules = [name for name in bases if name.startswith("exllamav3.architecture")]
        return any(re.search(words, inspect.getsource(sys.modules[name])) for name in modules)

    for name, found in ARCHITECTURES.items():
        model = found["model_class"]
        drafts, kind = written(model, '"attach_target": True'), KINDS.get(name, Kind())
        assert kind.drafts == drafts, name
        assert (kind.keeps == "rings") == written(model, "SlidingAttention") or drafts, name
        keeps = "GatedDeltaNet|Mamba2|ShortConv|DSV4"
        assert (kind.keeps == "states") == written(model, keeps), name
        if kind.heads:
            assert written(found["config_class"], '"mtp"'), name
    assert (KINDS.keys() | SEES) <= ARCHITECTURES.keys()
