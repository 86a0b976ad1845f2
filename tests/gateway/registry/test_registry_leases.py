"""What a lease promises: the model is there while it is used, and every way out gives it back."""

from pathlib import Path

import pytest

from backends.contract.errors import LoadFailed, OutOfMemory
from config.settings import SwapConfig
from gateway.keys.access import Access
from gateway.registry import Lease, Registry, Waiting
from gateway.terms.errors import Forbidden, ModelNotFound, ModelUnavailable, QueueFull
from tests.gateway.registry.fake_engine import (
    Client,
    FakeEngine,
    HandClock,
    model,
    registry_of,
    settled,
)

pytestmark = pytest.mark.anyio


async def visit(registry: Registry, name: str, *, keep_alive: float | None = None) -> Lease:
    """Use the model for a moment."""
    async with registry.lease(name, keep_alive=keep_alive) as lease:
        return lease


# ---------------------------------------------------------------------------------- coming


async def test_a_lease_loads_its_model_which_stays_for_the_next() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry:
        lease = await visit(registry, "a40")
        await visit(registry, "a40")
        assert lease.name == lease.entry.name == "a40"
        assert engine.history == ["load a40", "loaded a40"]


async def test_models_that_fit_together_are_resident_together() -> None:
    engine = FakeEngine()
    async with registry_of("a40", "b60", engine=engine) as registry:
        async with registry.lease("a40"), registry.lease("b60"):
            assert engine.present == {"a40": 40, "b60": 60}


async def test_an_idle_model_makes_room() -> None:
    engine = FakeEngine()
    async with registry_of("a60", "b60", engine=engine) as registry:
        await visit(registry, "a60")
        async with registry.lease("b60"):
            assert engine.present == {"b60": 60}


async def test_a_used_model_is_unloaded_only_after_its_last_lease() -> None:
    engine, clock = FakeEngine(), HandClock()
    async with (
        registry_of("a60", "b60", engine=engine, clock=clock) as registry,
        Client.group() as clients,
    ):
        first = await clients.lease(registry, "a60")
        second = await clients.lease(registry, "b60")
        await clock.advance(1000.0)
        assert engine.present == {"a60": 60}
        await first.leave()
        assert second.lease is not None
        assert engine.present == {"b60": 60}


async def test_many_clients_share_one_load() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        crowd = [await clients.lease(registry, "a40") for _ in range(20)]
        await engine.open("a40")
        assert all(client.lease is not None for client in crowd)
        assert engine.history == ["load a40", "loaded a40"]


async def test_the_lease_tells_how_long_its_client_stood_in_line_and_waited_for_the_load() -> None:
    engine, clock = FakeEngine(gates=["b60"]), HandClock()
    async with (
        registry_of("a60", "b60", engine=engine, clock=clock) as registry,
        Client.group() as clients,
    ):
        user = await clients.lease(registry, "a60")
        waiting = await clients.lease(registry, "b60")
        await clock.advance(7.0)
        await user.leave()
        await clock.advance(3.0)
        await engine.open("b60")
        assert waiting.lease is not None
        assert (waiting.lease.queued_seconds, waiting.lease.load_seconds) == (7.0, 3.0)


async def test_waiting_clients_hear_their_place_and_the_progress() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        await clients.lease(registry, "a40")
        second = await clients.lease(registry, "a40")
        await engine.report("a40", 3, 10)
        assert second.news[-1] == Waiting(
            model="a40", position=2, stage="loading", progress=engine.last_report
        )
        assert second.news[-1].percent == 30
        await engine.open("a40")


async def test_a_mistake_inside_the_lease_comes_out_as_it_is_and_gives_the_lease_back() -> None:
    engine = FakeEngine()
    async with registry_of("a60", "b60", engine=engine) as registry:
        with pytest.raises(ZeroDivisionError):
            async with registry.lease("a60"):
                raise ZeroDivisionError
        await visit(registry, "b60")


# ---------------------------------------------------------------------------------- names


