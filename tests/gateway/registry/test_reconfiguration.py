"""Files of models in memory that change while the server runs."""

from pathlib import Path

import anyio
import pytest

from tests.gateway.registry.fake_engine import Client, registry_of
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
