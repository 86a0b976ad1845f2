"""Which folders are exllamav3's, and what they will take."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.engines.exllama.files import PAGE, Drafts, cache_bits, cache_share, drafts
from backends.engines.exllamav3.files import (
    cache_size,
    estimate,
    facts,
    fitted,
    placed,
    placements,
    recognise,
    together,
)
from config.engines import DraftOptions, ExLlamaV3Options
from tests.backends.engines.exllama.folders import folder, quantized, with_experts


def test_exl3_is_found_without_naming_a_backend(tmp_path: Path) -> None:
    files = catalog.recognise(quantized(tmp_path, "exl3"))
    assert (files.backend, files.format, files.architecture) == ("exllamav3", "exl3", "llama")
    assert files.cache_bytes_per_token == 4 * 2 * 128 * 2  # layers, keys and values, width, bytes


def test_plain_safetensors_are_exllamav3_s_only_when_it_is_named() -> None:
    assert catalog.recognise(bundled.SAFETENSORS).backend == "transformers"
    files = catalog.recognise(bundled.SAFETENSORS, "exllamav3")
    assert (files.backend, files.format) == ("exllamav3", "safetensors")


@pytest.mark.parametrize("method", ["exl2", "gptq", "bitsandbytes"])
def test_other_quantizations_and_files_are_others(method: str, tmp_path: Path) -> None:
    made = quantized(tmp_path, method)
    assert recognise(made) is None
    assert recognise(bundled.GGUF) is None
    with pytest.raises(UnsupportedModel, match="not a model that exllamav3 can read"):
        catalog.recognise(made, "exllamav3")


@pytest.mark.parametrize(
    ("architecture", "prepared", "sees"),
    [
        ("Qwen3VLForConditionalGeneration", "preprocessor_config.json", True),
        ("Gemma4ForConditionalGeneration", "processor_config.json", True),
        ("Qwen3VLForConditionalGeneration", "notes.json", False),
        ("MllamaForConditionalGeneration", "preprocessor_config.json", False),
    ],
)
def test_who_sees_is_known_from_the_class(
    architecture: str, prepared: str, sees: bool, tmp_path: Path
) -> None:
    made = folder(tmp_path, architectures=[architecture], vision_config={})
    (made / prepared).write_text("{}")
    files = recognise(made)
    assert files is not None
    assert ("image" in files.modalities) is sees


def files() -> catalog.ModelFiles:
    return catalog.recognise(bundled.SAFETENSORS, "exllamav3")


@pytest.mark.parametrize(
    ("kind", "bits", "share"),
    [
        ("fp16", None, 1.0),
        ("q8", (8, 8), 8.5 / 16),
        ("q4", (4, 4), 4.5 / 16),
        ("8,4", (8, 4), 6.5 / 16),
    ],
)
def test_a_cache_has_so_many_bits(kind: str, bits: tuple[int, int] | None, share: float) -> None:
    assert cache_bits(kind) == bits
    assert cache_share(kind) == share


@pytest.mark.parametrize("kind", ["q9", "8", "8,4,2", "4,1", "FP16"])
def test_no_other_kind_of_cache_is_an_option(kind: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="cache_type"):
        msgspec.convert({"cache_type": kind}, ExLlamaV3Options)


def test_the_cache_is_whole_pages_and_holds_one_full_context_with_its_end() -> None:
    plan = cache_size(files(), ExLlamaV3Options(context_length=300, cache_tokens=100))
    assert (plan.cells, plan.length) == (512, 300)
    plan = cache_size(files(), ExLlamaV3Options(context_length=512, cache_tokens=512))
    assert plan.cells == 768
    plan = cache_size(files(), ExLlamaV3Options(context_length=512, max_concurrent=4))
    assert plan.cells == 4 * 512


def test_a_quantized_cache_takes_less_and_a_draft_model_more() -> None:
    plain = ExLlamaV3Options(cache_tokens=4 * PAGE, context_length=PAGE)
    full = estimate(files(), plain)
    assert full.weights == files().size_bytes
    assert full.cache == 4 * PAGE * files().cache_bytes_per_token
    half = estimate(files(), msgspec.structs.replace(plain, cache_type="8,6"))
    assert half.cache == full.cache * 7.5 / 16
    both = msgspec.structs.replace(plain, draft=DraftOptions(model=str(bundled.SAFETENSORS)))
    assert estimate(files(), both).total > full.total
    assert estimate(files(), both).cache == 2 * full.cache


def test_two_ways_of_guessing_exclude_each_other() -> None:
    both = ExLlamaV3Options(
        draft=DraftOptions(model=str(bundled.SAFETENSORS)), ngram_speculation=True
    )
    with pytest.raises(LoadFailed, match="exclude each other"):
        estimate(files(), both)
    with pytest.raises(UnsupportedModel, match=r"draft model.*exllamav3"):
        estimate(files(), ExLlamaV3Options(draft=DraftOptions(model=str(bundled.GGUF))))


def test_pages_kept_in_main_memory_are_counted_there() -> None:
    files = catalog.recognise(bundled.SAFETENSORS, "exllamav3")
    plain = ExLlamaV3Options(context_length=512)
    kept = msgspec.structs.replace(plain, cpu_cache_size=100)
    more = estimate(files, kept).total - estimate(files, plain).total
    assert more == 100 << 20
    (placement,) = placements(files, kept, {})
    assert placement == {"cpu": 1.0}
    cards = {"cuda:0": 24 << 30}
    (placement,) = placements(files, kept, cards)
    assert placement["cpu"] * estimate(files, kept).total == pytest.approx(100 << 20)
    assert sum(placement.values()) == pytest.approx(1)
    assert placed(kept, placement, cards) == kept  # the only card is filled in any case


# -- what lies beside the cache --------------------------------------------------------------------


def hybrid(tmp_path: Path) -> catalog.ModelFiles:
    """Three of its four layers are recurrent, as Qwen3-Next's."""
    made = folder(
        tmp_path,
        architectures=["Qwen3NextForCausalLM"],
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        linear_num_value_heads=32,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    )
    return catalog.recognise(made, "exllamav3")


