"""LoRA adapters of a GGUF file: each job's own, and those that can't be used are named."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import InvalidJob, LoadFailed
from backends.contract.protocol import Generation, ModelContainer
from config.engines import LlamaCppOptions
from tests.backends.adapters import NAMES, PROMISES, SETS, write_gguf
from tests.backends.batching import STORY
from tests.backends.container_contract import run
from tests.backends.engines.llamacpp.test_container import SHARED, SPLIT, load

pytestmark = pytest.mark.anyio


def adapted(options: LlamaCppOptions, folder: Path, **changes: Any) -> LlamaCppOptions:
    paths = {name: str(write_gguf(folder / f"{name}.gguf", name)) for name in NAMES}
    return msgspec.structs.replace(options, adapters=paths, **changes)


ROOMY = msgspec.structs.replace(SHARED, cache_tokens=2000)  # three long prompts


LAYOUTS = [
    pytest.param(SPLIT, id="split"),
    pytest.param(ROOMY, id="shared", marks=pytest.mark.slow),
]


@pytest.fixture(params=LAYOUTS, scope="module")
async def container(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ModelContainer]:
    folder = tmp_path_factory.mktemp("adapters")
    loaded = await load(adapted(request.param, folder, adapter_scaling={"clerk": 0.0}))
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_adapters(
    promise: Callable[[ModelContainer], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(container)


async def test_a_slot_with_chosen_adapters_is_not_saved(container: ModelContainer) -> None:
    """Its file could not say so."""
    prompt = container.tokenize(STORY, special=True)
    chosen = Generation(prompt=prompt, max_tokens=4, slot=2, adapters=SETS["both"])
    await run(container, chosen)
    with pytest.raises(InvalidJob, match="adapters that its request chose"):
        await container.slots.save(2)
    await run(container, msgspec.structs.replace(chosen, adapters=None))
    data = bytes((await container.slots.save(2)).data)
    assert await container.slots.restore(2, data) >= len(prompt)
    _, ended = await run(container, msgspec.structs.replace(chosen, adapters=None))
    assert ended.cached_tokens == len(prompt) - 1
    await container.slots.restore(2, data)
    assert (await run(container, chosen))[1].cached_tokens == 0


async def test_what_can_t_be_used_is_named(tmp_path: Path) -> None:
    options = adapted(SPLIT, tmp_path)
    with pytest.raises(LoadFailed, match="unknown adapter 'painter'"):
        await load(msgspec.structs.replace(options, adapter_scaling={"painter": 1.0}))
    for path in (tmp_path / "nothing.gguf", bundled.GGUF):
        with pytest.raises(LoadFailed, match="adapter 'one' can't be used"):
            await load(msgspec.structs.replace(options, adapters={"one": str(path)}))


def test_adapters_are_counted(tmp_path: Path) -> None:
    files = catalog.recognise(bundled.GGUF)
    estimate = catalog.BACKENDS["llamacpp"].files.estimate
    options = adapted(SPLIT, tmp_path)
    more = estimate(files, options).weights - estimate(files, SPLIT).weights
    assert more == sum(Path(path).stat().st_size for path in options.adapters.values())
