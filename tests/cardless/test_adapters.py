"""LoRA adapters of exllamav2 and exllamav3 themselves: each job's own, and each chain of pages."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.protocol import ModelContainer
from config.engines import DraftOptions, ExLlamaOptions, LlamaCppOptions
from tests.backends.adapters import NAMES, PROMISES, SETS, answered, write_folder, write_gguf
from tests.backends.batching import STORY
from tests.backends.parity import load

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENVIRONMENT: Mapping[str, str] = {"EXL3_FUSED_SAMPLER": "0"}  # one kernel for several steps


def adapted(backend: str, folder: Path, **changes: object) -> ExLlamaOptions:
    plain = catalog.BACKENDS[backend].options(max_concurrent=4, context_length=512)
    assert isinstance(plain, ExLlamaOptions)
    if backend == "exllamav3":
        changes = {"warmup": False, **changes}
    paths = {name: str(folder / name) for name in NAMES}
    for name, path in paths.items():
        if not Path(path).exists():
            write_folder(Path(path), name)
    return msgspec.structs.replace(plain, adapters=paths, **changes)


WAYS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "exllamav2": ("exllamav2", {}),
    "exllamav2, n-grams": ("exllamav2", {"ngram_speculation": True}),
    "exllamav2, draft": ("exllamav2", {"draft": DraftOptions(model=str(bundled.SAFETENSORS))}),
    "exllamav3": ("exllamav3", {}),
    "exllamav3, main memory": ("exllamav3", {"cpu_cache_size": 64, "cache_tokens": 768}),
}


@pytest.fixture(params=WAYS, scope="module")
async def container(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ModelContainer]:
    backend, changes = WAYS[request.param]
    options = adapted(
        backend, tmp_path_factory.mktemp("adapters"), adapter_scaling={"clerk": 0.0}, **changes
    )
    loaded = await load(backend, options)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_adapters(
    promise: Callable[[ModelContainer], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(container)


async def test_pages_on_disk_are_their_own_set_s(tmp_path: Path) -> None:
    """Also of a server that has other adapters, or none, and the same folder."""
    kept = {"disk_cache_dir": str(tmp_path / "kept"), "cpu_cache_size": 16, "disk_cache_size": 1}
    options = adapted("exllamav3", tmp_path, **kept)
    cached: list[int] = []
    told = []
    without = msgspec.structs.replace(options, adapters={})
    loads = {"poet": options, "none": options}
    for chosen, changed in (*loads.items(), ("poet", options), ("as loaded", without)):
        container = await load("exllamav3", changed)
        prompt = container.tokenize(STORY * 40, special=True)[:400]
        tokens, ended = await answered(container, prompt, chosen)
        await container.aclose()
        cached.append(ended.cached_tokens)
        told.append(tokens)
    assert cached == [0, 0, 256, 256]
    assert told[0] == told[2] != told[1] == told[3]


@pytest.mark.parametrize("backend", ["exllamav2", "exllamav3"])
def test_adapters_are_counted(backend: str, tmp_path: Path) -> None:
    files = catalog.recognise(bundled.SAFETENSORS, backend)
    estimate = catalog.BACKENDS[backend].files.estimate
    options = adapted(backend, tmp_path)
    without = msgspec.structs.replace(options, adapters={})
    more = estimate(files, options).weights - estimate(files, without).weights
    written = (tmp_path / name / "adapter_model.safetensors" for name in NAMES)
    assert more == sum(path.stat().st_size for path in written)


async def test_all_engines_mean_the_same_by_a_set(tmp_path: Path) -> None:
    """llama.cpp has its own file of the same tensors."""
    paths = {name: str(write_gguf(tmp_path / f"{name}.gguf", name)) for name in NAMES}
    native = LlamaCppOptions(max_concurrent=4, context_length=512, gpu_layers=0, adapters=paths)
    said = []
    for backend in ("llamacpp", "exllamav2", "exllamav3"):
        options = native if backend == "llamacpp" else adapted(backend, tmp_path)
        path = bundled.GGUF if backend == "llamacpp" else bundled.SAFETENSORS
        container = await load(backend, options, path)
        prompt = container.tokenize(STORY, special=True)
        said.append([(await answered(container, prompt, chosen))[0] for chosen in SETS])
        await container.aclose()
    assert said[0] == said[1] == said[2]