def test_states_of_sequences_are_counted_where_they_lie(tmp_path: Path) -> None:
    files = hybrid(tmp_path)
    state = 2 * 32 * 128 * 128 * 2 + (2 * 16 * 128 + 32 * 128) * 4 * 2
    assert (files.state_bytes, files.recurrent_layers) == (state, 3)
    options = ExLlamaV3Options(cache_tokens=PAGE, context_length=PAGE - 1, recurrent_cache_size=0)
    few = estimate(files, msgspec.structs.replace(options, max_concurrent=1))
    many = estimate(files, msgspec.structs.replace(options, max_concurrent=5))
    assert many.cache - few.cache == 4 * 3 * state
    kept = msgspec.structs.replace(options, max_concurrent=1, recurrent_cache_size=64)
    assert estimate(files, kept).cache - few.cache == 64 << 20
    (placement,) = placements(files, kept, {"cuda:0": 24 << 30})
    assert placement["cpu"] * estimate(files, kept).total == pytest.approx(64 << 20)


def test_fewer_requests_are_computed_together_where_each_keeps_a_state(tmp_path: Path) -> None:
    files = hybrid(tmp_path)
    assert together(files, ExLlamaV3Options(max_concurrent=64)) == 64  # 3 layers keep little
    large = msgspec.structs.replace(files, recurrent_layers=36)
    assert together(large, ExLlamaV3Options(max_concurrent=64)) == 13
    assert together(large, ExLlamaV3Options(max_concurrent=2)) == 2
    huge = msgspec.structs.replace(files, recurrent_layers=360)
    assert together(huge, ExLlamaV3Options(max_concurrent=64)) == 4


def test_rings_of_sliding_windows_take_no_pages(tmp_path: Path) -> None:
    made = folder(
        tmp_path,
        architectures=["GptOssForCausalLM"],
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=128,
    )
    ringed = catalog.recognise(made, "exllamav3")
    assert ringed.sliding_bytes_per_token == ringed.cache_bytes_per_token / 2
    options = ExLlamaV3Options(
        cache_tokens=PAGE, context_length=PAGE - 1, max_concurrent=3, recurrent_cache_size=0
    )
    ring = 3 * PAGE * ringed.sliding_bytes_per_token  # the window and two pages, in whole pages
    pages = PAGE * ringed.cache_bytes_per_token / 2
    assert estimate(ringed, options).cache == pages + 3 * ring


def test_experts_that_the_cpu_computes_lie_in_main_memory(tmp_path: Path) -> None:
    files = catalog.recognise(with_experts(tmp_path), "exllamav3")
    layer = 4 * 32 * 32 * 2

    def apart(**changes: Any) -> int:
        options = ExLlamaV3Options(context_length=512, **changes)
        (placement,) = placements(files, options, {"cuda:0": 24 << 30})
        return round(placement.get("cpu", 0) * estimate(files, options).total)

    assert [apart(), apart(moe_cpu_offload=1), apart(moe_cpu_offload=99)] == [0, layer, 2 * layer]
    assert [apart(moe_cpu_split=1), apart(moe_cpu_split=9)] == [layer / 2, 2 * layer]
    with pytest.raises(LoadFailed, match="exclude each other"):
        apart(moe_cpu_offload=1, moe_cpu_split=1)
    with pytest.raises(LoadFailed, match="tensor_parallel"):
        apart(moe_cpu_offload=1, tensor_parallel=True)


@pytest.mark.parametrize(
    "header", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\2\0\0\0\0\0\0\0{]"]
)
def test_a_broken_file_of_experts_is_named(header: bytes, tmp_path: Path) -> None:
    made = with_experts(tmp_path)
    (made / "experts.safetensors").write_bytes(header)
    files = catalog.recognise(made, "exllamav3")
    with pytest.raises(LoadFailed, match=r"experts\.safetensors"):
        placements(files, ExLlamaV3Options(moe_cpu_offload=1), {})


