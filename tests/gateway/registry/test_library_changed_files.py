"""Files that come, go and change while the server runs, and the names they are asked for by."""

import os
from pathlib import Path

import anyio
import pytest

from backends.catalog import ModelFiles
from config.settings import Config, ModelConfig
from gateway.access import Access
from gateway.errors import ModelNotFound, ModelUnavailable
from gateway.hub.cache import cached
from gateway.registry import ModelLibrary, Registry
from tests.gateway.registry.fake_engine import (
    Client,
    FakeEngine,
    HandClock,
    model,
    registry_of,
    settled,
)
from tests.hang import HANG

pytestmark = pytest.mark.anyio


class OnDisk(FakeEngine):
    """Reads files that are really there."""

    def recognise(self, path: Path, backend: str | None) -> ModelFiles:
        files = super().recognise(path, backend)
        if path.read_text() == "broken":
            raise ValueError(f"{path.name} is broken")
        return files


def configured(path: Path, **settings: object) -> Config:
    models = (ModelConfig(name="a40", path=str(path), aliases=("first", "other")),)
    return Config(models=models, **settings)  # type: ignore[arg-type]


async def test_a_repaired_file_can_be_asked_for_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a40"
    path.write_text("broken")
    async with registry_of(engine=OnDisk(), config=configured(path)) as registry:
        with pytest.raises(ModelUnavailable, match="is broken"):
            await registry.load("first")
        path.write_text("whole again")
        async with registry.lease("first") as lease:
            assert lease.name == "a40"


def test_a_configured_path_that_is_not_there_is_reported_as_such(tmp_path: Path) -> None:
    [missing] = ModelLibrary(configured(tmp_path / "a40")).unusable()
    assert missing.reason == f"file or folder not found: {tmp_path / 'a40'}"


async def test_a_new_file_can_be_asked_for_at_once(tmp_path: Path) -> None:
    config = Config(model_dirs=(str(tmp_path),))
    async with registry_of(engine=OnDisk(), config=config) as registry:
        (tmp_path / "b20").write_text("new")
        async with registry.lease("b20") as lease:
            assert lease.name == "b20"


async def test_a_hundred_unknown_names_at_once_share_one_scan(tmp_path: Path) -> None:
    config = Config(model_dirs=(str(tmp_path),))
    engine = OnDisk()
    async with Registry(CountedScans(config, recognise=engine.recognise), config) as registry:

        async def ask(number: int) -> None:
            with pytest.raises(ModelNotFound):
                await registry.find(f"nobody{number}")

        for _ in range(2):  # the second hundred waits for the next scan, all together
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(ask, number)
        library = registry._library  # noqa: SLF001 - nobody else counts
        assert isinstance(library, CountedScans)
        assert library.scans == 3


class CountedScans(ModelLibrary):
    """The first is its own making."""

    scans = 0

    def refresh(self) -> None:
        self.scans += 1
        super().refresh()


async def test_a_file_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a40").write_text("whole")
    (tmp_path / os.fsdecode(b"b\xff20")).write_text("whole")
    (tmp_path / os.fsdecode(b"folder\xfe")).mkdir()
    (tmp_path / os.fsdecode(b"models--org--x\xff")).mkdir()
    async with registry_of(engine=OnDisk(), config=Config(model_dirs=(str(tmp_path),))) as registry:
        assert [one.id for one in registry.statuses()] == ["a40"]
    assert cached(tmp_path) == ()


@pytest.mark.parametrize("name", ["a40", "first", "other", "", "default"])
async def test_a_model_in_memory_is_reached_by_all_its_names_though_its_file_is_gone(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "a40"
    path.write_text("whole")
    async with registry_of(engine=OnDisk(), config=configured(path)) as registry:
        await registry.load("a40")
        path.unlink()
        await registry.refresh()
        async with registry.lease(name) as lease:
            assert lease.name == "a40"
        assert (await registry.unload(name)).was_loaded


async def test_the_lease_itself_refuses_a_model_that_the_key_may_not_use() -> None:
    async with registry_of("a40", "b20", engine=FakeEngine()) as registry:
        with pytest.raises(ModelNotFound):
            async with registry.lease("a40", access=Access(models=frozenset({"b20"}))):
                raise AssertionError


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
