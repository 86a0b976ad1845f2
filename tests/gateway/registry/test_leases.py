"""What a lease promises: the model is there, stays while it is used, and every way out gives it back."""

import anyio
import pytest

from gateway.errors import Forbidden, ModelNotFound, ModelUnavailable, QueueFull, ShuttingDown
from gateway.registry import Registry, Waiting
from tests.gateway.registry.yard import FakeEngine, HandClock, model, yard

pytestmark = pytest.mark.anyio


async def test_a_lease_loads_its_model_and_keeps_it_for_the_next() -> None:
    engine = FakeEngine()
    async with yard("a40", engine=engine) as registry:
        async with registry.lease("a40") as lease:
            assert lease.name == "a40"
            assert engine.history == ["load a40", "loaded a40"]
        async with registry.lease("a40"):
            pass
        assert engine.history == ["load a40", "loaded a40"]
    assert engine.history[-1] == "closed a40"


async def test_models_that_fit_together_are_resident_together() -> None:
    engine = FakeEngine()
    async with (
        yard("a40", "b60", engine=engine) as registry,
        registry.lease("a40"),
        registry.lease("b60"),
    ):
        assert engine.present == {"a40": 40, "b60": 60}


async def test_an_idle_model_makes_room() -> None:
    engine = FakeEngine()
    async with yard("a60", "b60", engine=engine) as registry:
        async with registry.lease("a60"):
            pass
        async with registry.lease("b60"):
            assert engine.present == {"b60": 60}


async def hold(registry: Registry, name: str, until: anyio.Event) -> None:
    async with registry.lease(name):
        await until.wait()


async def test_a_used_model_is_not_unloaded_before_its_lease_ends() -> None:
    engine, done, clock = FakeEngine(), anyio.Event(), HandClock()
    async with (
        yard("a60", "b60", engine=engine, clock=clock) as registry,
        anyio.create_task_group() as clients,
    ):
        clients.start_soon(hold, registry, "a60", done)
        await anyio.wait_all_tasks_blocked()
        clients.start_soon(hold, registry, "b60", done)
        await clock.advance(1000.0)
        assert engine.present == {"a60": 60}
        done.set()
    assert engine.history == [
        "load a60",
        "loaded a60",
        "closed a60",
        "load b60",
        "loaded b60",
        "closed b60",
    ]