# -- drafts ----------------------------------------------------------------------------------------


def dflash(tmp_path: Path) -> Path:
    return folder(tmp_path, architectures=["DFlashDraftModel"], model_type="qwen3", block_size=16)


def test_what_can_only_draft_is_no_model_but_a_draft(tmp_path: Path) -> None:
    drafting = dflash(tmp_path)
    assert recognise(drafting) is None
    options = ExLlamaV3Options(
        draft=DraftOptions(model=str(drafting)), context_length=512, max_concurrent=1
    )
    assert cache_size(files(), options).drafted == 15
    assert estimate(files(), options).weights == 2 * files().size_bytes
    fewer = msgspec.structs.replace(options, draft=DraftOptions(model=str(drafting), tokens=7))
    assert cache_size(files(), fewer).drafted == 7


def test_heads_of_its_own_take_their_cache(tmp_path: Path) -> None:
    made = folder(tmp_path, architectures=["HYV3ForCausalLM"], num_nextn_predict_layers=1)
    headed = catalog.recognise(made, "exllamav3")
    plain = ExLlamaV3Options(cache_tokens=4 * PAGE, context_length=PAGE)
    drafting = msgspec.structs.replace(plain, mtp=True)
    assert cache_size(headed, drafting).drafted == 2
    more = estimate(headed, drafting).total - estimate(headed, plain).total
    assert more == 4 * PAGE * headed.cache_bytes_per_token / 4  # of its four layers, one more
    for other in (
        {"draft": DraftOptions(model=str(bundled.SAFETENSORS))},
        {"ngram_speculation": True},
    ):
        with pytest.raises(LoadFailed, match="exclude each other"):
            estimate(headed, msgspec.structs.replace(drafting, **other))
    with pytest.raises(UnsupportedModel, match="no MTP heads"):
        estimate(files(), drafting)


def test_a_draft_s_cache_and_cards_are_its_own() -> None:
    plain = ExLlamaV3Options(cache_tokens=4 * PAGE, context_length=PAGE, gpu_split=(1.0, 0.0))
    drafting = msgspec.structs.replace(
        plain,
        draft=DraftOptions(model=str(bundled.SAFETENSORS)),
        draft_cache_type="q4",
        draft_gpu_split=(0, 1),
    )
    full = estimate(files(), plain).cache
    assert estimate(files(), drafting).cache == full * (1 + 4.5 / 16)
    (placement,) = placements(files(), drafting, {"cuda:0": 24 << 30, "cuda:1": 24 << 30})
    draft = estimate(files(), drafting).total - estimate(files(), plain).total
    assert placement["cuda:1"] * estimate(files(), drafting).total == pytest.approx(draft)


def test_an_image_encoder_that_is_not_wanted_is_not_loaded(tmp_path: Path) -> None:
    seeing = ["Qwen2_5_VLForConditionalGeneration"]
    made = folder(tmp_path, architectures=seeing, vision_config={"model_type": "qwen2"})
    (made / "preprocessor_config.json").write_text("{}")
    files = catalog.recognise(made, "exllamav3")
    assert "image" in fitted(files, ExLlamaV3Options()).modalities
    assert fitted(files, ExLlamaV3Options(vision=False)).modalities == ("text",)


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, Drafts()),
        ({"speculation": {"mode": "ngram"}}, Drafts(repeats=True)),
        ({"ngram_speculation": True, "draft": {"tokens": 3}}, Drafts(repeats=True, tokens=3)),
        ({"speculation": {"mode": "ngram", "tokens": 7}}, Drafts(repeats=True, tokens=7)),
        ({"speculation": {"mode": "mtp"}}, Drafts(heads=True)),
        ({"mtp": True}, Drafts(heads=True)),
        ({"draft": {"model": "small", "tokens": 3}}, Drafts("small", tokens=3)),
        ({"speculation": {"mode": "model"}, "draft": {"model": "small"}}, Drafts("small")),
        ({"speculation": {"mode": "ngram"}, "draft": {"model": "small"}}, Drafts(repeats=True)),
        ({"speculation": {"mode": "off"}, "draft": {"model": "small"}, "mtp": True}, Drafts()),
    ],
)
def test_drafts_have_the_names_that_other_engines_have(
    chosen: dict[str, Any], found: Drafts
) -> None:
    assert drafts(msgspec.convert(chosen, ExLlamaV3Options)) == found


def test_what_the_engine_keeps_of_conversations_is_told() -> None:
    plain = facts(ExLlamaV3Options(recurrent_cache_size=0))
    assert (plain.kept_memory, plain.kept_states, plain.kept_disk) == (0, 0, 0)
    options = ExLlamaV3Options(cpu_cache_size=64, disk_cache_dir="kept", disk_cache_size=2)
    found = facts(options)
    assert (found.kept_memory, found.kept_states) == (64 << 20, 4 << 30)
    assert found.kept_disk == 2 << 30
