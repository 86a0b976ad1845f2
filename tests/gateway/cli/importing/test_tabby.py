"""TabbyAPI's folder as a configuration: its sample, keys, presets, drafts and adapters."""

from pathlib import Path

import pytest

import bundled
from config.errors import ConfigError
from config.loader import load_config
from gateway.cli.importing import tabby
from gateway.cli.importing.imported import Imported, written

SAMPLE = """
network: {host: 127.0.0.1, port: 5000, disable_auth: false, api_servers: [OAI]}
logging: {log_prompt: false}
model:
  model_dir: models
  model_name: mine
  use_as_default: []
  backend: BACKEND
  max_seq_len: 4096
  cache_size: 8192
  cache_mode: Q8
  gpu_split_auto: true
  autosplit_reserve: [96]
  gpu_split: []
  cpu_moe_offload_layers:
  rope_scale: 1.0
  chunk_size: 1024
  output_chunking: true
  max_batch_size: 4
  prompt_template: alpaca
  vision: false
  template_vars_default: {enable_thinking: true}
  reasoning: true
draft_model:
  {draft_mode: model, draft_model_name: small, draft_cache_mode: FP16, draft_num_tokens: 5}
sampling: {override_preset: safe}
lora: {lora_dir: loras, loras: [{name: style, scaling: 0.5}]}
embeddings: {embedding_model_name: minilm, embeddings_device: cpu}
memory: {sysmem_kv_cache: 0, cuda_malloc_async: true}
developer: {unsafe_launch: false}
"""


def imported(folder: Path, text: str) -> Imported:
    (folder / "config.yml").write_text(text)
    (folder / "templates").mkdir(exist_ok=True)
    (folder / "templates" / "alpaca.jinja").write_text("{{ messages }}")
    (folder / "sampler_overrides").mkdir(exist_ok=True)
    (folder / "sampler_overrides" / "safe.yml").write_text("temperature: {override: 0.7}")
    found = tabby.imported(folder)
    load_config(folder / "roundhouse.yaml", {}, text=written(found.config))
    return found


@pytest.mark.parametrize("backend", ["exllamav2", "exllamav3"])
def test_a_whole_configuration(tmp_path: Path, backend: str) -> None:
    (tmp_path / "api_tokens.yml").write_text("api_key: [one, two]\nadmin_key: root")
    found = imported(tmp_path, SAMPLE.replace("BACKEND", backend))
    assert found.config == {
        "server": {"host": "127.0.0.1", "port": 5000},
        "keys": [{"key": "one"}, {"key": "two"}, {"key": "root", "role": "admin"}],
        "models": [
            {
                "name": "mine",
                "path": str(tmp_path / "models" / "mine"),
                "backend": backend,
                "preload": True,
                "template_kwargs": {"enable_thinking": True},
                "template": str(tmp_path / "templates" / "alpaca.jinja"),
                "options": {
                    "context_length": 4096,
                    "cache_tokens": 8192,
                    "cache_type": "q8",
                    "autosplit_reserve": [96],
                    "chunk_size": 1024,
                    "max_concurrent": 4,
                    "vision": False,
                    "draft": {"tokens": 5, "model": str(tmp_path / "models" / "small")},
                    "speculation": {"mode": "auto"},
                    "adapters": {"style": str(tmp_path / "loras" / "style")},
                    "adapter_scaling": {"style": 0.5},
                },
            },
            {"name": "minilm", "path": str(tmp_path / "models" / "minilm")},
        ],
        "model_dirs": [str(tmp_path / "models")],
        "template_dir": str(tmp_path / "templates"),
        "preset_dir": str(tmp_path / "sampler_overrides"),
        "preset": "safe",
    }
    assert found.notes == ()


def test_a_gguf_has_the_same_options_by_its_own_names(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.gguf").symlink_to(bundled.GGUF)
    text = "model: {model_name: mine.gguf, cache_mode: Q8, cache_size: 512, rope_alpha: 2.5}"
    found = imported(tmp_path, text)
    (model,) = found.config["models"]
    assert model["backend"] == "llamacpp"
    assert model["options"] == {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "cache_tokens": 512}
    assert found.notes == (
        "api_tokens.yml: not there; `serve --new-key` makes a key",
        "model.rope_alpha: llamacpp has no option like rope_alpha",
    )


def test_without_a_model_its_folder_is_served(tmp_path: Path) -> None:
    text = "network: {disable_auth: true}\nmodel: {model_dir: there, something: 5}"
    found = imported(tmp_path, text)
    assert found.config["model_dirs"] == [str(tmp_path / "there")]
    assert "models" not in found.config
    assert "keys" not in found.config


@pytest.mark.parametrize("text", ["", "models: []", "model: 5", "model: {}\nlora: [a]"])
def test_what_is_no_such_configuration_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        imported(tmp_path, text)