async def test_names_are_ids_aliases_or_the_default() -> None:
    engine = FakeEngine()
    entry = model("org/a40", aliases=["small"])
    async with registry_of(entry, "b40", engine=engine) as registry:
        for name in ("org/a40", "small", "", "default"):
            assert (await visit(registry, name)).name == "org/a40"


async def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    async with registry_of("qwen40", "llama40", engine=FakeEngine()) as registry:
        with pytest.raises(ModelNotFound, match="Nearest: qwen40"):
            await visit(registry, "Qwen40")


# ---------------------------------------------------------------------------------- leaving


async def test_a_client_that_leaves_gives_up_its_place_in_line() -> None:
    engine, clock = FakeEngine(), HandClock()
    async with (
        registry_of("a60", "b60", engine=engine, clock=clock) as registry,
        Client.group() as clients,
    ):
        user = await clients.lease(registry, "a60")
        waiting = await clients.lease(registry, "b60")
        await waiting.leave()
        await user.leave()
        await clock.advance(1000.0)
        assert "load b60" not in engine.history


async def test_a_load_nobody_waits_for_any_more_is_cancelled() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        only = await clients.lease(registry, "a40")
        await only.leave()
        assert engine.history == ["load a40", "cancelled a40"]
        assert registry.status("a40").state == "unloaded"
        engine.gates.clear()
        await visit(registry, "a40")


async def test_a_load_goes_on_while_someone_still_waits() -> None:
    engine = FakeEngine(gates=["a40"])
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        first = await clients.lease(registry, "a40")
        second = await clients.lease(registry, "a40")
        await first.leave()
        await engine.open("a40")
        assert second.lease is not None
        assert engine.history == ["load a40", "loaded a40"]


async def test_a_client_that_leaves_in_the_moment_of_its_grant_gives_the_lease_back() -> None:
    engine = FakeEngine()
    async with registry_of("a60", "b60", engine=engine) as registry, Client.group() as clients:
        user = await clients.lease(registry, "a60")
        waiting = await clients.lease(registry, "a60")
        assert waiting.lease is not None
        user.stop()
        waiting.stop()
        late = clients.start(registry, "a60")
        late.stop()
        await settled()
        assert registry.status("a60").in_use == 0
        await visit(registry, "b60")


async def test_a_load_that_ends_in_the_moment_it_is_cancelled_leaves_nothing_behind() -> None:
    engine = FakeEngine(gates=["a40"], stubborn=["a40"])
    async with registry_of("a40", engine=engine) as registry, Client.group() as clients:
        only = await clients.lease(registry, "a40")
        only.stop()
        await engine.open("a40")
        assert engine.history == ["load a40", "loaded a40", "closed a40"]
        assert engine.present == {}


# ---------------------------------------------------------------------------------- refusals


async def test_the_line_is_bounded() -> None:
    engine = FakeEngine(gates=["a40"])
    swap = SwapConfig(max_waiting=2)
    async with registry_of("a40", engine=engine, swap=swap) as registry, Client.group() as clients:
        crowd = [await clients.lease(registry, "a40") for _ in range(2)]
        with pytest.raises(QueueFull) as refusal:
            await visit(registry, "a40")
        assert refusal.value.retry_after is not None
        await engine.open("a40")
        assert all(client.lease is not None for client in crowd)


async def test_who_may_not_load_gets_only_what_is_there() -> None:
    engine = FakeEngine()
    async with registry_of("a40", engine=engine) as registry:
        with pytest.raises(Forbidden):
            async with registry.lease("a40", access=Access(autoload=False)):
                pass
        assert engine.history == []
        await visit(registry, "a40")
        async with registry.lease("a40", access=Access(autoload=False)) as lease:
            assert lease.name == "a40"


async def test_a_model_larger_than_the_budget_is_refused_before_anything_goes() -> None:
    engine = FakeEngine()
    async with registry_of("a40", "b150", engine=engine) as registry:
        await visit(registry, "a40")
        with pytest.raises(ModelUnavailable, match=r"b150 needs .* on cpu, which has"):
            await visit(registry, "b150")
        assert engine.present == {"a40": 40}


