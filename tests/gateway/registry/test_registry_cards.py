"""Several cards: where a model goes, and that its engine is told."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import msgspec
import pytest

from backends.contract.catalog import Cards, Layout, ModelFiles, Placement, smallest_first
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Report
from config.engines import EngineOptions, ScriptedOptions
from config.settings import Config, ModelConfig
from gateway.registry import History, Registry
from gateway.registry.history import Measurement
from gateway.registry.protocol import Bytes
from gateway.terms.errors import ModelUnavailable
from tests.gateway.registry.fake_engine import (
    AT_ONCE,
    FakeContainer,
    FakeEngine,
    FakeGauge,
    model,
    registry_of,
    settled,
)

pytestmark = pytest.mark.anyio

CARDS = {"cuda:0": 100, "cuda:1": 100}


class CardEngine(FakeEngine):
    """Its models lie on any cards; it remembers where it was told to put them."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Placement] = {}

    @property
    def budget(self) -> int:
        return sum(CARDS.values())

    def layout(self, files: ModelFiles) -> Layout:
        self._asked = files.path.name
        return self

    def placements(
        self, files: ModelFiles | None, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        return list(smallest_first(cards))

    def placed(self, options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
        self.told[self._asked] = placement
        return options


class CardGauge(FakeGauge):
    """Two cards, of whose use the driver says nothing."""

    def free(self) -> Bytes:
        return {"cpu": 1000, **CARDS}

    def used(self) -> Bytes:
        return {}


def held(registry: Registry) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one in registry.overview.ledger().held:
        found.setdefault(one.model, {})[one.device] = one.size
    return found


async def test_models_lie_on_a_card_each_and_their_engine_is_told() -> None:
    engine = CardEngine()
    async with registry_of("a60", "b60", "c30", engine=engine, gauge=CardGauge(engine)) as registry:
        for name in ("a60", "b60", "c30"):
            await registry.load(name)
        assert engine.told == {
            "a60": {"cuda:0": 1.0},
            "b60": {"cuda:1": 1.0},
            "c30": {"cuda:0": 1.0},
        }
        assert held(registry) == {
            "a60": {"cuda:0": 60},
            "b60": {"cuda:1": 60},
            "c30": {"cuda:0": 30},
        }


async def test_a_model_larger_than_each_card_is_split_once_both_have_room() -> None:
    engine = CardEngine()
    async with registry_of("a60", "d120", engine=engine, gauge=CardGauge(engine)) as registry:
        await registry.load("a60")
        fit = registry.overview.fit(registry.resolve("d120"))
        assert (fit.verdict, fit.unload) == ("fits_after", ("a60",))
        await registry.load("d120")
        assert engine.told["d120"] == {"cuda:0": 0.5, "cuda:1": 0.5}
        assert held(registry) == {"d120": {"cuda:0": 60, "cuda:1": 60}}


AUTO = {"host": "auto"}


@pytest.mark.parametrize(
    ("models", "engine", "host"),
    [
        ((model("a60", options=AUTO), "b60"), CardEngine(), "worker"),
        ((model("a60", options=AUTO),), CardEngine(), "process"),
        ((model("a60"), "b60"), CardEngine(), None),
        ((model("a60", options={"host": "process"}), "b60"), CardEngine(), "process"),
        ((model("a60", options=AUTO), "b60"), FakeEngine(), "process"),
        ((model("a60", options=AUTO),), FakeEngine(experimental=True), "worker"),
        (("a60",), FakeEngine(may_end=True), "worker"),
        ((model("a60", options={"host": "process"}),), FakeEngine(may_end=True), "process"),
    ],
    ids=[
        *("takes turns", "alone", "not asked", "decided", "on a CPU", "experimental"),
        *("may end its process", "may end this one"),
    ],
)
async def test_auto_chooses_a_worker_where_an_unload_or_a_crash_would_tell(
    models: tuple[ModelConfig | str, ...], engine: FakeEngine, host: str | None
) -> None:
    async with registry_of(*models, engine=engine, gauge=CardGauge(engine)) as registry:
        registry.statuses()  # as the server does when it starts
        await registry.load("a60")
        assert engine.options["a60"].host == host
        other = registry.resolve("a60").options
        assert (other.host or host) in {host, "auto"}, "what was chosen is not what was configured"


async def test_what_is_shown_of_a_model_is_where_it_lies_or_would_now() -> None:
    engine = CardEngine()
    async with registry_of("a60", "b60", engine=engine, gauge=CardGauge(engine)) as registry:

        def devices(name: str) -> Bytes:
            cost = registry.overview.cost(registry.resolve(name))
            assert cost is not None
            return cost.devices

        assert devices("b60") == {"cuda:0": 60}
        await registry.load("a60")
        assert devices("a60") == {"cuda:0": 60}
        assert devices("b60") == {"cuda:1": 60}
        assert registry.status("b60").missing == 0


class FiledEngine(CardEngine):
    """Its models have a file, which is all that a parked one holds."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def recognise(self, path: Path, backend: str | None = None) -> ModelFiles:
        files = super().recognise(path, backend)
        return msgspec.structs.replace(files, parts=(self._file,))


@pytest.mark.parametrize(("park", "holds"), [("auto", {"cpu": 7}), ("never", None)])
async def test_a_model_that_leaves_its_card_is_parked_in_main_memory(
    tmp_path: Path, park: str, holds: dict[str, int] | None
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    engine = FiledEngine(file)
    rules = msgspec.structs.replace(AT_ONCE, park=park)
    async with registry_of(
        "a120", "b120", engine=engine, gauge=CardGauge(engine), swap=rules
    ) as registry:
        await registry.load("a120")
        await registry.load("b120")
        assert held(registry).get("a120") == holds
        await registry.load("a120")
        assert held(registry)["a120"] == {"cuda:0": 60, "cuda:1": 60}
        assert held(registry).get("b120") == holds
        await registry.unload("b120")
        assert "b120" not in held(registry)


@pytest.mark.parametrize(("park", "holds"), [("auto", {"cpu": 7}), ("never", None)])
async def test_models_in_memory_are_parked_as_the_new_configuration_says(
    tmp_path: Path, park: Literal["auto", "never"], holds: dict[str, int] | None
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    engine, models = FiledEngine(file), (model("a120"), model("b120"))
    before = "never" if park == "auto" else "auto"
    old, new = (
        Config(models=models, swap=msgspec.structs.replace(AT_ONCE, park=one))
        for one in (before, park)
    )
    async with registry_of(engine=engine, gauge=CardGauge(engine), config=old) as registry:
        await registry.load("a120")
        registry.apply(registry.prepare(new, None), new)
        async with registry.lease("a120"):
            pass
        await registry.load("b120")
        assert held(registry).get("a120") == holds


class Sleeper(FakeContainer):
    """Its process stays when it gives back its cards."""

    async def park(self) -> Bytes:
        self._engine.history.append(f"parked {self.name}")
        if (gate := self._engine.gates.get(self.name)) is not None:
            await gate.wait()
        self._engine.present[self.name] = 1
        return {"cpu": 1}

    async def wake(self) -> None:
        self._engine.history.append(f"woke {self.name}")
        self._engine.present[self.name] = 120


class SleepingEngine(CardEngine):
    """Its models can be parked."""

    def recognise(self, path: Path, backend: str | None = None) -> ModelFiles:
        return msgspec.structs.replace(super().recognise(path, backend), parked_bytes=1)

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Sleeper:
        return Sleeper(self, (await super().load(files, options, report)).name)


async def test_a_parked_model_is_woken_as_it_was_loaded_and_else_loaded_anew() -> None:
    engine = SleepingEngine()
    async with registry_of("a120", "b120", engine=engine, gauge=CardGauge(engine)) as registry:
        for name in ("a120", "b120", "a120", "b120"):
            await registry.load(name)
        assert "woke a120" in engine.history
        engine.history.clear()
        await registry.load("a120", options={"context_length": 2})
        assert "woke a120" not in engine.history
        assert engine.options["a120"] == ScriptedOptions(context_length=2)


async def test_an_unload_that_comes_while_a_model_is_being_parked_ends_and_so_does_the_server() -> (
    None
):
    engine = SleepingEngine()
    with anyio.fail_after(10):
        async with registry_of("a120", "b120", engine=engine, gauge=CardGauge(engine)) as registry:
            for name in ("a120", "b120"):
                await registry.load(name)
            engine.gates["b120"] = anyio.Event()  # of its process, which takes its time
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(registry.load, "a120")
                await settled()
                assert engine.history[-1] == "parked b120"
                tasks.start_soon(registry.unload, "b120")
                await settled()
                await engine.open("b120")
            assert "b120" not in held(registry)
            assert engine.history[-1] != "woke b120"


class LosingEngine(CardEngine):
    """What its models read beside their own files may be gone: a draft model, say."""

    is_gone = False

    def placements(
        self, files: ModelFiles | None, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        if self.is_gone:
            raise LoadFailed("there is no draft model")
        return super().placements(files, options, cards)


async def test_a_model_that_could_not_be_loaded_again_is_unloaded_all_the_same() -> None:
    engine = LosingEngine()
    async with registry_of("a60", engine=engine, gauge=CardGauge(engine)) as registry:
        await registry.load("a60")
        engine.is_gone = True
        await registry.unload("a60")
        assert not held(registry)


async def test_measurements_are_forgotten_of_models_that_could_not_be_loaded_again() -> None:
    engine, history = LosingEngine(), History(None)
    taken = Measurement(size=50, load_seconds=1.0)
    async with registry_of(
        "a60", "b60", engine=engine, gauge=CardGauge(engine), history=history
    ) as registry:
        for name in ("a60", "b60"):
            history.put(registry.resolve(name).files, ScriptedOptions(), taken)
            await registry.load(name)
        engine.is_gone = True
        assert await registry.forget_measurements() == ("a60", "b60")
        assert await registry.forget_measurements() == ()


async def test_models_that_are_one_of_the_same_take_turns_whatever_their_memory() -> None:
    """A turn is no device: where a model lies, and what was measured of it, are as without one."""
    engine = CardEngine()
    models = (model("a10", one_of="x"), model("b10", one_of="x"), model("c10", one_of="y"), "d10")
    async with registry_of(*models, engine=engine, gauge=CardGauge(engine)) as registry:
        for name in ("a10", "c10", "d10"):
            await registry.load(name)
        assert engine.told["a10"] == {"cuda:0": 1.0}
        assert held(registry)["a10"] == {"cuda:0": 10}
        assert registry.status("a10").devices == {"cuda:0": 10}
        assert registry.budgets == registry.overview.ledger().budgets == {**CARDS, "cpu": 1000}
        fit = registry.overview.fit(registry.resolve("b10"))
        assert (fit.verdict, fit.unload) == ("fits_after", ("a10",))
        await registry.load("b10")
        assert engine.present.keys() == {"b10", "c10", "d10"}
        await registry.load("a10")  # with what was measured
        assert engine.present.keys() == {"a10", "c10", "d10"}
        await registry.pin("a10", pinned=True)
        with pytest.raises(ModelUnavailable, match="b10 can't have its turn: a pinned model has"):
            await registry.load("b10")


async def test_a_model_is_loaded_anew_where_it_takes_turns_with_others() -> None:
    engine = CardEngine()
    async with registry_of("a10", "b10", engine=engine, gauge=CardGauge(engine)) as registry:
        await registry.load("a10")
        await registry.load("b10")
        config = Config(models=(model("a10", one_of="x"), model("b10", one_of="x")), swap=AT_ONCE)
        registry.apply(registry.prepare(config, None), config)
        await registry.load("a10")
        assert engine.present.keys() == {"a10"}


async def test_what_is_loaded_is_known_as_it_was_measured_before_it_is_asked_for_again() -> None:
    """By all its ways to lie: the next request is granted without planning it."""
    engine = CardEngine()
    engine._real = {"a60": 70}  # noqa: SLF001 - bytes that it takes
    async with registry_of("a60", engine=engine, gauge=CardGauge(engine)) as registry:
        await registry.load("a60")
        record = registry._scheduler.residency("a60")  # noqa: SLF001
        assert record is not None
        assert (record.model.need, record.model.others[0]) == ({"cuda:0": 70}, {"cuda:1": 70})
