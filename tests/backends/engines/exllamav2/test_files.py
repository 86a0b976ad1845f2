"""Which folders are exllamav2's, and what they will take."""

import json
from pathlib import Path
from unittest.mock import MagicMock

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.engines.exllama.files import PAGE
from backends.engines.exllamav2 import model_config
from backends.engines.exllamav2.files import cache_size, estimate, recognise
from config.engines import DraftOptions, ExLlamaV2Options
from tests.backends.engines.exllama.folders import folder, quantized


def test_exl2_is_found_without_naming_a_backend(tmp_path: Path) -> None:
    files = catalog.recognise(quantized(tmp_path, "exl2"))
    assert (files.backend, files.format, files.architecture) == ("exllamav2", "exl2", "llama")
    assert files.context_length == 2048
    assert files.cache_bytes_per_token == 4 * 2 * 128 * 2  # layers, keys and values, width, bytes
    assert "enable_thinking" in (files.chat_template or "")


def test_plain_safetensors_are_exllamav2_s_only_when_it_is_named() -> None:
    assert catalog.recognise(bundled.SAFETENSORS).backend == "transformers"
    files = catalog.recognise(bundled.SAFETENSORS, "exllamav2")
    assert (files.backend, files.format) == ("exllamav2", "safetensors")


@pytest.mark.parametrize("method", ["bitsandbytes", "exl3"])
def test_other_quantizations_and_files_are_others(method: str, tmp_path: Path) -> None:
    assert recognise(quantized(tmp_path, method)) is None
    assert recognise(bundled.GGUF) is None
    (tmp_path / "notes.txt").write_text("exl2")
    assert recognise(tmp_path) is None


def test_a_config_that_is_no_json_is_reported(tmp_path: Path) -> None:
    broken = folder(tmp_path)
    (broken / "config.json").write_text("{")
    with pytest.raises(LoadFailed, match=r"config.json can't be read"):
        recognise(broken)


@pytest.mark.parametrize(
    ("architecture", "sees"),
    [("Qwen2VLForConditionalGeneration", True), ("MllamaForConditionalGeneration", False)],
)
def test_who_sees_is_known_from_the_class(architecture: str, sees: bool, tmp_path: Path) -> None:
    made = folder(tmp_path, architectures=[architecture], vision_config={"model_type": "qwen2"})
    (made / "preprocessor_config.json").write_text("{}")
    files = recognise(made)
    assert files is not None
    assert ("image" in files.modalities) is sees


def files() -> catalog.ModelFiles:
    return catalog.recognise(bundled.SAFETENSORS, "exllamav2")


def test_the_cache_is_whole_pages_and_holds_one_full_context() -> None:
    plan = cache_size(files(), ExLlamaV2Options(context_length=300, cache_tokens=100))
    assert (plan.cells, plan.length, plan.positions) == (512, 300, 512)
    plan = cache_size(files(), ExLlamaV2Options(context_length=512, max_concurrent=4))
    assert plan.cells == 4 * 512


def test_guesses_have_room_behind_the_context() -> None:
    options = ExLlamaV2Options(context_length=512, max_concurrent=1, ngram_speculation=True)
    plan = cache_size(files(), options)
    assert (plan.length, plan.drafted, plan.cells, plan.positions) == (512, 4, 768, 768)


def test_a_quantized_cache_takes_less_and_a_draft_model_more() -> None:
    plain = ExLlamaV2Options(cache_tokens=4 * PAGE, context_length=PAGE)
    full = estimate(files(), plain)
    assert full.weights == files().size_bytes
    assert full.cache == 4 * PAGE * files().cache_bytes_per_token
    quarter = estimate(files(), msgspec.structs.replace(plain, cache_type="q4"))
    assert 0.25 < quarter.cache / full.cache < 0.3
    both = msgspec.structs.replace(plain, draft=DraftOptions(model=str(bundled.SAFETENSORS)))
    assert estimate(files(), both).weights == 2 * full.weights
    assert estimate(files(), both).cache == 2 * full.cache


def test_two_ways_of_guessing_exclude_each_other() -> None:
    both = ExLlamaV2Options(
        draft=DraftOptions(model=str(bundled.SAFETENSORS)), ngram_speculation=True
    )
    with pytest.raises(LoadFailed, match="exclude each other"):
        estimate(files(), both)
    with pytest.raises(UnsupportedModel, match="draft model"):
        estimate(files(), ExLlamaV2Options(draft=DraftOptions(model=str(bundled.GGUF))))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
)
def test_a_scaling_without_the_length_it_scales_is_refused(
    scaling: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"rope_parameters": scaling}))
    library = MagicMock()
    library.config.return_value.architecture = library.config.return_value.arch.arch_string
    with pytest.raises(KeyError, match="original_max_position_embeddings"):
        model_config.read(library, tmp_path, 64)
