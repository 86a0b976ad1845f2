"""A yard to try the registry in: a fake loader that watches for what must not happen, and a clock moved by hand."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from backends.catalog import MemoryNeed, ModelFiles
from backends.errors import LoadFailed
from backends.protocol import Generation, ModelInfo, Output, Progress, Report
from config.engines import EngineOptions
from config.settings import Config, ModelConfig, SwapConfig
from gateway.registry import History, Library, Registry
from gateway.registry.orders import Bytes


class HandClock:
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
        await anyio.wait_all_tasks_blocked()


class FakeGauge:
    """Measures what the engine holds; `extra` bytes appear with every look, as if a load had taken more."""

    def __init__(self, engine: "FakeEngine", extra: int = 0) -> None:
        self._engine = engine
        self._extra = extra
        self._looks = 0

    def free(self) -> Bytes:
        return {"cpu": self._engine.budget}

    def used(self) -> Bytes:
        self._looks += 1
        return {"cpu": sum(self._engine.present.values()) + self._extra * self._looks}


class FakeContainer:
    """Knows whether it is used, and that it must not be closed then."""

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
        )
        self.users = 0

    def use(self) -> None:
        assert self.name in self._engine.present, f"{self.name} is used but not there"
        self.users += 1

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        raise NotImplementedError

    def detokenize(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def generate(self, job: Generation) -> AbstractAsyncContextManager[AsyncIterator[Output]]:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._engine.close(self)


class FakeEngine:
    """Loads nothing, but notices a model loaded twice, closed while used, or too much at once.

    A model named in `gates` loads only when its gate opens; one in `failures` fails so often.
    """

    def __init__(self, budget: int = 100) -> None:
        self.budget = budget
        self.present: dict[str, int] = {}
        self.on_the_way: set[str] = set()
        self.history: list[str] = []
        self.gates: dict[str, anyio.Event] = {}
        self.closing_gates: dict[str, anyio.Event] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.broken_closes: set[str] = set()

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> FakeContainer:
        name = files.path.name
        assert name not in self.on_the_way, f"{name} is loaded twice at once"
        assert name not in self.present, f"{name} is loaded though it is there"
        self.on_the_way.add(name)
        try:
            held = sum(self.present.values()) + files.size_bytes
            assert held <= self.budget, f"memory is promised twice: {held} of {self.budget}"
            self.present[name] = files.size_bytes
            return await self._bring(name, report)
        except BaseException:
            self.present.pop(name, None)
            raise
        finally:
            self.on_the_way.discard(name)

    async def _bring(self, name: str, report: Report) -> FakeContainer:
        self.history.append(f"load {name}")
        report(Progress("weights", 0, 10))
        if name in self.gates:
            await self.gates[name].wait()
        if self.failures.get(name):
            raise self.failures[name].pop(0)
        report(Progress("weights", 10, 10))
        self.history.append(f"loaded {name}")
        return FakeContainer(self, name)

    async def close(self, container: FakeContainer) -> None:
        assert container.users == 0, f"{container.name} is closed while it is used"
        if container.name in self.closing_gates:
            await self.closing_gates[container.name].wait()
        del self.present[container.name]
        self.history.append(f"closed {container.name}")
        if container.name in self.broken_closes:
            raise RuntimeError("the engine broke while closing")


def recognise(path: Path, backend: str | None) -> ModelFiles:
    """`x40` is a model of 40 bytes."""
    size = path.name.lstrip("abcdefghijklmnopqrstuvwxyz")
    if not size.isdigit():
        raise LoadFailed(f"{path} is no model")
    return ModelFiles(
        path=path,
        backend="scripted",
        format="script",
        architecture="script",
        size_bytes=int(size),
        context_length=64,
        cache_bytes_per_token=0,
    )


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    return MemoryNeed(weights=files.size_bytes, cache=0, engine=0)


def model(name: str, **settings: object) -> ModelConfig:
    """`a40` is a model of 40 bytes."""
    return msgspec.convert({"name": name, "path": name, **settings}, type=ModelConfig)


@asynccontextmanager
async def yard(
    *models: ModelConfig | str,
    engine: FakeEngine,
    clock: HandClock | None = None,
    swap: SwapConfig = SwapConfig(min_stay=0.0),  # noqa: B008 - a frozen struct
    history: History | None = None,
    gauge: FakeGauge | None = None,
) -> AsyncIterator[Registry]:
    """A registry over the fake engine, with a budget of 100 bytes."""
    entries = tuple(one if isinstance(one, ModelConfig) else model(one) for one in models)
    config = Config(models=entries, swap=swap)
    async with Registry(
        Library(config, recognise=recognise),
        config,
        loader=engine.load,
        estimate=estimate,
        gauge=gauge or FakeGauge(engine),
        history=history or History(None),
        clock=clock or HandClock(),
    ) as registry:
        yield registry
