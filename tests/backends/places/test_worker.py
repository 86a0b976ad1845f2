"""A container whose engine is in a worker keeps the contract, and its worker's end is its own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from weakref import ref

import anyio
import psutil
import pytest

import bundled
from backends.contract.catalog import BACKENDS
from backends.contract.errors import (
    BackendError,
    EngineLost,
    GenerationFailed,
    LoadFailed,
    OutOfMemory,
)
from backends.contract.framing import RUNS
from backends.contract.protocol import Generation, Image, Pixels, Progress
from backends.places.container import PortContainer
from backends.places.worker import LastWords, LauncherProcess, WorkerPort, Workers
from config.engines import (
    EngineOptions,
    LlamaCppOptions,
    ScriptedOptions,
    TransformersOptions,
)
from tests.backends.batching import GREETING, STORY
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.container_contract import LASTING, PROMISES, Subject, job, run, text_of
from tests.backends.engines.test_scripted import SCRIPT
from tests.backends.places.workers import (
    forgotten,
    gone,
    is_there,
    load,
    load_frail,
    pid_of,
    uncollected,
    workers_of,
)
from tests.backends.places.workers import workers as made_workers
from tests.hang import HANG

pytestmark = pytest.mark.anyio

SAID = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LLAMACPP = LlamaCppOptions(max_concurrent=4, context_length=512)
TRANSFORMERS = TransformersOptions(device="cpu", max_concurrent=4, context_length=512)


@pytest.fixture(scope="module")
async def workers() -> AsyncIterator[Workers]:
    """In one event loop, which launchers belong to."""
    with made_workers() as made:
        yield made


async def subject(
    workers: Workers, path: Path, options: EngineOptions, prompt: str, long: str
) -> AsyncIterator[Subject]:
    container = await load(workers, path, options)
    pid = pid_of(container)
    yield Subject(container, prompt=prompt, long=long)
    await container.aclose()
    await gone(pid)


@pytest.fixture
async def scripted(workers: Workers, tmp_path: Path) -> AsyncIterator[Subject]:
    path = tmp_path / "demo.script.json"
    path.write_text(SCRIPT)
    async for one in subject(workers, path, ScriptedOptions(max_concurrent=4), "hello", "long"):
        yield one


@pytest.fixture
async def llamacpp(workers: Workers) -> AsyncIterator[Subject]:
    async for one in subject(workers, bundled.GGUF, LLAMACPP, GREETING, STORY):
        yield one


@pytest.fixture(scope="module")
async def transformers(workers: Workers) -> AsyncIterator[Subject]:
    """Loaded once, which takes seconds."""
    async for one in subject(workers, bundled.SAFETENSORS, TRANSFORMERS, GREETING, STORY):
        yield one


Promise = Callable[[Subject], Awaitable[None]]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract_of_the_scripted_engine(promise: Promise, scripted: Subject) -> None:
    await promise(scripted)


@pytest.mark.slow
@pytest.mark.parametrize("promise", [*PROMISES, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract_of_llama_cpp(promise: Promise, llamacpp: Subject) -> None:
    await promise(llamacpp)


@pytest.mark.slow
@pytest.mark.parametrize("promise", [*LASTING, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract_of_transformers(promise: Promise, transformers: Subject) -> None:
    await promise(transformers)


# ------------------------------------------------------------------------------------------ its end


@pytest.fixture
async def two(workers: Workers, tmp_path: Path) -> AsyncIterator[tuple[Subject, Subject]]:
    """One whose worker ends in a test, and one whose worker doesn't."""
    frail = [await load_frail(workers, tmp_path / name) for name in ("first", "second")]
    yield Subject(frail[0], "S", "answer:"), Subject(frail[1], "S", "answer:")
    for container in frail:
        await container.aclose()


async def fault(container: PortContainer, generation: Generation) -> BackendError:
    """What the job ends with."""
    with pytest.raises(BackendError) as raised:
        await run(container, generation)
    return raised.value


def container_of(subject: Subject) -> PortContainer:
    assert isinstance(subject.container, PortContainer)
    return subject.container


@pytest.mark.parametrize(
    ("prompt", "end"),
    [
        ("poke()", r"was ended by SIGSEGV$"),
        ("fail()", r"was ended by SIGABRT \(native\.c:1: GGML_ASSERT\(n > 0\) failed\)$"),
    ],
)
async def test_a_crash_ends_the_jobs_of_its_worker_alone(
    prompt: str, end: str, two: tuple[Subject, Subject]
) -> None:
    broken, sound = map(container_of, two)
    texts, faults = list[str](), list[BackendError]()

    async def answer() -> None:
        texts.append(text_of((await run(sound, job(two[1], two[1].long)))[0]))

    async def fail(text: str) -> None:
        faults.append(await fault(broken, job(two[0], text)))

    told = anyio.Event()
    broken.on_failure(told.set)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(answer)
        tasks.start_soon(fail, prompt)
    with anyio.fail_after(HANG):
        await told.wait()
    assert [type(one) for one in faults] == [EngineLost]
    for one in faults:
        with pytest.raises(GenerationFailed, match=rf"^the worker of alphabet\.toy\.json {end}"):
            raise one
    assert broken.failure == str(faults[0])
    assert texts == 4 * [SAID]
    await gone(pid_of(broken))
    assert is_there(pid_of(sound))


