"""The bundled files are what the package says they are, and small."""

import json

from backends.contract import catalog
from backends.contract.samplers import Sampling
from bundled import GGUF, SAFETENSORS

MOST_BYTES = 8_000_000


def test_both_forms_together_stay_under_eight_megabytes() -> None:
    files = [GGUF, *SAFETENSORS.iterdir()]
    assert 1_000_000 < sum(file.stat().st_size for file in files) < MOST_BYTES


def test_the_folder_holds_a_complete_hugging_face_model_and_nothing_else() -> None:
    assert {file.name for file in SAFETENSORS.iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_both_forms_answer_in_the_same_way_where_a_request_says_nothing() -> None:
    for path in (GGUF, SAFETENSORS):
        files = catalog.recognise(path)
        assert files is not None
        assert files.generation_defaults == Sampling(temperature=0)


def test_the_model_is_a_llama_with_a_context_of_2048() -> None:
    config = json.loads((SAFETENSORS / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 2048
