"""What administrators are promised: shared loads, polite and forced unloads, options."""

from pathlib import Path

import anyio
import pytest

from backends.contract.errors import LoadFailed
from config.engines import ScriptedOptions
from config.settings import Config, SwapConfig
from gateway.registry import Registry, Waiting
from gateway.terms.errors import InvalidRequest, ModelNotFound, ModelUnavailable
from tests.gateway.registry.fake_engine import (
    Client,
    FakeEngine,
    HandClock,
    model,
    registry_of,
    settled,
)

pytestmark = pytest.mark.anyio


class Administrator:
    """Follows one load."""

    def __init__(self) -> None:
        self.news: list[Waiting] = []
        self.error: ModelUnavailable | None = None
        self.done = False

    async def load(self, registry: Registry, name: str) -> None:
        try:
            async with registry.loading(name) as news:
                async for waiting in news:
                    self.news.append(waiting)
            self.done = True
        except ModelUnavailable as error:
            self.error = error


# ---------------------------------------------------------------------------------- loading


async def test_several_callers_share_one_load_and_its_progress() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry, anyio.create_task_group() as tasks:
        pair = [Administrator(), Administrator()]
        for one in pair:
            tasks.start_soon(one.load, registry, "a40")
        await settled()
        await engine.report("a40", 4, 10)
        for one in pair:
            assert one.news[-1].progress == engine.last_report
            assert not one.done
        await engine.open("a40")
        assert all(one.done for one in pair)
        assert engine.history == ["load a40", "loaded a40"]


async def test_a_caller_that_leaves_does_not_stop_the_load() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry:
        async with registry.loading("a40"):
            pass
        await engine.open("a40")
        assert registry.status("a40").state == "loaded"


async def test_a_load_that_is_asked_for_makes_a_used_model_drain_at_once() -> None:
    engine = FakeEngine()
    async with registry_of("a60", "b60", engine=engine) as registry, Client.group() as clients:
        user = await clients.lease(registry, "a60")
        async with registry.loading("b60") as news:
            assert registry.status("a60").state == "draining"
            late = await clients.lease(registry, "a60")
            assert late.lease is None
            await user.leave()
            async for _ in news:
                pass
            assert "loaded b60" in engine.history


async def test_loading_what_is_loaded_answers_at_once() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry:
        assert (await registry.load("a40")).state == "loaded"
        assert (await registry.load("a40")).state == "loaded"
        assert engine.history == ["load a40", "loaded a40"]


async def test_a_load_that_can_never_fit_is_refused_at_once_and_remembered() -> None:
    async with registry_of("a400", engine=FakeEngine()) as registry:
        with pytest.raises(ModelUnavailable, match="a400 needs"):
            async with registry.loading("a400"):
                raise AssertionError
        status = registry.status("a400")
        assert status.state == "failed"
        assert status.why_failed is not None
        assert "a400 needs" in status.why_failed


async def test_a_load_that_fails_says_why_and_asking_again_tries_again() -> None:
    engine = FakeEngine()
    engine.failures["a40"] = [LoadFailed("the header is broken")]
    async with registry_of("a40", engine=engine) as registry:
        with pytest.raises(ModelUnavailable, match="the header is broken"):
            await registry.load("a40")
        assert (await registry.load("a40")).state == "loaded"


# ---------------------------------------------------------------------------------- options


async def test_a_load_with_other_options_loads_again_and_keeps_them_until_unloaded() -> None:
    engine = FakeEngine()
    async with registry_of("a60", "b60", engine=engine) as registry:
        await registry.load("a60")
        await registry.load("a60", options={"context_length": 2})
        await registry.load("a60", options={"context_length": 2})
        assert engine.history.count("load a60") == 2
        await registry.load("b60")
        await registry.load("a60")
        assert engine.options["a60"] == ScriptedOptions(context_length=2)
        await registry.unload("a60")
        await registry.load("a60")
        assert engine.options["a60"] == ScriptedOptions()


async def test_options_that_a_load_failed_with_are_not_tried_on_the_next_client() -> None:
    engine, clock = FakeEngine(), HandClock()
    swap = SwapConfig(backoff=5.0)
    async with registry_of("a60", engine=engine, clock=clock, swap=swap) as registry:
        engine.failures["a60"] = [LoadFailed("so many can't be computed at once")]
        with pytest.raises(ModelUnavailable, match="so many"):
            await registry.load("a60", options={"max_concurrent": 3})
        await clock.advance(5.0)
        async with registry.lease("a60"):
            assert engine.options["a60"] == ScriptedOptions()


async def test_clients_in_line_are_not_lost_when_the_options_change() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        waiting = await clients.lease(registry, "a40")
        async with registry.loading("a40", options={"max_concurrent": 2}):
            await settled()
            await engine.open("a40")
            assert waiting.lease is not None
            assert engine.options["a40"] == ScriptedOptions(max_concurrent=2)


async def test_options_the_backend_does_not_know_are_named_and_nothing_moves() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry:
        await registry.load("a40")
        with pytest.raises(InvalidRequest, match="did you mean 'context_length'") as refusal:
            await registry.load("a40", options={"contxt_length": 32})
        assert refusal.value.param == "contxt_length"
        assert engine.history == ["load a40", "loaded a40"]


async def test_options_that_would_not_fit_are_refused_and_nothing_moves() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry:
        await registry.load("a40")
        with pytest.raises(ModelUnavailable, match="a40 needs"):
            await registry.load("a40", options={"context_length": 1_000_000})
        assert engine.present == {"a40": 40}
        assert (await registry.load("a40")).state == "loaded"
        assert engine.history == ["load a40", "loaded a40"]