async def test_whoever_comes_after_the_end_hears_of_it(two: tuple[Subject, Subject]) -> None:
    broken = container_of(two[0])
    os.kill(pid_of(broken), signal.SIGKILL)
    await gone(pid_of(broken))
    for _ in range(2):
        error = await fault(broken, job(two[0], "S"))
        assert "SIGKILL, as the system does where memory runs out" in str(error)
    with pytest.raises(GenerationFailed, match="SIGKILL"):
        await broken.slots.states()


async def test_a_worker_that_stands_still_is_killed(two: tuple[Subject, Subject]) -> None:
    broken, sound = map(container_of, two)
    os.kill(pid_of(broken), signal.SIGSTOP)
    error = await fault(broken, job(two[0], "S"))
    assert str(error).endswith("did not answer for 3 s and was ended")
    await gone(pid_of(broken))
    pieces, _ = await run(sound, job(two[1], two[1].long))
    assert text_of(pieces) == SAID


async def test_a_reader_may_leave_while_its_worker_dies(two: tuple[Subject, Subject]) -> None:
    broken = container_of(two[0])
    async with broken.generate(job(two[0], two[0].long)) as outputs:
        os.kill(pid_of(broken), signal.SIGKILL)
        outputs.stop()
    await gone(pid_of(broken))
    await broken.aclose()
    await broken.aclose()


async def test_an_unload_ends_the_process(workers: Workers, tmp_path: Path) -> None:
    container = await load_frail(workers, tmp_path)
    pid = pid_of(container)
    assert is_there(pid)
    await container.aclose()
    assert not is_there(pid)
    with pytest.raises(GenerationFailed, match="closed"):
        await run(container, job(Subject(container, "S", "S"), "S"))


async def test_an_unload_keeps_nothing_of_the_model_here(workers: Workers, tmp_path: Path) -> None:
    """Its tokenizer, above all, which may have tens of megabytes."""
    with uncollected():
        container = await load_frail(workers, tmp_path)
        kept = ref(container)
        await run(container, job(Subject(container, "S", "S"), "answer:"))
        await container.aclose()
        del container
        await forgotten(kept)


async def test_a_crash_keeps_nothing_of_the_model_here(workers: Workers, tmp_path: Path) -> None:
    with uncollected():
        container = await load_frail(workers, tmp_path)
        kept = ref(container)
        os.kill(pid_of(container), signal.SIGKILL)
        with pytest.raises(BackendError):
            await run(container, job(Subject(container, "S", "S"), "S"))
        await container.aclose()
        del container
        await forgotten(kept)


async def test_the_end_of_a_launcher_ends_its_workers_and_the_next_load_has_another(
    tmp_path: Path,
) -> None:
    with made_workers() as workers:
        container = await load_frail(workers, tmp_path)
        pid = pid_of(container)
        psutil.Process(pid).parent().kill()
        error = await fault(container, job(Subject(container, "S", "S"), "poke()"))
        assert "ended with its launcher" in str(error)
        await gone(pid)
        await container.aclose()
        other = await load_frail(workers, tmp_path)
        pieces, _ = await run(other, job(Subject(other, "S", "S"), "answer:"))
        assert text_of(pieces) == SAID
        await other.aclose()


async def test_an_engine_that_makes_threads_when_it_is_imported_is_imported_by_each_worker(
    workers: Workers, tmp_path: Path
) -> None:
    container = await load_frail(workers, tmp_path, engine="threaded")
    assert psutil.Process(pid_of(container)).parent().cmdline()[-1] == "bare"
    pieces, _ = await run(container, job(Subject(container, "S", "S"), "answer:"))
    assert text_of(pieces) == SAID
    await container.aclose()


# --------------------------------------------------------------------------------------------- load


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("full", OutOfMemory, "^not enough memory for it$"),
        ("wrong", LoadFailed, "^RuntimeError: nobody thought of that$"),
        ("killed", OutOfMemory, "SIGKILL, as the system does where memory runs out"),
        ("stopped", LoadFailed, "did not answer for 3 s and was ended"),
    ],
)
async def test_a_load_fails_as_it_would_in_the_process(
    name: str, kind: type[Exception], text: str, workers: Workers, tmp_path: Path
) -> None:
    with pytest.raises(LoadFailed, match=text) as raised:
        await load_frail(workers, tmp_path, name)
    assert type(raised.value) is kind


