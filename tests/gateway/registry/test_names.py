"""Names that requests give models, though files come and go while the server runs."""

from pathlib import Path

import anyio
import pytest

from backends.contract.catalog import ModelFiles
from config.settings import Config, ModelConfig
from gateway.keys.access import Access
from gateway.registry import ModelLibrary, Registry
from gateway.terms.errors import ModelNotFound, ModelUnavailable
from tests.gateway.registry.fake_engine import FakeEngine, registry_of

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
