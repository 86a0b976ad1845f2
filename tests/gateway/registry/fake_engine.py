"""A fake_engine to try the registry in.

A fake engine that objects to what must not happen, a clock that is moved by hand, and clients that
come and leave when the test says so.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup

from backends.contract.beginnings import Beginnings, SavedSlot
from backends.contract.catalog import Cards, Fitted, Layout, ModelFiles, Placement, Room
from backends.contract.errors import UnsupportedModel
from backends.contract.protocol import (
    Generation,
    MemoryNeed,
    ModelInfo,
    Outputs,
    Progress,
    Report,
    SlotState,
)
from config.engines import EngineOptions
from config.settings import Config, ModelConfig, SwapConfig
from gateway.registry import History, Lease, ModelEvent, ModelLibrary, Registry, Waiting
from gateway.registry.gauges import Gauge
from gateway.registry.line import Clock
from gateway.registry.loaders import Loader
from gateway.registry.protocol import Bytes
from gateway.terms.errors import GatewayError

AT_ONCE = SwapConfig(min_stay=0.0)


async def settled() -> None:
    """Let everything happen that follows from what was done, threads' work included.

    Twice, because a task whose cancellation is on its way counts as blocked, as does one that waits
    for a thread.
    """
    threads, quiet = to_thread.current_default_thread_limiter(), 0
    while quiet < 2:
        await anyio.wait_all_tasks_blocked()
        await anyio.lowlevel.checkpoint()
        quiet += 1
        if threads.borrowed_tokens:
            quiet = 0
            await anyio.sleep(0.001)


class HandClock(Clock):
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._moved = anyio.Event()

    def now(self) -> float:
        return self._now

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        while not event.is_set() and (until is None or self._now < until):
            async with anyio.create_task_group() as either:

                async def first_of(one: anyio.Event) -> None:
                    await one.wait()
                    either.cancel_scope.cancel()

                either.start_soon(first_of, event)
                either.start_soon(first_of, self._moved)

    async def advance(self, seconds: float) -> None:
        """Move on, and let everything happen that follows."""
        self._now += seconds
        self._moved.set()
        self._moved = anyio.Event()
        await settled()


class FakeContainer:
    """A model in memory that does nothing."""

    is_unreached = False
    pace = None

    def __init__(self, engine: "FakeEngine", name: str) -> None:
        self.name = name
        self._engine = engine
        self.info = ModelInfo(
            backend="scripted",
            format="script",
            architecture="script",
            context_length=64,
            max_concurrent=1,
            vocab_size=256,
            size_bytes=1,
            memory=MemoryNeed(weights=engine.present[name], cache=0, engine=0),
        )
        self.slots = NoSlots()

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        raise NotImplementedError

    def detokenize(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def pieces(self, tokens: Sequence[int]) -> Sequence[bytes]:
        raise NotImplementedError

    @property
    def failure(self) -> str | None:
        return self._engine.broken.get(self.name)

    def on_failure(self, tell: Callable[[], None]) -> None:
        self._engine.tell[self.name] = tell

    def generate(self, job: Generation) -> AbstractAsyncContextManager[Outputs]:
        raise NotImplementedError

    def keep_in(self, beginnings: Beginnings) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._engine.close(self)


class NoSlots:
    """Nobody asks for them."""

    async def states(self) -> Sequence[SlotState]:
        raise NotImplementedError

    async def save(self, slot: int) -> SavedSlot:
        raise NotImplementedError

    async def restore(self, slot: int, data: bytes) -> int:
        raise NotImplementedError

    async def erase(self, slot: int) -> int:
        raise NotImplementedError


class FakeEngine(Loader):
    """Loads nothing, but notices a model loaded twice, closed while leased, or too much at once.

    `gates`: models that load only when their gate is opened. `stubborn`: those that end their load
    well though they are cancelled. `broken_closes`: those that raise when they are closed.
    `failures`: what a model's next loads raise. `broken`: why a model in memory is of no use any
    more; a new load mends it. `real`: what it really takes, where that differs.
    """

    def __init__(
        self,
        *,
        gates: Iterable[str] = (),
        stubborn: Iterable[str] = (),
        broken_closes: Iterable[str] = (),
        parts: Mapping[str, tuple[Path, ...]] | None = None,
        real: Mapping[str, int] | None = None,
        experimental: bool = False,
        may_end: bool = False,
    ) -> None:
        self.unit = 1  # bytes to a byte of a model's name
        self.options: dict[str, EngineOptions] = {}
        self.present: dict[str, int] = {}
        self.history: list[str] = []
        self.gates = {name: anyio.Event() for name in gates}
        self.closing_gates: dict[str, anyio.Event] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.broken: dict[str, str] = {}
        self.tell: dict[str, Callable[[], None]] = {}
        self.leased: dict[str, int] = {}
        self.last_report = Progress("weights", 0, 0)
        self._stubborn = set(stubborn)
        self._broken_closes = set(broken_closes)
        self._parts = parts or {}
        self._real = real or {}
        self._experimental = experimental
        self._may_end = may_end
        self._reports: dict[str, Report] = {}

    @property
    def budget(self) -> int:
        return 100 * self.unit

    def recognise(self, path: Path, backend: str | None) -> ModelFiles:
        """`a40` is a model of 40 bytes."""
        size = path.name.lstrip("abcdefghijklmnopqrstuvwxyz")
        if not size.isdigit():
            raise UnsupportedModel(f"{path} is not a model")
        return ModelFiles(
            path=path,
            backend="scripted",
            format="script",
            architecture="script",
            size_bytes=int(size) * self.unit,
            context_length=64,
            cache_bytes_per_token=0,
            parts=self._parts.get(path.name, ()),
        )

    def layout(self, files: ModelFiles) -> Layout:
        return self

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        """As large as its name says, and a byte for each token of a context that is asked for."""
        return MemoryNeed(weights=files.size_bytes, cache=options.context_length or 0, engine=0)

    def placements(
        self, files: ModelFiles | None, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        return ({"cpu": 1.0},)

    def placed(self, options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
        return options

    def fit(
        self, files: ModelFiles, options: EngineOptions, cards: Cards, room: Room
    ) -> Fitted | None:
        return None

    def is_experimental(self, files: ModelFiles) -> bool:
        return self._experimental

    def may_end(self, files: ModelFiles, options: EngineOptions) -> bool:
        return self._may_end

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> FakeContainer:
        name = files.path.name
        assert name not in self._reports, f"{name} is loaded twice at once"
        assert name not in self.present, f"{name} is loaded though it is there"
        self._reports[name] = report
        self.present[name] = self._real.get(name, files.size_bytes)
        try:
            held = sum(self.present.values())
            assert held <= self.budget, f"memory is promised twice: {held} of {self.budget}"
            return await self._bring(name, options)
        except anyio.get_cancelled_exc_class():
            self.history.append(f"cancelled {name}")
            del self.present[name]
            raise
        except Exception:
            del self.present[name]
            raise
        finally:
            del self._reports[name]

    def end(self) -> None:
        assert not self.present, "it ends while models are in memory"

    async def _bring(self, name: str, options: EngineOptions) -> FakeContainer:
        self.history.append(f"load {name}")
        self._reports[name](Progress("weights", 0, 10))
        if name in self.gates:
            with anyio.CancelScope(shield=name in self._stubborn):
                await self.gates[name].wait()
        if self.failures.get(name):
            raise self.failures[name].pop(0)
        self.history.append(f"loaded {name}")
        self.options[name] = options
        self.broken.pop(name, None)
        return FakeContainer(self, name)

    async def open(self, name: str) -> None:
        """Let the load end, and everything happen that follows."""
        self.gates.pop(name).set()
        await settled()

    async def report(self, name: str, done: int, total: int) -> None:
        """The load got so far."""
        self.last_report = Progress("weights", done, total)
        self._reports[name](self.last_report)
        await settled()

    def break_down(self, name: str, reason: str) -> None:
        """It is of no use any more."""
        self.broken[name] = reason
        self.tell[name]()

    async def close(self, container: FakeContainer) -> None:
        name = container.name
        assert not self.leased.get(name), f"{name} is closed while it is leased"
        if name in self.closing_gates:
            await self.closing_gates[name].wait()
        del self.present[name]
        self.history.append(f"closed {name}")
        if name in self._broken_closes:
            raise RuntimeError("the engine broke while closing")


class FakeGauge(Gauge):
    """Measures what the engine really holds."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    def free(self) -> Bytes:
        return {"cpu": self._engine.budget}

    def available(self, *, anew: bool = False) -> Bytes:
        return self.free()

    def total(self) -> Bytes:
        return self.free()

    def used(self) -> Bytes:
        return {"cpu": sum(self._engine.present.values())}

    def held(self) -> Bytes:
        return self.used()