async def test_a_pinned_model_may_be_loaded_again_into_its_own_room() -> None:
    engine = FakeEngine()
    async with registry_of(model("a60", pinned=True), engine=engine) as registry:
        await registry.load("a60")
        await registry.load("a60", options={"context_length": 30})
        assert engine.options["a60"] == ScriptedOptions(context_length=30)


# ---------------------------------------------------------------------------------- unloading


async def test_an_unload_waits_for_running_answers() -> None:
    engine = FakeEngine()
    async with (
        registry_of("a40", engine=engine) as registry,
        Client.group() as clients,
        anyio.create_task_group() as tasks,
    ):
        user = await clients.lease(registry, "a40")
        tasks.start_soon(registry.unload, "a40")
        await settled()
        assert registry.status("a40").state == "draining"
        assert engine.present == {"a40": 40}
        await user.leave()
        assert engine.present == {}


async def test_a_forced_unload_ends_running_answers_with_an_error() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        users = [await clients.lease(registry, "a40") for _ in range(3)]
        report = await registry.unload("a40", force=True)
        assert report.was_loaded
        assert report.aborted == 3
        for user in users:
            assert isinstance(user.error, ModelUnavailable)
        assert engine.present == {}


async def test_an_unload_refuses_those_in_line_and_cancels_the_load() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        waiting = await clients.lease(registry, "a40")
        report = await registry.unload("a40")
        await settled()
        assert isinstance(waiting.error, ModelUnavailable)
        assert not report.was_loaded
        assert engine.history == ["load a40", "cancelled a40"]


async def test_an_unload_refuses_those_who_only_wait_in_line_for_a_model() -> None:
    engine = FakeEngine()
    async with registry_of("a60", "b60", engine=engine) as registry, Client.group() as clients:
        user = await clients.lease(registry, "a60")
        waiting = await clients.lease(registry, "b60")
        assert (waiting.lease, waiting.error) == (None, None)
        report = await registry.unload("b60")
        await settled()
        assert isinstance(waiting.error, ModelUnavailable)
        assert not report.was_loaded
        await user.leave()
        await settled()
        assert registry.status("a60").state == "loaded"
        assert "load b60" not in engine.history


async def test_an_unload_tells_what_memory_stays_in_use() -> None:
    engine = FakeEngine()
    async with registry_of("a40", "b30", engine=engine) as registry:
        await registry.load("a40")
        await registry.load("b30")
        report = await registry.unload("a40")
        assert report.promised == report.held == {"cpu": 30}


async def test_unloading_what_is_not_there_says_so() -> None:
    async with registry_of("a40", engine=FakeEngine()) as registry:
        assert not (await registry.unload("a40")).was_loaded
        with pytest.raises(ModelNotFound):
            await registry.unload("nobody")


async def test_a_model_whose_files_are_gone_is_served_and_unloaded_all_the_same(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    (tmp_path / "a40").touch()
    config = Config(model_dirs=(str(tmp_path),))
    async with registry_of(engine=engine, config=config) as registry:
        await registry.load("a40")
        (tmp_path / "a40").unlink()
        await registry.refresh()
        assert [status.id for status in registry.statuses()] == ["a40"]
        async with registry.lease("a40") as lease:
            assert lease.name == "a40"
        await registry.unload("a40")
        assert registry.statuses() == ()
        with pytest.raises(ModelNotFound):
            await registry.load("a40")


async def test_an_administrator_who_leaves_does_not_call_the_unload_back() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        user = await clients.lease(registry, "a40")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await registry.unload("a40")
        await user.leave()
        assert engine.present == {}


async def test_a_pinned_model_goes_when_it_is_asked_to() -> None:
    engine = FakeEngine()
    async with registry_of(model("a40", pinned=True), engine=engine) as registry:
        await registry.load("a40")
        await registry.unload("a40")
        assert engine.present == {}


# ---------------------------------------------------------------------------------- states


async def test_statuses_tell_every_state_without_waiting() -> None:
    engine, clock = FakeEngine(gates=["b30"]), HandClock()
    engine.failures["c10"] = [LoadFailed("the header is broken")]
    names = ("a40", "b30", "c10", "d20", "broken")
    async with (
        registry_of(*names, engine=engine, clock=clock) as registry,
        Client.group() as clients,
    ):
        await registry.load("a40")
        await clock.advance(212.0)
        await clients.lease(registry, "b30")
        await engine.report("b30", 4, 10)
        await clients.lease(registry, "c10")
        states = {status.id: status for status in registry.statuses()}
        assert {name: status.state for name, status in states.items()} == {
            "a40": "loaded",
            "b30": "loading",
            "c10": "failed",
            "d20": "unloaded",
            "broken": "failed",
        }
        assert states["a40"].idle_seconds == 212.0
        assert states["a40"].info is not None
        assert states["b30"].progress == engine.last_report
        assert states["b30"].waiting == 1
        assert states["c10"].why_failed == "the header is broken"
        assert states["broken"].why_failed == "broken is not a model"
        assert states["broken"].entry is None


async def test_the_arithmetic_names_need_room_and_who_went() -> None:
    engine, clock = FakeEngine(gates=["b60"]), HandClock()
    engine.unit = 2**30
    async with (
        registry_of("a60", "b60", engine=engine, clock=clock) as registry,
        Client.group() as clients,
    ):
        await registry.load("a60")
        await clock.advance(212.0)
        await clients.lease(registry, "b60")
        assert registry.status("b60").arithmetic == (
            "needs 60.0 GiB: weights 60.0, cache 0.0, engine 0.0; free 40.0; "
            "evicting a60, idle for 212 s"
        )
