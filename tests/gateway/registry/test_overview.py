"""What a load would mean now, who holds what, and who is pinned, as the ledger has it."""

import pytest

from gateway.registry import Registry
from gateway.registry.overview import Fit, Parts, scaled
from tests.every import for_every
from tests.gateway.registry.fake_engine import Client, FakeEngine, model, registry_of

pytestmark = pytest.mark.anyio

MODELS = ("a40", "b60", "c30", "d200", model("pinned50", pinned=True))


def fit(registry: Registry, name: str) -> Fit:
    return registry.overview.fit(registry.resolve(name))


async def test_it_fits_or_who_would_have_to_go_is_reported() -> None:
    async with registry_of(*MODELS, engine=FakeEngine()) as registry:
        assert fit(registry, "a40") == Fit(verdict="fits")
        await registry.load("a40")
        await registry.load("c30")
        assert fit(registry, "a40") == Fit(verdict="loaded")
        assert fit(registry, "b60") == Fit(verdict="fits_after", unload=("a40",))
        assert set(fit(registry, "pinned50").unload) <= {"a40", "c30"}
        huge = fit(registry, "d200")
        assert (huge.verdict, huge.unload) == ("too_large", ())
        assert huge.why is not None
        assert "d200 needs" in huge.why


async def test_what_is_not_here_yet_is_asked_for_by_its_size() -> None:
    async with registry_of(*MODELS, engine=FakeEngine()) as registry:
        await registry.load("a40")

        def fits(size: int) -> Fit:
            return registry.overview.room_for("new", [{"cpu": size}])

        assert fits(60) == Fit(verdict="fits")
        assert fits(61) == Fit(verdict="fits_after", unload=("a40",))
        assert fits(101).verdict == "too_large"


async def test_what_is_pinned_never_has_to_go() -> None:
    async with registry_of(*MODELS, engine=FakeEngine()) as registry:
        await registry.load("pinned50")
        assert fit(registry, "a40") == Fit(verdict="fits")
        assert fit(registry, "b60").verdict == "too_large"
        assert "pinned" in (fit(registry, "b60").why or "")


async def test_a_model_can_be_pinned_and_let_go_again_while_it_runs() -> None:
    async with registry_of(*MODELS, engine=FakeEngine()) as registry:
        await registry.load("a40")
        await registry.pin("a40", pinned=True)
        assert fit(registry, "b60").verdict == "fits"
        assert fit(registry, "d200").verdict == "too_large"
        cost = registry.overview.cost(registry.resolve("a40"))
        assert cost is not None
        assert cost.pinned
        await registry.load("b60")
        assert fit(registry, "c30") == Fit(verdict="fits_after", unload=("b60",))
        async with Client.group() as clients:
            await clients.lease(registry, "c30")
        assert registry.status("a40").state == "loaded"
        await registry.pin("a40", pinned=False)
        assert fit(registry, "b60") == Fit(verdict="fits_after", unload=("a40",))


async def test_the_ledger_tells_who_holds_what_and_who_waits_for_room() -> None:
    async with registry_of(*MODELS, engine=FakeEngine()) as registry:
        async with Client.group() as clients:
            await clients.lease(registry, "a40")
            await clients.lease(registry, "d200")  # never fits, so it claims nothing
            await clients.lease(registry, "pinned50")
            waiting = await clients.lease(registry, "b60")
            assert waiting.lease is None
            ledger = registry.overview.ledger()
            assert ledger.budgets == {"cpu": 100}
            assert {(one.model, one.size) for one in ledger.held} == {("a40", 40), ("pinned50", 50)}
            assert ledger.claimed == ()  # beside what is pinned it can't be had
            await clients.lease(registry, "c30")
            (claimed,) = registry.overview.ledger().claimed
            assert (claimed.model, claimed.device, claimed.size) == ("c30", "cpu", 30)


async def test_the_turn_of_a_model_is_no_device() -> None:
    """Neither before it is loaded nor then."""
    async with registry_of(model("a40", one_of="small"), engine=FakeEngine()) as registry:
        for load in (False, True):
            if load:
                await registry.load("a40")
            assert registry.status("a40").devices == {"cpu": 40}
            cost = registry.overview.cost(registry.resolve("a40"))
            assert cost is not None
            assert cost.devices == {"cpu": 40}


async def test_what_a_model_takes_is_reported_by_use_and_adds_up() -> None:
    async with registry_of(*MODELS, engine=FakeEngine()) as registry:
        await registry.load("a40")
        cost = registry.overview.cost(registry.resolve("a40"))
        assert cost is not None
        assert cost.devices == {"cpu": 40}
        assert cost.loaded_for is not None
        assert cost.loading_for is None
        (held,) = registry.overview.ledger().held
        parts = held.parts
        assert parts.weights + parts.cache + parts.projector + parts.engine == held.size == 40


@for_every(
    ("parts", "size"),
    [
        (Parts(weights=3, cache=3, projector=1, engine=3), size)
        for size in (0, 1, 7, 10, 11, 10**12 + 1)
    ]
    + [(Parts(weights=0, cache=0, projector=0, engine=0), 5)],
)
def test_parts_add_up_on_each_device(parts: Parts, size: int) -> None:
    found = scaled(parts, size)
    each = (found.weights, found.cache, found.projector, found.engine)
    assert sum(each) == size
    assert min(each) >= 0
