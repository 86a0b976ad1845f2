"""The scripted container keeps the contract, and says what its script says."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from backends.contract import catalog
from backends.contract.errors import GenerationFailed
from backends.contract.protocol import ModelContainer, Progress
from config.engines import ScriptedOptions
from tests.backends.container_contract import PROMISES, Subject, job, run, text_of
from tests.backends.loopback import BytesPort, over_bytes

pytestmark = pytest.mark.anyio

SCRIPT = """{"context_length": 512, "lines": [
  {"when": "hello", "say": "Hello, and welcome."},
  {"when": "long", "say": "An engine stands on the turntable, turns, and leaves on another track."},
  {"when": "break", "say": "This line breaks.", "fail_after": 4}
]}"""


async def load(folder: Path, options: ScriptedOptions = ScriptedOptions()) -> ModelContainer:
    path = folder / "demo.script.json"
    path.write_text(SCRIPT)
    progress: list[Progress] = []
    files = catalog.recognise(path)
    container = await catalog.BACKENDS[files.backend].container.load(
        files, options, progress.append
    )
    assert progress[-1].done == progress[-1].total
    return container


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(promise: Callable[[Subject], Awaitable[None]], tmp_path: Path) -> None:
    container = await load(tmp_path, ScriptedOptions(max_concurrent=4))
    try:
        await promise(Subject(container, prompt="hello", long="long"))
    finally:
        await container.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract_over_bytes(
    promise: Callable[[Subject], Awaitable[None]], tmp_path: Path
) -> None:
    container = over_bytes(await load(tmp_path, ScriptedOptions(max_concurrent=4)))
    try:
        await promise(Subject(container, prompt="hello", long="long"))
    finally:
        await container.aclose()


async def test_a_step_is_one_message_for_all_its_jobs(tmp_path: Path) -> None:
    # So slow that all begin before the first is over.
    options = ScriptedOptions(max_concurrent=4, tokens_per_second=200)
    container = over_bytes(await load(tmp_path, options))
    assert isinstance(container.port, BytesPort)
    subject = Subject(container, prompt="hello", long="long")
    said = "An engine stands on the turntable, turns, and leaves on another track."
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(run, container, job(subject, "long"))
    # each letter and the end, a few more where jobs didn't begin at the same step
    assert len(said) < container.port.events < 2 * len(said)
    assert container.port.commands == 4
    await container.aclose()


async def test_a_failed_step_fails_its_own_requests_only(tmp_path: Path) -> None:
    container = await load(tmp_path)
    subject = Subject(container, prompt="hello", long="long")
    with pytest.raises(GenerationFailed, match="fails after 4"):
        await run(container, job(subject, "break"))
    pieces, _ = await run(container, job(subject, "hello"))
    assert text_of(pieces) == "Hello, and welcome."
    await container.aclose()
