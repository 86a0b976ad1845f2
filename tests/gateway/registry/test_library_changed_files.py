"""Files that come, go and change while the server runs, and the names they are asked for by."""

from pathlib import Path

import anyio
import pytest

from gateway.registry import Registry
from tests.gateway.registry.fake_engine import (
    Client,
    FakeEngine,
    HandClock,
    model,
    registry_of,
    settled,
)
from tests.gateway.registry.test_names import OnDisk, configured
from tests.hang import HANG

pytestmark = pytest.mark.anyio


def replaced(path: Path) -> None:
    new = path.with_name("new")
    new.write_text("another")
    new.replace(path)


def written_over(path: Path) -> None:
    path.write_text("something else")


@pytest.mark.parametrize("change", [replaced, written_over])
async def test_a_model_whose_file_changed_is_loaded_again_before_the_next_lease(
    change: object, tmp_path: Path
) -> None:
    assert callable(change)
    path, engine = tmp_path / "a40", OnDisk()
    path.write_text("whole")
    async with registry_of(engine=engine, config=configured(path)) as registry:
        async with registry.lease("a40"):
            pass
        async with registry.lease("a40"):
            pass
        assert engine.history == ["load a40", "loaded a40"]
        change(path)
        async with registry.lease("a40"):
            assert engine.history.count("loaded a40") == 2


async def test_who_uses_a_model_whose_file_changed_ends_in_peace(tmp_path: Path) -> None:
    path, engine = tmp_path / "a40", OnDisk()
    path.write_text("whole")
    async with registry_of(engine=engine, config=configured(path)) as registry:
        async with Client.group() as clients:
            user = await clients.lease(registry, "a40")
            path.write_text("something else")
            late = clients.start(registry, "a40")
            with anyio.fail_after(HANG):
                while registry.status("a40").state != "draining":
                    await anyio.sleep(0.01)
            assert user.error is None
            assert not served(late)
            await user.leave()
            with anyio.fail_after(HANG):
                while not served(late):
                    await anyio.sleep(0.01)
            assert engine.history[-1] == "loaded a40"


def served(client: Client) -> bool:
    return client.lease is not None


# ------------------------------------------------------------------------------- keep_alive


async def test_a_keep_alive_holds_until_the_next_request_ends() -> None:
    engine, clock = FakeEngine(), HandClock()
    async with registry_of(model("a40", ttl=5), engine=engine, clock=clock) as registry:
        await use(registry, 1000.0)
        await clock.advance(50.0)
        assert registry.status("a40").state == "loaded"
        await use(registry, None)
        await clock.advance(5.0)
        await settled()
        assert engine.present == {}


async def use(registry: Registry, keep_alive: float | None) -> None:
    async with registry.lease("a40", keep_alive=keep_alive):
        pass
