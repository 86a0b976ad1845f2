"""What a model is estimated to take, against its engine's own count and against the process."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import bundled
from backends import catalog
from config.engines import EngineOptions, LlamaCppOptions, TransformersOptions

pytestmark = pytest.mark.anyio
WITHIN = 1.25

CACHES = (
    LlamaCppOptions(),
    LlamaCppOptions(max_concurrent=1),
    LlamaCppOptions(cache_tokens=4096, micro_batch_size=128),
    LlamaCppOptions(flash_attention="off"),
    LlamaCppOptions(cache_type_k="q8_0", cache_type_v="q8_0"),
)


async def counted(path: Path, backend: str, options: EngineOptions) -> tuple[int, int]:
    """The bytes estimated, and those the loaded model says it takes."""
    files, found = catalog.recognise(path, backend), catalog.BACKENDS[backend]
    container = await found.container.load(files, options, lambda _: None)
    memory = container.info.memory
    await container.aclose()
    assert memory is not None
    return found.files.estimate(files, options).total, memory.total


@pytest.mark.parametrize("options", CACHES, ids=("plain", "single", "pool", "scores", "q8"))
async def test_llama_cpp_takes_what_was_estimated_whatever_its_cache(
    options: LlamaCppOptions,
) -> None:
    pytest.importorskip("llama_cpp")
    estimate, taken = await counted(bundled.GGUF, "llamacpp", options)
    assert taken / WITHIN < estimate < taken * WITHIN


@pytest.mark.parametrize(
    "name", ["small", "inner", "wide", "words", "long", "deep", "normed", "windowed"]
)
async def test_llama_cpp_takes_what_was_estimated_whatever_the_model(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    from tests.backends import random_gguf

    path = random_gguf.write(tmp_path / "model.gguf", random_gguf.MODELS[name])
    estimate, taken = await counted(path, "llamacpp", LlamaCppOptions())
    assert taken / WITHIN < estimate < taken * WITHIN


@pytest.mark.parametrize("name", ["small", "half", "brain", "words", "inner", "deep"])
async def test_transformers_takes_what_was_estimated(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.backends import random_folder

    path = random_folder.write(tmp_path / "model", random_folder.MODELS[name])
    options = TransformersOptions(device="cpu")
    estimate, taken = await counted(path, "transformers", options)
    assert taken / WITHIN < estimate < taken * WITHIN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("llamacpp", "bundled"),
        ("llamacpp", "long"),
        ("llamacpp", "deep"),
        ("transformers", "bundled"),
        ("transformers", "words"),
        ("transformers", "deep"),
    ],
)
def test_a_process_grows_by_what_was_estimated_when_a_model_is_used_to_its_limits(
    backend: str, name: str
) -> None:
    command = [sys.executable, "-m", "tests.backends.memory_taken", backend, name]
    told = subprocess.run(command, capture_output=True, check=True, timeout=600)
    model = msgspec.json.decode(told.stdout)
    assert model["taken"] / WITHIN < model["estimate"] < model["taken"] * WITHIN
