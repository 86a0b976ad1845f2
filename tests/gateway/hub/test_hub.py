"""Downloads from a stand-in hub: whole or not there, checked, never begun twice from nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest

from config.settings import Config, HubConfig
from gateway.hub.downloads import fetch
from gateway.hub.hub import Hub
from gateway.hub.repository import DownloadProgress, Order, RemoteFile
from gateway.terms.errors import Forbidden, GatewayError, InvalidRequest, ModelUnavailable, NotFound
from tests.gateway.hub.standin import StandIn, standin
from tests.hang import HANG

pytestmark = pytest.mark.anyio

BIG = bytes(range(256)) * 20_000
FILES = {"config.json": b"{}", "sub/model.bin": BIG, ".gitattributes": b"x"}
SMALL = Order(repository="org/small")


def hub(stand: StandIn | None, folder: Path, *, deletion: bool = False) -> Hub:
    endpoint = stand.url if stand else "http://127.0.0.1:9"
    return Hub(
        Config(
            hub=HubConfig(
                endpoint=endpoint,
                folder=str(folder / "models"),
                cache=str(folder / "cache"),
                deletion=deletion,
            )
        )
    )


def ignore(_step: DownloadProgress) -> None:
    pass


def found(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


@pytest.fixture
async def stand() -> AsyncIterator[StandIn]:
    async with standin(dict(FILES)) as running:
        yield running


async def test_a_repository_appears_whole_under_its_name(stand: StandIn, tmp_path: Path) -> None:
    steps: list[DownloadProgress] = []
    path = await hub(stand, tmp_path).download(SMALL, steps.append)
    assert path == tmp_path / "models" / "small"
    assert (path / "config.json").read_bytes() == b"{}"
    assert (path / "sub/model.bin").read_bytes() == BIG
    assert not (path / ".gitattributes").exists()
    assert not list(path.rglob("*.part"))
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert steps[-1].done == steps[-1].total == len(BIG) + 2


async def test_patterns_choose_and_a_name_can_be_given(stand: StandIn, tmp_path: Path) -> None:
    order = Order(repository="org/small", folder="other/name", include=("*.json",), token="secret")
    path = await hub(stand, tmp_path).download(order, ignore)
    assert path == tmp_path / "models" / "other" / "name"
    assert [file.name for file in path.glob("[!.]*")] == ["config.json"]
    assert set(stand.tokens) == {"Bearer secret"}
    assert "secret" not in repr(order)
    nothing = Order(repository="org/small", folder="x", exclude=("*",))
    with pytest.raises(InvalidRequest, match="no file of org/small matches"):
        await hub(stand, tmp_path).download(nothing, ignore)


async def test_who_leaves_stops_it_at_once_and_the_next_goes_on_there(
    stand: StandIn, tmp_path: Path
) -> None:
    one = hub(stand, tmp_path)
    stand.cut["sub/model.bin"] = 3_000_000
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.download, SMALL, ignore)
        await stand.sent_cut.wait()
        with anyio.fail_after(HANG):
            while not any(path.stat().st_size for path in found(tmp_path, "model.bin.part")):
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    assert not (tmp_path / "models" / "small").exists()
    (part,) = found(tmp_path, "model.bin.part")
    had = part.stat().st_size
    assert 0 < had <= 3_000_000
    stand.cut.clear()
    path = await one.download(SMALL, ignore)
    assert (path / "sub/model.bin").read_bytes() == BIG
    asked = f"GET /org/small/resolve/{'a' * 40}"
    assert stand.asked[-1] == f"{asked}/sub/model.bin bytes={had}-"
    assert stand.asked.count(f"{asked}/config.json") == 1


async def test_what_the_disk_has_no_room_for_is_not_begun(stand: StandIn, tmp_path: Path) -> None:
    stand.sizes["sub/model.bin"] = 1 << 60
    with pytest.raises(ModelUnavailable, match="the disk has"):
        await hub(stand, tmp_path).download(SMALL, ignore)
    assert not any("resolve" in asked for asked in stand.asked)


async def test_a_file_that_is_longer_than_announced_ends_there(
    stand: StandIn, tmp_path: Path
) -> None:
    """The stand-in goes on for ever: who reads to the end never comes back."""
    stand.endless.add("sub/model.bin")
    with pytest.raises(ModelUnavailable, match=f"more than the {len(BIG)} bytes"):
        with anyio.fail_after(HANG):
            await hub(stand, tmp_path).download(SMALL, ignore)
    assert not found(tmp_path, "*model.bin*")
    stand.endless.clear()
    path = await hub(stand, tmp_path).download(SMALL, ignore)
    assert (path / "sub/model.bin").read_bytes() == BIG


async def test_what_is_on_disk_beyond_the_size_is_fetched_anew(
    stand: StandIn, tmp_path: Path
) -> None:
    one = hub(stand, tmp_path)
    stand.cut["sub/model.bin"] = 3_000_000
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.download, SMALL, ignore)
        with anyio.fail_after(HANG):
            while not any(path.stat().st_size for path in found(tmp_path, "model.bin.part")):
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    (part,) = found(tmp_path, "model.bin.part")
    part.write_bytes(BIG + b"more")
    stand.cut.clear()
    path = await one.download(SMALL, ignore)
    assert (path / "sub/model.bin").read_bytes() == BIG


@pytest.mark.parametrize("size", [-1, "12", 1.5, 1 << 70, [], True])
async def test_a_listing_with_a_wrong_size_is_the_hubs_fault(
    size: object, stand: StandIn, tmp_path: Path
) -> None:
    stand.sizes["sub/model.bin"] = size
    with pytest.raises(ModelUnavailable, match=r"lists sub/model\.bin with a wrong size"):
        await hub(stand, tmp_path).download(SMALL, ignore)
    assert not found(tmp_path, "*.part")


@pytest.mark.parametrize(
    "name", ["x" * 300, "ü" * 150, "/".join(["x"] * 50), "x" * 240 + "/" + "x" * 241]
)
async def test_a_name_too_long_for_the_disk_is_refused(
    name: str, stand: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="too long") as refused:
        await hub(stand, tmp_path).download(Order(repository="org/small", folder=name), ignore)
    assert refused.value.param == "folder_name"
    assert len(refused.value.message) < 200
    assert stand.asked == []


async def test_the_longest_name_is_taken(stand: StandIn, tmp_path: Path) -> None:
    order = Order(repository="org/small", folder="x" * 240, include=("*.json",))
    path = await hub(stand, tmp_path).download(order, ignore)
    assert path.name == "x" * 240


async def test_a_disk_that_takes_nothing_is_named(stand: StandIn, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("no folder")
    with pytest.raises(ModelUnavailable, match="small can't be written: "):
        await hub(stand, tmp_path).download(SMALL, ignore)


async def test_a_file_with_a_wrong_checksum_is_thrown_away(stand: StandIn, tmp_path: Path) -> None:
    stand.checksums["sub/model.bin"] = "0" * 64
    with pytest.raises(ModelUnavailable, match="checksum"):
        await hub(stand, tmp_path).download(SMALL, ignore)
    assert not found(tmp_path, "*model.bin*")
    assert not (tmp_path / "models" / "small").exists()


@pytest.mark.parametrize(
    "name", ["../out", "/etc/x", "a/../../x", "..", ".hidden", "a\\b", "C:x", "x\0"]
)
async def test_names_dont_leave_the_folder(name: str, stand: StandIn, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await hub(stand, tmp_path).download(Order(repository="org/small", folder=name), ignore)
    assert refused.value.param == "folder_name"
    assert stand.asked == []


async def test_a_link_out_of_the_folder_is_not_followed(stand: StandIn, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "link").symlink_to("/tmp")
    with pytest.raises(InvalidRequest):
        await hub(stand, tmp_path).download(Order(repository="org/small", folder="link/x"), ignore)


async def test_a_hub_that_names_files_elsewhere_is_not_obeyed(tmp_path: Path) -> None:
    async with standin({"../../evil.txt": b"x"}) as stand:
        with pytest.raises(InvalidRequest):
            await hub(stand, tmp_path).download(SMALL, ignore)
    assert not found(tmp_path, "evil*")


async def test_a_folder_that_is_there_is_left_alone(stand: StandIn, tmp_path: Path) -> None:
    (tmp_path / "models" / "small").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="already a folder small"):
        await hub(stand, tmp_path).download(SMALL, ignore)


@pytest.mark.parametrize(
    ("repository", "error"), [("org/none", NotFound), ("no such name!", InvalidRequest)]
)
async def test_what_the_hub_doesnt_have(
    repository: str, error: type[GatewayError], stand: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(error):
        await hub(stand, tmp_path).download(Order(repository=repository, folder="x"), ignore)


ERRORS = {
    "org/gone": (
        404,
        "RepoNotFound",
        "org/gone was not found at URL; if it is private, set HF_TOKEN",
    ),
    "org/gated": (
        403,
        "GatedRepo",
        "org/gated is gated: accept its terms at URL/org/gated, then set HF_TOKEN",
    ),
    "org/busy": (503, "", "URL answered 503 for org/busy"),
}


@pytest.mark.parametrize("repository", ERRORS)
async def test_an_error_of_the_hub_is_one_line_of_ours(
    repository: str, stand: StandIn, tmp_path: Path
) -> None:
    status, code, text = ERRORS[repository]
    stand.refusals[repository] = (status, code)
    with pytest.raises(GatewayError) as refused:
        await hub(stand, tmp_path).download(Order(repository=repository), ignore)
    assert refused.value.message == text.replace("URL", stand.url)


async def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"^can't reach http://127\.0\.0\.1:9: .*$"):
        await hub(None, tmp_path).download(SMALL, ignore)


async def test_a_file_that_is_refused_is_named(stand: StandIn, tmp_path: Path) -> None:
    stand.files["config.json"], stand.gone = b"", {"config.json"}
    with pytest.raises(ModelUnavailable, match=r"^127\.0\.0\.1 answered 404 for config\.json$"):
        await hub(stand, tmp_path).download(SMALL, ignore)


async def test_without_a_folder_nothing_is_downloaded() -> None:
    with pytest.raises(InvalidRequest, match=r"hub\.folder"):
        await Hub(Config()).download(SMALL, ignore)


async def test_deletion_must_be_allowed_and_stays_in_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "models" / "a", tmp_path / "b"
    inside.mkdir(parents=True)
    outside.write_bytes(b"x")
    with pytest.raises(Forbidden, match=r"hub\.deletion"):
        await hub(None, tmp_path).delete((inside,))
    allowed = hub(None, tmp_path, deletion=True)
    with pytest.raises(Forbidden, match="folder"):
        await allowed.delete((inside, outside))
    assert inside.exists()
    await allowed.delete((inside,))
    assert not inside.exists()


async def test_the_cache_is_listed_with_sizes(tmp_path: Path) -> None:
    assert await hub(None, tmp_path).cached() == []
    whole, broken = (tmp_path / "cache" / f"datasets--org--{name}" for name in ("data", "broken"))
    for repository, linked in ((whole, "x"), (broken, "nowhere")):
        (repository / "blobs").mkdir(parents=True)
        (repository / "blobs" / "x").write_bytes(b"12345")
        (repository / "snapshots" / "abc").mkdir(parents=True)
        (repository / "snapshots" / "abc" / "file").symlink_to(f"../../blobs/{linked}")
    [one] = await hub(None, tmp_path).cached()
    assert (one.repo_id, one.repo_type, one.size_on_disk) == ("org/data", "dataset", 5)


async def test_what_may_be_better_the_next_time_is_tried_again(
    stand: StandIn, tmp_path: Path
) -> None:
    name = "sub/model.bin"
    url = f"{stand.url}/org/small/resolve/main/{name}"
    file = RemoteFile(name=name, size=len(BIG), sha256=stand.checksums[name], url=url)
    stand.troubles[name] = [429, 0, 503]
    async with httpx.AsyncClient(timeout=HANG) as client:
        await fetch(client, file, tmp_path / "model.bin", {}, lambda _: None, pauses=[0.0] * 3)
        assert (tmp_path / "model.bin").read_bytes() == BIG
        assert "bytes=" in stand.asked[-1], "it went on"
        stand.troubles[name] = [503] * 4
        with pytest.raises(ModelUnavailable, match="answered 503"):
            await fetch(client, file, tmp_path / "other.bin", {}, lambda _: None, pauses=[0.0] * 3)
