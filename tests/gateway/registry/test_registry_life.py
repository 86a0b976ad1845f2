"""The registry's own life: what is there from the start, and that nothing is left when it ends."""

import anyio
import pytest
from anyio.abc import TaskGroup

import bundled
from backends.contract.errors import LoadFailed
from config.engines import ScriptedOptions
from config.settings import Config, ModelConfig
from gateway.registry import (
    History,
    ModelLibrary,
    ModelLoaded,
    ModelLoadFailed,
    ModelProgressed,
    ModelUnloaded,
    Registry,
)
from gateway.registry.history import Measurement
from gateway.terms.errors import ShuttingDown
from tests.gateway.registry.fake_engine import (
    Client,
    Clients,
    FakeEngine,
    HandClock,
    Watcher,
    model,
    registry_of,
    settled,
)

pytestmark = pytest.mark.anyio


async def test_leaving_the_registry_unloads_everything() -> None:
    engine = FakeEngine()
    async with registry_of("a40", "b40", engine=engine) as registry:
        await registry.load("a40")
        await registry.load("b40")
    assert engine.present == {}


async def test_a_mistake_in_the_body_comes_out_as_it_is() -> None:
    async def blunder() -> None:
        async with registry_of("a40", engine=FakeEngine()) as registry:
            await registry.load("a40")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await blunder()


async def test_preloaded_models_come_by_themselves_and_one_that_fails_harms_nobody() -> None:
    engine = FakeEngine()
    engine.failures["a40"] = [LoadFailed("the header is broken")]
    models = (model("a40", preload=True), model("b40", preload=True), "c10")
    async with registry_of(*models, engine=engine) as registry:
        await settled()
        assert engine.present == {"b40": 40}
        assert registry.status("a40").state == "failed"


async def test_stopping_while_a_model_loads_cancels_the_load() -> None:
    engine = FakeEngine(gates=["a40"])
    async with Client.group() as clients:
        async with registry_of("a40", engine=engine) as registry:
            waiting = await clients.lease(registry, "a40")
        await settled()
        assert engine.history == ["load a40", "cancelled a40"]
        assert isinstance(waiting.error, ShuttingDown)


async def test_stopping_cuts_off_running_answers_and_closes_their_models_after_them() -> None:
    engine = FakeEngine()
    async with Client.group() as clients:
        async with registry_of("a60", "b60", engine=engine) as registry:
            user = await clients.lease(registry, "a60")
            waiting = await clients.lease(registry, "b60")
        await settled()
        assert isinstance(user.error, ShuttingDown)
        assert isinstance(waiting.error, ShuttingDown)
        assert engine.history == ["load a60", "loaded a60", "closed a60"]


async def test_after_the_cut_off_nobody_is_let_in() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry:
        await registry.load("a40")
        registry.cut_off()
        with pytest.raises(ShuttingDown):
            await registry.load("a40")
        with pytest.raises(ShuttingDown):
            async with registry.lease("a40"):
                pass


async def test_stopping_waits_for_an_unload_that_has_begun() -> None:
    engine = FakeEngine()
    engine.closing_gates["a60"] = anyio.Event()

    async def serve(clients: Clients) -> None:
        async with registry_of("a60", "b60", engine=engine) as registry:
            await registry.load("a60")
            await clients.lease(registry, "b60")

    async with Client.group() as clients, anyio.create_task_group() as tasks:
        tasks.start_soon(serve, clients)
        await settled()
        assert engine.present == {"a60": 60}
        engine.closing_gates["a60"].set()
    assert engine.present == {}


@pytest.mark.parametrize("gates", [[], ["a40"]])
async def test_when_all_around_it_is_cancelled_its_memory_is_freed_all_the_same(
    gates: list[str],
) -> None:
    engine = FakeEngine(gates=gates)

    async def serve() -> None:
        async with registry_of("a40", engine=engine) as registry, registry.lease("a40"):
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await settled()
        assert engine.present == {"a40": 40}
        tasks.cancel_scope.cancel()
    assert engine.present == {}


async def test_stopping_waits_for_clients_that_are_slow_to_leave() -> None:
    engine, packed = FakeEngine(), anyio.Event()

    async def client(registry: Registry) -> None:
        try:
            async with registry.lease("a40"):
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await packed.wait()
        except ShuttingDown:
            pass

    async def serve(tasks: TaskGroup) -> None:
        async with registry_of("a40", engine=engine) as registry:
            tasks.start_soon(client, registry)
            await settled()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, tasks)
        await settled()
        assert engine.history == ["load a40", "loaded a40"]
        packed.set()
    assert engine.history[-1] == "closed a40"