async def test_a_model_that_does_not_fit_beside_pinned_ones_is_refused_and_says_so() -> None:
    engine = FakeEngine()
    async with registry_of(model("a40", pinned=True), "b80", engine=engine) as registry:
        await visit(registry, "a40")
        with pytest.raises(ModelUnavailable, match="pinned models hold"):
            await visit(registry, "b80")
        assert engine.present == {"a40": 40}


async def test_a_model_whose_files_are_gone_is_refused_before_anything_goes(tmp_path: Path) -> None:
    engine = FakeEngine(parts={"b90": (tmp_path / "gone",)})
    async with registry_of("a40", "b90", engine=engine) as registry:
        await visit(registry, "a40")
        with pytest.raises(ModelUnavailable, match="is gone"):
            await visit(registry, "b90")
        assert engine.present == {"a40": 40}


# ---------------------------------------------------------------------------------- failures


async def test_a_failed_load_says_why_rests_and_may_be_tried_again() -> None:
    engine, clock = FakeEngine(), HandClock()
    engine.failures["b40"] = [LoadFailed("the header is broken"), LoadFailed("still broken")]
    async with registry_of("a40", "b40", engine=engine, clock=clock) as registry:
        await visit(registry, "a40")
        with pytest.raises(ModelUnavailable, match="the header is broken"):
            await visit(registry, "b40")
        assert registry.status("b40").state == "failed"
        with pytest.raises(ModelUnavailable, match="the header is broken") as refusal:
            await visit(registry, "b40")
        assert refusal.value.retry_after == 10.0
        await clock.advance(10.0)
        with pytest.raises(ModelUnavailable, match="still broken"):
            await visit(registry, "b40")
        await clock.advance(19.0)
        with pytest.raises(ModelUnavailable):
            await visit(registry, "b40")
        await clock.advance(1.0)
        await visit(registry, "b40")
        assert engine.history.count("load b40") == 3
        assert engine.present == {"a40": 40, "b40": 40}


async def test_whatever_an_engine_raises_the_gateway_lives_and_tells() -> None:
    engine = FakeEngine()
    engine.failures["a40"] = [ZeroDivisionError("inside the engine")]
    async with registry_of("a40", "b40", engine=engine) as registry:
        with pytest.raises(ModelUnavailable, match="ZeroDivisionError: inside the engine"):
            await visit(registry, "a40")
        await visit(registry, "b40")


async def test_when_memory_runs_out_more_is_evicted_and_the_load_tried_once_more() -> None:
    engine = FakeEngine()
    engine.failures["b50"] = [OutOfMemory("no memory")]
    async with registry_of("a40", "b50", engine=engine) as registry:
        await visit(registry, "a40")
        await visit(registry, "b50")
        assert engine.history[2:] == ["load b50", "closed a40", "load b50", "loaded b50"]


async def test_when_memory_runs_out_though_enough_seemed_free_something_goes_all_the_same() -> None:
    engine = FakeEngine()
    engine.failures["b20"] = [OutOfMemory("no memory")]
    async with registry_of("a40", "b20", engine=engine) as registry:
        await visit(registry, "a40")
        await visit(registry, "b20")
        assert engine.history[2:] == ["load b20", "closed a40", "load b20", "loaded b20"]


async def test_when_memory_runs_out_twice_it_fails_and_the_evicted_come_back_on_demand() -> None:
    engine = FakeEngine()
    engine.failures["b50"] = [OutOfMemory("no memory"), OutOfMemory("still no memory")]
    async with registry_of("a40", "b50", engine=engine) as registry:
        await visit(registry, "a40")
        with pytest.raises(ModelUnavailable, match="still no memory"):
            await visit(registry, "b50")
        await visit(registry, "a40")
        assert engine.present == {"a40": 40}