class Client:
    """One client with one lease, which it holds until it is told to leave."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.news: list[Waiting] = []
        self.error: GatewayError | None = None
        self._scope = anyio.CancelScope()

    @classmethod
    @asynccontextmanager
    async def group(cls) -> AsyncIterator["Clients"]:
        """Clients that all leave at the end."""
        async with anyio.create_task_group() as tasks:
            yield Clients(tasks)
            tasks.cancel_scope.cancel()

    async def stay(self, registry: Registry, name: str) -> None:
        with self._scope:
            try:
                async with registry.lease(name, on_wait=self.news.append) as lease:
                    await self._use(lease)
            except GatewayError as error:
                self.error = error

    async def _use(self, lease: Lease) -> None:
        container = lease.container
        assert isinstance(container, FakeContainer)
        engine, name = container._engine, container.name  # noqa: SLF001 - the fake's own house
        assert name in engine.present, f"{name} is leased, but not there"
        self.lease = lease
        engine.leased[name] = engine.leased.get(name, 0) + 1
        try:
            await anyio.sleep_forever()
        finally:
            engine.leased[name] -= 1

    def stop(self) -> None:
        """Leave; what follows from it has not happened yet."""
        self._scope.cancel()

    async def leave(self) -> None:
        """Leave, and let everything happen that follows."""
        self.stop()
        await settled()


class Clients:
    """Starts clients in the background."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    def start(self, registry: Registry, name: str) -> Client:
        """A client that has not even asked yet."""
        client = Client()
        self._tasks.start_soon(client.stay, registry, name)
        return client

    async def lease(self, registry: Registry, name: str) -> Client:
        """A client that has its lease, or waits for it."""
        client = self.start(registry, name)
        await settled()
        return client


