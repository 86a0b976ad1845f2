"""A model that is loaded several times: which replica a request gets, where they lie, and what
becomes of the others when one is of no use.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import anyio
import pytest
from msgspec.structs import replace

from backends.contract.catalog import Cards, ModelFiles, Placement
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Report
from config.engines import EngineOptions
from gateway.registry import Lease, Registry
from gateway.registry.protocol import Bytes
from tests.gateway.registry.fake_engine import (
    AT_ONCE,
    FakeContainer,
    FakeEngine,
    FakeGauge,
    HandClock,
    model,
    registry_of,
    settled,
)

pytestmark = pytest.mark.anyio


class ReplicaEngine(FakeEngine):
    """Cards of 100 bytes; each load of a file is a model of its own to it: `a40`, `a40+`."""

    def __init__(self, cards: int = 2) -> None:
        super().__init__()
        self.cards = {f"cuda:{number}": 100 for number in range(cards)}

    @property
    def budget(self) -> int:
        return sum(self.cards.values())

    def placements(
        self, files: ModelFiles | None, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        return [{card: 1.0} for card in cards]

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> FakeContainer:
        path = files.path
        while path.name in self.present:
            path = path.with_name(f"{path.name}+")
        return await super().load(replace(files, path=path), options, report)


class ReplicaGauge(FakeGauge):
    """Cards of whose use the driver says nothing."""

    def __init__(self, engine: ReplicaEngine) -> None:
        super().__init__(engine)
        self._sizes = engine.cards

    def free(self) -> Bytes:
        return {"cpu": 1000, **self._sizes}

    def used(self) -> Bytes:
        return {}


TWICE = model("a40", replicas=2)


def place(registry: Registry, name: str) -> set[str]:
    """The devices where it lies."""
    return {one.device for one in registry.overview.ledger().held if one.model == name}


def name_of(lease: Lease) -> str:
    assert isinstance(lease.container, FakeContainer)
    return lease.container.name


async def used(registry: Registry, conversation: int | None = None) -> str:
    """What a request gets that ends at once."""
    async with registry.lease("a40", conversation=conversation) as lease:
        assert lease.name == "a40"
        name = name_of(lease)
    await settled()
    return name


async def test_one_is_loaded_for_a_request_and_the_other_follows_on_a_card_of_its_own() -> None:
    engine = ReplicaEngine()
    async with registry_of(TWICE, engine=engine, gauge=ReplicaGauge(engine)) as registry:
        assert await used(registry) == "a40"
        assert sorted(engine.present) == ["a40", "a40+"]
        places = [place(registry, name) for name in ("a40@1", "a40@2")]
        assert sorted(map(sorted, places)) == [["cuda:0"], ["cuda:1"]], "the ledger has each"


async def test_requests_spread_and_a_conversation_comes_back_to_where_it_was() -> None:
    engine = ReplicaEngine()
    async with registry_of(TWICE, engine=engine, gauge=ReplicaGauge(engine)) as registry:
        await used(registry)
        async with registry.lease("a40") as one, registry.lease("a40") as other:
            assert name_of(one) != name_of(other)
        for conversation in range(8):
            async with registry.lease("a40", conversation=conversation) as lease:
                home = name_of(lease)
            async with registry.lease("a40"):  # whoever else is there
                assert await used(registry, conversation) == home


async def test_where_there_is_one_card_one_replica_answers_all() -> None:
    engine = ReplicaEngine(cards=1)
    async with registry_of(TWICE, engine=engine, gauge=ReplicaGauge(engine)) as registry:
        async with registry.lease("a40") as one, registry.lease("a40") as other:
            assert name_of(one) == name_of(other)
        await settled()
        assert list(engine.present) == ["a40"]
        with anyio.fail_after(5):
            await registry.load("a40")  # which would have both


async def test_one_s_end_ends_no_request_of_the_other_and_it_comes_back() -> None:
    engine, clock = ReplicaEngine(), HandClock()
    async with (
        registry_of(TWICE, engine=engine, gauge=ReplicaGauge(engine), clock=clock) as registry,
        AsyncExitStack() as held,
    ):
        await used(registry)
        leases = [await held.enter_async_context(registry.lease("a40")) for _ in range(4)]
        doomed, well = sorted({name_of(one) for one in leases})
        engine.break_down(doomed, "its worker died")
        assert {await used(registry) for _ in range(4)} == {well}, "nobody is sent to a broken one"
        await held.aclose()
        await clock.advance(AT_ONCE.backoff)
        await used(registry)
        assert {await used(registry, number) for number in range(9)} == {doomed, well}


async def test_who_waits_for_one_that_can_t_be_loaded_gets_the_other() -> None:
    engine = ReplicaEngine()
    engine.failures["a40"] = [LoadFailed("its node is gone")]
    async with registry_of(TWICE, engine=engine, gauge=ReplicaGauge(engine)) as registry:
        assert await used(registry) == "a40"
        assert engine.history.count("load a40") == 2, "the first was of no use"


async def test_lists_have_the_model_once_with_all_that_its_replicas_do() -> None:
    engine = ReplicaEngine()
    async with registry_of(TWICE, engine=engine, gauge=ReplicaGauge(engine)) as registry:
        await used(registry)
        async with registry.lease("a40"), registry.lease("a40"):
            states = {one.id: one for one in registry.statuses()}
            assert {name: one.state for name, one in states.items()} == {
                "a40": "loaded",
                "a40@1": "loaded",
                "a40@2": "loaded",
            }
            assert [states[name].in_use for name in ("a40", "a40@1", "a40@2")] == [2, 1, 1]
            assert set(states["a40"].devices) == {"cuda:0", "cuda:1"}
            assert [one.id for one in states.values() if one.is_replica] == ["a40@1", "a40@2"]
            in_use = registry.in_use()
            assert in_use is not None
            assert in_use.name == "a40"


async def test_an_unload_of_the_model_is_one_of_all_and_none_comes_back_by_itself() -> None:
    engine = ReplicaEngine()
    async with registry_of(
        TWICE, model("b100"), engine=engine, gauge=ReplicaGauge(engine)
    ) as registry:
        await used(registry)
        report = await registry.unload("a40")
        assert report.was_loaded
        await settled()
        assert not engine.present
        await used(registry)
        assert len(engine.present) == 1, "the other was sent away"
        async with registry.lease("a40"), registry.lease("a40"):
            await settled()
            assert len(engine.present) == 2, "answers overlap"


async def test_one_that_had_to_go_comes_back_when_there_is_room() -> None:
    engine = ReplicaEngine()
    async with registry_of(
        TWICE, model("b100"), engine=engine, gauge=ReplicaGauge(engine)
    ) as registry:
        await used(registry)
        async with registry.lease("b100"):
            assert len(engine.present) == 2, "one of both had to go"
            assert (await used(registry)).startswith("a40")
        await registry.unload("b100")
        await settled()
        assert sorted(engine.present) == ["a40", "a40+"]