@pytest.fixture
def ours() -> Callable[[], list[int]]:
    """The workers of this process, but those that other tests' models have."""
    there = set(workers_of(os.getpid()))
    return lambda: [pid for pid in workers_of(os.getpid()) if pid not in there]


async def test_a_load_that_is_cancelled_leaves_no_process(
    tmp_path: Path, ours: Callable[[], list[int]]
) -> None:
    with made_workers() as workers:
        await (await load_frail(workers, tmp_path)).aclose()
        scope, pids = anyio.CancelScope(), list[int]()

        def begun(_: Progress) -> None:
            pids.extend(ours())
            scope.cancel()

        with scope:
            await load_frail(workers, tmp_path, "endless", begun)
        assert scope.cancelled_caught
        assert pids
        assert not any(map(is_there, pids))


def test_a_load_that_is_cancelled_while_its_worker_connects_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: Callable[[], list[int]]
) -> None:
    """On the loop that the server has."""
    connected = WorkerPort.connection_made
    scopes: list[anyio.CancelScope] = []

    def cancelled(port: WorkerPort, transport: asyncio.BaseTransport) -> None:
        connected(port, transport)
        scopes[0].cancel()

    async def cancel() -> None:
        with made_workers() as workers, anyio.fail_after(HANG):
            scopes.append(anyio.CancelScope())
            with scopes[0]:
                await load_frail(workers, tmp_path)
            assert scopes[0].cancelled_caught
            assert not ours()

    monkeypatch.setattr(WorkerPort, "connection_made", cancelled)
    anyio.run(cancel, backend_options={"use_uvloop": True})


async def test_a_load_that_is_cancelled_while_its_launcher_begins_leaves_no_process(
    tmp_path: Path, ours: Callable[[], list[int]]
) -> None:
    """Its worker is forked all the same, once the launcher reads what it was asked."""
    with made_workers() as workers, anyio.fail_after(HANG):
        with anyio.move_on_after(0.01) as scope:
            await load_frail(workers, tmp_path)
        assert scope.cancelled_caught
        container = await load_frail(workers, tmp_path)
        while ours() != [pid_of(container)]:
            await anyio.sleep(0.01)
        await container.aclose()


async def test_a_worker_that_has_ended_before_anybody_looks_is_known_to_have() -> None:
    """Both reports of it are read at once: the event loop was busy."""
    launcher = LauncherProcess(BACKENDS["scripted"])
    async with anyio.create_task_group() as tasks:

        async def launch() -> None:
            child = await launcher.launch()
            assert (child.pid, child.ended.result()) == (7, -signal.SIGKILL)
            child.connection.close()
            os.close(child.errors)

        tasks.start_soon(launch)
        await anyio.wait_all_tasks_blocked()
        asyncio.get_running_loop().remove_reader(launcher._control)  # noqa: SLF001
        launcher._note(7, RUNS)  # noqa: SLF001
        launcher._note(7, -signal.SIGKILL)  # noqa: SLF001
    launcher.close()


async def test_progress_is_reported(workers: Workers) -> None:
    steps: list[Progress] = []
    container = await load(workers, bundled.GGUF, LLAMACPP, report=steps.append)
    assert steps[-1].done == steps[-1].total
    assert container.info.held is not None
    assert container.info.held["cpu"] > 1_000_000
    await container.aclose()


async def test_pictures_come_whole(workers: Workers, tmp_path: Path) -> None:
    path = tmp_path / "seeing.script.json"
    path.write_text('{"lines": [{"say": "{images}"}], "modalities": ["text", "image"]}')
    container = await load(workers, path)
    pictures = (
        Image(1000, 900, Pixels(b"\x10\x20\x30" * 900_000)),
        Image(1, 1, Pixels(b"\xff\x00\xff")),
    )
    prompt = container.tokenize("look", special=True)
    pieces, _ = await run(container, Generation(prompt=prompt, images=pictures))
    assert text_of(pieces) == "1000x900 #102030, 1x1 #ff00ff"
    await container.aclose()


async def test_what_a_library_prints_as_json_is_printed_and_ends_nothing() -> None:
    words = LastWords("tiny")
    for line in ('{"level": "bind", "event": "x"}', '{"level": []}', '{"event": "x"}', "[1]"):
        words.data_received(f"{line}\n".encode())
    words.data_received(b'{"level": "info", "event": "of its log"}\n')
    assert list(words.last) == [
        '{"level": "bind", "event": "x"}',
        '{"level": []}',
        '{"event": "x"}',
        "[1]",
    ]
