"""Models larger than a card: what gives way is planned, said and counted, and once more where
memory runs out all the same.
"""

from typing import Literal

import msgspec
import pytest

from backends.contract.catalog import Cards, Fitted, ModelFiles, Room
from backends.contract.errors import OutOfMemory
from backends.contract.protocol import MemoryNeed
from config.engines import EngineOptions
from gateway.registry import History
from gateway.registry.protocol import Bytes
from gateway.terms.errors import ModelUnavailable
from tests.gateway.registry.fake_engine import (
    AT_ONCE,
    Client,
    FakeContainer,
    FakeGauge,
    HandClock,
    model,
    registry_of,
)
from tests.gateway.registry.test_registry_cards import CardEngine, held

pytestmark = pytest.mark.anyio

GIB = 1 << 30


class FittingEngine(CardEngine):
    """What of a model has no room on its card lies in main memory."""

    budget = 10_000

    def fit(
        self, files: ModelFiles, options: EngineOptions, cards: Cards, room: Room
    ) -> Fitted | None:
        size, there = files.size_bytes, room.free.get("cuda:0", 0)
        if size <= there:
            return None
        if size > there + room.free["cpu"]:
            return None
        parts = {"cuda:0": there / size, "cpu": 1 - there / size}
        return Fitted(
            options=options,
            need=MemoryNeed(weights=size, cache=0, engine=0),
            placement={device: part for device, part in parts.items() if part},
            speed=there / size,
            note=f"{size - there} of {size} bytes in RAM",
            reasons=("it is large",),
        )


class OneCard(FakeGauge):
    """Of 100 bytes, of which another program may have taken some."""

    def __init__(self, engine: FittingEngine, *, taken: int = 0) -> None:
        super().__init__(engine)
        self._taken = taken

    def free(self) -> Bytes:
        return {"cpu": 1000, "cuda:0": 100}

    def available(self, *, anew: bool = False) -> Bytes:
        """As it was at the start, which is all that is known of a card that workers use."""
        return {"cpu": 1000, "cuda:0": 100 - self._taken} if anew else self.free()

    def total(self) -> Bytes:
        return self.free()

    def used(self) -> Bytes:
        return {}


async def test_what_has_no_room_on_the_card_is_counted_in_main_memory_and_said() -> None:
    engine = FittingEngine()
    async with registry_of("a130", "b60", engine=engine, gauge=OneCard(engine)) as registry:
        assert "30 of 130 bytes in RAM" in registry.status("a130").arithmetic
        await registry.load("a130")
        assert held(registry) == {"a130": {"cuda:0": 100, "cpu": 30}}
        assert "30 of 130 bytes in RAM" in registry.status("a130").arithmetic
        await registry.load("b60")
        assert held(registry) == {"b60": {"cuda:0": 60}}, "what fits gives way to nothing"
        assert "in RAM" not in registry.status("b60").arithmetic


async def test_pinned_models_leave_less_room_and_others_give_way_to_that() -> None:
    engine = FittingEngine()
    async with registry_of(
        model("a60", pinned=True), "b80", engine=engine, gauge=OneCard(engine)
    ) as registry:
        await registry.load("a60")
        await registry.load("b80")
        assert held(registry) == {"a60": {"cuda:0": 60}, "b80": {"cuda:0": 40, "cpu": 40}}


async def test_a_model_that_waits_is_loaded_as_its_room_was_counted() -> None:
    engine = FittingEngine()
    models = model("c10", pinned=True), "a60", "b120"
    async with (
        registry_of(*models, engine=engine, gauge=OneCard(engine)) as registry,
        Client.group() as clients,
    ):
        await registry.load("c10")
        used = await clients.lease(registry, "a60")
        waiting = await clients.lease(registry, "b120")
        await registry.pin("c10", pinned=False)  # all of the card could be had now
        registry.overview.cost(registry.resolve("b120"))
        await used.leave()
        assert waiting.lease is not None
        assert engine.told["b120"]["cuda:0"] == 90 / 120
        assert held(registry)["b120"] == {"cuda:0": 90, "cpu": 30}


async def test_what_fits_nowhere_is_refused() -> None:
    engine = FittingEngine()
    async with registry_of("a2000", engine=engine, gauge=OneCard(engine)) as registry:
        with pytest.raises(ModelUnavailable, match="a2000 needs"):
            await registry.load("a2000")