async def test_a_load_goes_on_while_a_cancelled_body_still_cleans_up() -> None:
    engine, clean = FakeEngine(gates=["a40"]), anyio.Event()

    async def serve() -> None:
        async with registry_of("a40", engine=engine) as registry, registry.loading("a40"):
            with anyio.CancelScope(shield=True):
                await clean.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await settled()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await settled()
            assert engine.history == ["load a40"]
            clean.set()
    assert engine.history == ["load a40", "cancelled a40"]


async def test_what_a_load_really_took_replaces_the_estimate_and_is_remembered() -> None:
    engine, history = FakeEngine(real={"a40": 55}), History(None)
    async with registry_of("a40", "b50", engine=engine, history=history) as registry:
        assert need(registry, "a40") == 40
        await registry.load("a40")
        assert need(registry, "a40") == 55
        await registry.load("b50")
        assert engine.present == {"b50": 50}
    async with registry_of("a40", engine=FakeEngine(), history=history) as registry:
        assert need(registry, "a40") == 55


async def test_a_model_refused_for_its_measurement_alone_is_loaded_and_measured_anew() -> None:
    history = History(None)
    async with registry_of("a80", engine=FakeEngine(real={"a80": 90}), history=history) as registry:
        history.put(
            registry.resolve("a80").files,
            ScriptedOptions(),
            Measurement(size=800, load_seconds=1.0),
        )
        await registry.load("a80")
        assert need(registry, "a80") == 90
    async with registry_of("a80", engine=FakeEngine(), history=history) as registry:
        assert need(registry, "a80") == 90


async def test_a_measurement_can_be_forgotten_on_request() -> None:
    engine, history = FakeEngine(real={"a40": 55, "b20": 25}), History(None)
    async with registry_of("a40", "b20", engine=engine, history=history) as registry:
        await registry.load("a40")
        await registry.load("b20")
        assert await registry.forget_measurements("a40") == ("a40",)
        assert need(registry, "a40") == 40
        assert await registry.forget_measurements() == ("b20",)
        assert await registry.forget_measurements() == ()


async def test_what_the_process_takes_besides_a_load_is_not_the_model_s() -> None:
    pytest.importorskip("backends.engines.llamacpp.library")
    config = Config(models=(ModelConfig(name="tiny", path=str(bundled.GGUF)),))
    ballast: list[bytearray] = []
    async with Registry(ModelLibrary(config), config, history=History(None)) as registry:
        estimate = need(registry, "tiny")
        async with registry.loading("tiny") as news:
            ballast.append(bytearray(b"x" * (400 << 20)))
            async for _ in news:
                pass
        assert need(registry, "tiny") < 1.25 * estimate
    assert ballast


def need(registry: Registry, name: str) -> int:
    found = registry.status(name).need
    assert found is not None
    return found.total


async def test_a_watcher_hears_of_loads_failures_and_unloads_with_their_reasons() -> None:
    engine, watcher = FakeEngine(), Watcher()
    engine.failures["c10"] = [LoadFailed("the header is broken")]
    clock = HandClock()
    models = (model("a60", ttl=5), "b60", "c10")
    async with registry_of(*models, engine=engine, watch=watcher, clock=clock) as registry:
        async with Client.group() as clients:
            await clients.lease(registry, "c10")
        await registry.load("a60")
        await registry.load("b60")
        await registry.unload("b60")
        await registry.load("a60")
        await clock.advance(5.0)
    moves = [one for one in watcher.events if not isinstance(one, ModelProgressed)]
    assert moves == [
        ModelLoadFailed("c10", 0.0, "the header is broken"),
        ModelLoaded("a60", 0.0),
        ModelUnloaded("a60", 0.0, "room"),
        ModelLoaded("b60", 0.0),
        ModelUnloaded("b60", 0.0, "asked"),
        ModelLoaded("a60", 0.0),
        ModelUnloaded("a60", 0.0, "idle"),
    ]
    steps = [one for one in watcher.events if isinstance(one, ModelProgressed)]
    assert {one.model for one in steps} == {"a60", "b60", "c10"}