async def test_when_memory_runs_out_and_nothing_can_go_it_fails_at_once() -> None:
    engine = FakeEngine()
    engine.failures["b100"] = [OutOfMemory("no memory")]
    async with registry_of("b100", engine=engine) as registry:
        with pytest.raises(ModelUnavailable, match="no memory"):
            await visit(registry, "b100")
        assert engine.history == ["load b100"]


# ---------------------------------------------------------------------------------- idleness


async def test_an_idle_model_is_unloaded_after_its_ttl() -> None:
    engine, clock = FakeEngine(), HandClock()
    async with registry_of(model("a40", ttl=60), "b40", engine=engine, clock=clock) as registry:
        await visit(registry, "a40")
        await visit(registry, "b40")
        await clock.advance(59.0)
        assert registry.status("a40").remaining_seconds == 1.0
        await clock.advance(1.0)
        assert engine.present == {"b40": 40}


async def test_a_used_model_does_not_expire() -> None:
    engine, clock = FakeEngine(), HandClock()
    async with registry_of(model("a40", ttl=60), engine=engine, clock=clock) as registry:
        async with registry.lease("a40"):
            await clock.advance(600.0)
            assert engine.present == {"a40": 40}


@pytest.mark.parametrize(
    ("keep_alive", "later", "present"), [(0, 0, {}), (5, 5, {}), (-1, 1e6, {"a40": 40})]
)
async def test_a_request_may_say_how_long_the_model_stays(
    keep_alive: float, later: float, present: dict[str, int]
) -> None:
    engine, clock = FakeEngine(), HandClock()
    async with registry_of(model("a40", ttl=60), engine=engine, clock=clock) as registry:
        await visit(registry, "a40", keep_alive=keep_alive)
        await clock.advance(later)
        assert engine.present == present


async def test_a_keep_alive_holds_until_the_next_request_ends() -> None:
    engine, clock = FakeEngine(), HandClock()
    async with registry_of(model("a40", ttl=5), engine=engine, clock=clock) as registry:
        await visit(registry, "a40", keep_alive=1000.0)
        await clock.advance(50.0)
        assert registry.status("a40").state == "loaded"
        await visit(registry, "a40")
        await clock.advance(5.0)
        await settled()
        assert engine.present == {}


async def test_a_pinned_model_neither_expires_nor_makes_room() -> None:
    engine, clock = FakeEngine(), HandClock()
    pinned = model("a40", pinned=True, ttl=1)
    async with registry_of(pinned, "b40", "c40", engine=engine, clock=clock) as registry:
        for name in ("a40", "b40", "c40"):
            await visit(registry, name)
            await clock.advance(100.0)
        assert engine.present == {"a40": 40, "c40": 40}


async def test_an_unload_that_fails_is_survived() -> None:
    engine = FakeEngine(broken_closes=["a60"])
    async with registry_of("a60", "b60", engine=engine) as registry:
        await visit(registry, "a60")
        await visit(registry, "b60")
        assert engine.present == {"b60": 60}


async def test_a_model_found_broken_leaves_with_its_last_lease_and_says_why() -> None:
    engine, clock = FakeEngine(), HandClock()
    swap = SwapConfig(backoff=5.0)
    async with (
        registry_of("a40", engine=engine, clock=clock, swap=swap) as registry,
        Client.group() as clients,
    ):
        first, second = await clients.lease(registry, "a40"), await clients.lease(registry, "a40")
        engine.break_down("a40", "the engine failed twice")
        await first.leave()
        assert registry.status("a40").state == "draining"
        await second.leave()
        status = registry.status("a40")
        assert (status.state, status.why_failed) == ("failed", "the engine failed twice")
        refused = await clients.lease(registry, "a40")
        assert isinstance(refused.error, ModelUnavailable)
        assert "its engine failed: the engine failed twice" in refused.error.message
        await clock.advance(5.0)
        again = await clients.lease(registry, "a40")
        assert again.lease is not None
    assert engine.history.count("loaded a40") == 2