class Watcher:
    """Keeps what the registry tells those who watch it."""

    def __init__(self) -> None:
        self.events: list[ModelEvent] = []

    def __call__(self, event: ModelEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[ModelEvent]) -> list[ModelEvent]:
        return [one for one in self.events if isinstance(one, kind)]


def model(name: str, **settings: object) -> ModelConfig:
    """`a40` is a model of 40 bytes."""
    path = name.rpartition("/")[2]
    return msgspec.convert({"name": name, "path": path, **settings}, type=ModelConfig)


@asynccontextmanager
async def registry_of(
    *models: ModelConfig | str,
    engine: FakeEngine,
    clock: HandClock | None = None,
    swap: SwapConfig = AT_ONCE,
    history: History | None = None,
    watch: Watcher | None = None,
    config: Config | None = None,
    gauge: FakeGauge | None = None,
) -> AsyncIterator[Registry]:
    """A registry over the fake engine, on a machine with 100 bytes, or as `gauge` says."""
    entries = tuple(one if isinstance(one, ModelConfig) else model(one) for one in models)
    config = config or Config(models=entries, swap=swap)
    async with Registry(
        ModelLibrary(config, recognise=engine.recognise),
        config,
        loader=engine,
        gauge=gauge or FakeGauge(engine),
        history=history or History(None),
        clock=clock or HandClock(),
        watch=watch or Watcher(),
    ) as registry:
        yield registry
