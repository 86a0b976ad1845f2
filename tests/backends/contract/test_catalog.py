"""What every engine's folder says of itself, so that nothing above the backends knows an engine."""

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from backends.contract.catalog import (
    BACKENDS,
    Backend,
    ContainerModule,
    FilesModule,
    LoadFacts,
)
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Adapter
from config.engines import (
    DraftOptions,
    EngineOptions,
    ExLlamaV2Options,
    ExLlamaV3Options,
    LlamaCppOptions,
    ScriptedOptions,
    TransformersOptions,
)

ENGINES = {"torch", "transformers", "llama_cpp", "exllamav2", "exllamav3"}


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=lambda one: one.name)
def test_a_folder_offers_what_the_protocols_say(backend: Backend) -> None:
    for module, protocol in ((backend.files, FilesModule),):
        assert all(hasattr(module, name) for name in protocol.__annotations__), module
        functions = inspect.getmembers(protocol, inspect.isfunction)
        for name, promised in functions:
            if not name.startswith("_"):
                given = inspect.signature(getattr(module, name)).parameters.values()
                needed = [one.name for one in given if one.default is one.empty]
                assert needed == list(inspect.signature(promised).parameters)[1:]
    assert inspect.isfunction(ContainerModule.load)


def test_what_is_asked_of_every_file_imports_no_engine() -> None:
    """In a process of its own: here some other test may have imported them."""
    code = (
        "import sys; from backends.contract.catalog import BACKENDS\n"
        "[one.files for one in BACKENDS.values()]\n"
        f"print(sorted({ENGINES!r} & set(sys.modules)))"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (ScriptedOptions(), LoadFacts()),
        (LlamaCppOptions(), LoadFacts(cache_mode="FP16", chunk_size=2048)),
        (
            LlamaCppOptions(cache_type_k="q8_0", cache_type_v="q4_0", cache_tokens=4096),
            LoadFacts(cache_tokens=4096, cache_mode="Q8,Q4", chunk_size=2048),
        ),
        (
            LlamaCppOptions(rope_freq_scale=0.25, batch_size=64),
            LoadFacts(cache_mode="FP16", rope_scale=4.0, chunk_size=64),
        ),
        (
            TransformersOptions(cache_tokens=512, adapters={"poet": "/lora"}),
            LoadFacts(cache_tokens=512, adapters=(Adapter(name="poet", file="lora"),)),
        ),
        (
            ExLlamaV2Options(cache_type="q6", rope_scale=2.0, rope_alpha=1.5),
            LoadFacts(cache_mode="Q6", rope_scale=2.0, rope_alpha=1.5, chunk_size=2048),
        ),
        (
            ExLlamaV3Options(
                cache_type="8,4",
                draft=DraftOptions(model="/small"),
                adapters={"a": "/lora/a", "b": "/b"},
                adapter_scaling={"b": 0.5},
            ),
            LoadFacts(
                cache_mode="8,4",
                chunk_size=2048,
                draft_model="/small",
                adapters=(Adapter(name="a", file="a"), Adapter(name="b", scale=0.5, file="b")),
                kept_states=4 << 30,  # what the package keeps of recurrent states by itself
            ),
        ),
    ],
)
def test_options_in_the_words_of_model_lists(options: EngineOptions, facts: LoadFacts) -> None:
    backend = next(one for one in BACKENDS.values() if one.options is type(options))
    assert backend.files.facts(options) == facts


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=lambda one: one.name)
def test_only_options_that_an_engine_has_are_translated(backend: Backend) -> None:
    """A value that fits no translation tells nothing; these fit what each of them takes."""
    values = {
        "cache_size": 512,
        "cache_mode": "Q8",
        "gpu_split": (1.0,),
        "autosplit_reserve": (1.0,),
        "chunk_size": 64,
        "rope_scale": 2.0,
        "rope_alpha": 2.0,
        "tensor_parallel": True,
        "tensor_parallel_backend": "nccl",
        "vision": False,
        "draft_model": "/small",
        "draft_mode": "ngram",
        "draft_num_tokens": 3,
        "draft_cache_mode": "Q4",
        "draft_gpu_split": (1.0,),
        "dynamic_draft": True,
        "ngram_match_min": 2,
        "sysmem_kv_cache": 64,
        "sysmem_recurrent_cache": 64,
        "cpu_moe_offload_layers": 2,
    }
    for name, translation in backend.files.LOAD_OPTIONS.items():
        msgspec.convert(dict(translation(values[name])), backend.options)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("llama-7b.Q4_K_M.gguf", "llama-7b.Q4_K_M"),
        ("big-00001-of-00003.gguf", "big"),
        ("hello.script.json", "hello"),
        ("Qwen3-4B-exl3", "Qwen3-4B-exl3"),
        ("owner/nested.gguf", "owner/nested"),
        ("file.gguf.part", "file.gguf.part"),
    ],
)
def test_a_model_is_called_as_its_file_without_what_the_engine_wants(file: str, name: str) -> None:
    assert BACKENDS.bare_name(file) == name


def test_what_is_not_there_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="file or folder not found"):
        BACKENDS.recognise(tmp_path / "nothing")


def test_every_engine_is_named_in_the_import_rules() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    listed = tomllib.loads(project.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    rules = {one["id"]: one for one in listed}
    layers = " ".join((*rules["engines-apart"]["layers"], *rules["places-apart"]["layers"]))
    assert set(BACKENDS) <= set(re.findall(r"\w+", layers))
    assert "backends.engines" in rules["no-engine"]["forbidden_modules"]