async def test_where_memory_runs_out_the_next_smaller_way_is_tried_once() -> None:
    engine = FittingEngine()
    engine.failures["b40"] = [OutOfMemory("cudaMalloc failed")]
    async with registry_of(
        "a50", "b40", engine=engine, gauge=OneCard(engine, taken=85)
    ) as registry:
        await registry.load("a50")
        await registry.load("b40")
        assert held(registry)["a50"] == {"cuda:0": 50}, "no other model is harmed"
        assert held(registry)["b40"] == {"cuda:0": 15, "cpu": 25}, "as much as is really free"
        assert engine.history.count("load b40") == 2
        assert "25 of 40 bytes in RAM" in registry.status("b40").arithmetic


async def test_what_ran_out_in_a_smaller_way_is_tried_in_one_that_is_smaller_still() -> None:
    engine = FittingEngine()
    engine.failures["a130"] = [OutOfMemory("cudaMalloc failed")]
    async with registry_of("a130", engine=engine, gauge=OneCard(engine, taken=60)) as registry:
        await registry.load("a130")
        assert held(registry)["a130"] == {"cuda:0": 37, "cpu": 93}, "three eighths of a card"
        assert engine.history.count("load a130") == 2


async def test_where_memory_runs_out_again_that_is_the_error() -> None:
    engine = FittingEngine()
    engine.failures["b40"] = [OutOfMemory("no memory"), OutOfMemory("again no memory")]
    async with registry_of("b40", engine=engine, gauge=OneCard(engine, taken=85)) as registry:
        with pytest.raises(ModelUnavailable, match="again no memory"):
            await registry.load("b40")
        assert engine.history.count("load b40") == 2


class SlowClock(HandClock):
    """Loads take time."""

    def skip(self, seconds: float) -> None:
        self._now += seconds


class SlowEngine(FittingEngine):
    """A model takes half a minute to load."""

    def __init__(self, clock: SlowClock) -> None:
        super().__init__()
        self._clock = clock

    async def _bring(self, name: str, options: EngineOptions) -> FakeContainer:
        self._clock.skip(30.0)
        return await super()._bring(name, options)


@pytest.mark.parametrize("share", ["auto", pytest.param("never", marks=pytest.mark.slow)])
async def test_models_that_take_turns_are_kept_together(share: Literal["auto", "never"]) -> None:
    clock = SlowClock()
    engine = SlowEngine(clock)
    names, swap = ("a60", "b70"), msgspec.structs.replace(AT_ONCE, share=share)
    async with registry_of(
        *names, engine=engine, gauge=OneCard(engine), clock=clock, swap=swap
    ) as registry:
        for _ in range(15):
            for name in names:
                async with registry.lease(name):
                    clock.skip(2.0)
                await clock.advance(60.0)
        loads = sum(line.startswith("loaded") for line in engine.history)
        if share == "never":
            assert loads == 30
            assert held(registry) == {"b70": {"cuda:0": 70}}
            return
        assert loads < 30
        there = held(registry)
        assert there.keys() == set(names)
        assert sum(one["cuda:0"] for one in there.values()) <= 100
        assert any("bytes in RAM" in registry.status(name).arithmetic for name in names)


async def test_how_fast_it_was_is_said_and_known_the_next_time() -> None:
    history = History(None)
    engine = FittingEngine()
    async with registry_of(
        "a130", engine=engine, gauge=OneCard(engine), history=history
    ) as registry:
        await registry.load("a130")
        registry._planner.spoke("a130", 12.5)  # noqa: SLF001 - as a lease's end does
        said = "30 of 130 bytes in RAM (12.5 tokens/s were measured)"
        assert said in registry.status("a130").arithmetic
    async with registry_of(
        "a130", engine=engine, gauge=OneCard(engine), history=history
    ) as registry:
        assert said in registry.status("a130").arithmetic


class ReadingEngine(FittingEngine):
    """It says how fast main memory is read, by which it takes a model's speed."""

    def fit(
        self, files: ModelFiles, options: EngineOptions, cards: Cards, room: Room
    ) -> Fitted | None:
        fitted = super().fit(files, options, cards, room)
        if fitted is None:
            return None
        read = room.bandwidths["cpu"]
        note = "slow memory" if read < GIB else "fast memory"
        return msgspec.structs.replace(fitted, reads={"cpu": 1.0 * GIB}, note=note)


async def test_where_memory_turns_out_to_be_slow_models_are_planned_anew() -> None:
    """One that is in memory is, for its next load."""
    engine = ReadingEngine()
    async with registry_of("a130", "b140", engine=engine, gauge=OneCard(engine)) as registry:
        await registry.load("a130")
        assert "fast memory" in registry.status("b140").arithmetic
        registry._planner.spoke("a130", 0.1)  # noqa: SLF001 - as a lease's end does
        assert "slow memory" in registry.status("b140").arithmetic
        assert "fast memory (0.1 tokens/s" in registry.status("a130").arithmetic
        await registry.load("b140")
        assert "slow memory (0.1 tokens/s" in registry.status("a130").arithmetic
