"""What a model is estimated to take, against its engine's own count and against the process."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import bundled
from backends.contract import catalog
from config.engines import EngineOptions, LlamaCppOptions, TransformersOptions
from tests.backends import gguf_grown, random_folder, random_gguf
from tests.backends.engines.llamacpp import random_projector
from tests.backends.engines.llamacpp.random_projector import Tower
from tests.backends.pairs import quick

pytestmark = pytest.mark.anyio
WITHIN = 1.25

CACHES = (
    LlamaCppOptions(),
    LlamaCppOptions(max_concurrent=1),
    LlamaCppOptions(cache_tokens=4096, micro_batch_size=128),
    LlamaCppOptions(flash_attention="off"),
    LlamaCppOptions(cache_type_k="q8_0", cache_type_v="q8_0"),
)


def untried(options: LlamaCppOptions) -> LlamaCppOptions:
    """Without a process that tries the file first: it is ours, and what it takes is the same."""
    return msgspec.structs.replace(options, trial="never")


async def counted(path: Path, backend: str, options: EngineOptions) -> tuple[int, int]:
    """The bytes estimated, and those the loaded model says it takes."""
    if isinstance(options, LlamaCppOptions):
        options = untried(options)
    files, found = catalog.recognise(path, backend), catalog.BACKENDS[backend]
    load = found.container.load if files.task == "generate" else found.container.load_encoder
    container = await load(files, options, lambda _: None)
    memory = container.info.memory
    await container.aclose()
    assert memory is not None
    return found.files.estimate(files, options).total, memory.total


@pytest.mark.parametrize("options", CACHES, ids=("plain", "single", "pool", "scores", "q8"))
async def test_llama_cpp_takes_what_was_estimated_whatever_its_cache(
    options: LlamaCppOptions,
) -> None:
    pytest.importorskip("backends.engines.llamacpp.library")
    estimate, taken = await counted(bundled.GGUF, "llamacpp", options)
    assert taken / WITHIN < estimate < taken * WITHIN


@pytest.mark.parametrize("name", quick(random_gguf.MODELS, "long", "mixed"))
async def test_llama_cpp_takes_what_was_estimated_whatever_the_model(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip("backends.engines.llamacpp.library")
    path = random_gguf.write(tmp_path / "model.gguf", random_gguf.MODELS[name])
    estimate, taken = await counted(path, "llamacpp", LlamaCppOptions())
    assert taken / WITHIN < estimate < taken * WITHIN


FAMILIES = (
    *(
        "llama",
        "deepseek2",
        "gemma2",
        "gemma3",
        "gemma4",
        "glm4moe",
        "gpt-oss",
        "llama4",
        "minicpm3",
    ),
    *("phi3", "qwen3moe", "falcon-h1", "granitehybrid", "lfm2", "mamba2", "nemotron_h", "plamo2"),
    "qwen35",
)
SPLIT = untried(LlamaCppOptions(threads=1))
POOLED = untried(LlamaCppOptions(threads=1, cache_tokens=8_192, context_length=4_096))


@pytest.mark.parametrize("options", [SPLIT, POOLED], ids=("split", "pool"))
@pytest.mark.parametrize("family", quick(FAMILIES, "gemma3", "qwen35"))
async def test_llama_cpp_logs_what_was_estimated_whatever_the_family(
    family: str, options: LlamaCppOptions, tmp_path: Path
) -> None:
    pytest.importorskip("backends.engines.llamacpp.library")
    numbers = {"attention.sliding_window": 16} if family == "gemma3" else None
    path = gguf_grown.write(family, tmp_path / "model.gguf", numbers)
    files = catalog.recognise(path, "llamacpp")
    need = catalog.BACKENDS["llamacpp"].files.estimate(files, options)
    container = await catalog.BACKENDS["llamacpp"].container.load(files, options, lambda _: None)
    taken = container.info.memory
    await container.aclose()
    assert taken is not None
    assert taken.total / 1.1 < need.total < taken.total * 1.1
    assert taken.cache / 1.1 < need.cache < taken.cache * 1.1


@pytest.mark.parametrize("options", [LlamaCppOptions(), LlamaCppOptions(context_length=128)])
async def test_llama_cpp_takes_what_was_estimated_for_encoders(
    options: LlamaCppOptions, embed_gguf: Path, rank_gguf: Path
) -> None:
    pytest.importorskip("backends.engines.llamacpp.library")
    for path in (embed_gguf, rank_gguf):
        estimate, taken = await counted(path, "llamacpp", options)
        assert taken / WITHIN < estimate < taken * WITHIN


TOWERS = {
    "small": Tower(side=224, patch=14, width=256, inner=1024, layers=2, heads=4),
    "wide": Tower(side=336, patch=14, width=512, inner=1024, layers=2, heads=8),
    "narrow": Tower(side=336, patch=14, width=256, inner=256, layers=2, heads=4),
    "coarse": Tower(side=336, patch=28, width=256, inner=1024, layers=2, heads=8),
}


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("name", quick(TOWERS, "small"))
@pytest.mark.parametrize("kind", ["gemma3-sees", "qwen2vl-sees"])
async def test_llama_cpp_takes_what_was_estimated_whatever_the_model_sees_with(
    kind: str, name: str, scores: bool, tmp_path: Path
) -> None:
    pytest.importorskip("backends.engines.llamacpp.library")
    path = random_projector.write(kind, tmp_path, TOWERS[name])
    options = LlamaCppOptions(context_length=128, flash_attention="off" if scores else "auto")
    estimate, taken = await counted(path, "llamacpp", options)
    assert taken / WITHIN < estimate < taken * WITHIN


@pytest.mark.parametrize("name", quick(random_folder.MODELS, "small"))
async def test_transformers_takes_what_was_estimated(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = random_folder.write(tmp_path / "model", random_folder.MODELS[name])
    options = TransformersOptions(device="cpu")
    estimate, taken = await counted(path, "transformers", options)
    assert taken / WITHIN < estimate < taken * WITHIN


# What a process grew by: in the end; at its largest, where one pass takes most of it and gives it
# back; or without the file's pages, where the weights were merged into new ones.
IN_THE_END, AT_MOST, WITHOUT_FILES = "resident", "peak", "anonymous"
# torch's allocator and its recorded passes keep more or less from run to run, by so many bytes.
SPREAD = {"llamacpp": 0, "transformers": 16 << 20}
GROWN = [
    ("llamacpp", "bundled", IN_THE_END),
    ("llamacpp", "long", IN_THE_END),
    ("llamacpp", "deep", IN_THE_END),
    ("llamacpp", "mixed", IN_THE_END),
    ("transformers", "bundled", IN_THE_END),
    ("transformers", "words", IN_THE_END),
    ("transformers", "deep", IN_THE_END),
    ("transformers", "qwen2", IN_THE_END),
    ("transformers", "window", IN_THE_END),
    ("transformers", "window-wide", IN_THE_END),
    ("transformers", "mamba", AT_MOST),
    ("transformers", "mamba-wide", AT_MOST),
    ("transformers", "experts-many", WITHOUT_FILES),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name", "figure"), GROWN)
def test_a_process_grows_by_what_was_estimated_when_a_model_is_used_to_its_limits(
    backend: str, name: str, figure: str
) -> None:
    command = [sys.executable, "-m", "tests.backends.memory_taken", backend, name]
    measured = subprocess.run(command, capture_output=True, check=True, timeout=600)
    model = msgspec.json.decode(measured.stdout)
    least, most = model[figure] / WITHIN - SPREAD[backend], model[figure] * WITHIN + SPREAD[backend]
    assert least < model["estimate"] < most
