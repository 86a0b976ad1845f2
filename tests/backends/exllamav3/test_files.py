"""Which folders are exllamav3's, and what they will take."""

from pathlib import Path

import msgspec
import pytest

import bundled
from backends import catalog
from backends.errors import LoadFailed, UnsupportedModel
from backends.exllama.files import PAGE
from backends.exllamav3.files import (
    cache_bits,
    cache_share,
    cache_size,
    estimate,
    fitted,
    placed,
    placements,
    recognise,
)
from config.engines import ExLlamaV3Options
from tests.backends.exllama.folders import folder, quantized


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
    both = msgspec.structs.replace(plain, draft_model=str(bundled.SAFETENSORS))
    assert estimate(files(), both).total > full.total
    assert estimate(files(), both).cache == 2 * full.cache


def test_two_ways_of_guessing_exclude_each_other() -> None:
    both = ExLlamaV3Options(draft_model=str(bundled.SAFETENSORS), ngram_speculation=True)
    with pytest.raises(LoadFailed, match="exclude each other"):
        estimate(files(), both)
    with pytest.raises(UnsupportedModel, match=r"draft model.*exllamav3"):
        estimate(files(), ExLlamaV3Options(draft_model=str(bundled.GGUF)))


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


def test_an_image_encoder_that_is_not_wanted_is_not_loaded(tmp_path: Path) -> None:
    seeing = ["Qwen2_5_VLForConditionalGeneration"]
    made = folder(tmp_path, architectures=seeing, vision_config={"model_type": "qwen2"})
    (made / "preprocessor_config.json").write_text("{}")
    files = catalog.recognise(made, "exllamav3")
    assert "image" in fitted(files, ExLlamaV3Options()).modalities
    assert fitted(files, ExLlamaV3Options(vision=False)).modalities == ("text",)
