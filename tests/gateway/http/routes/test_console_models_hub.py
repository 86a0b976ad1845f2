"""Models that come, over HTTP: what a repository offers, downloads of their own, files sent."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

import bundled
from backends.contract.catalog import BACKENDS
from backends.machine.devices import main_bandwidth
from config.settings import HubConfig, KeyConfig, SwapConfig
from gateway.hub.repository import Listing, RemoteFile, choices
from tests.gateway.http.serving import Running, config, serving
from tests.gateway.hub.standin import StandIn, standin
from tests.hang import HANG

pytestmark = pytest.mark.anyio

USER, BOSS = {"x-api-key": "user"}, {"x-api-key": "admin"}
KEYS = (KeyConfig(key="user"), KeyConfig(key="admin", role="admin"))
GGUF = bundled.GGUF.read_bytes()
FILES = {
    "small-Q4_K_M.gguf": GGUF,
    "small-Q8_0.gguf": GGUF + b"\0" * 1000,
    "mmproj-small-F16.gguf": b"f" * 50,
    "mmproj-small-F32.gguf": b"q" * 50,
    "README.md": b"# small",
}


@pytest.fixture
async def stand() -> AsyncIterator[StandIn]:
    async with standin(dict(FILES)) as running:
        yield running


@pytest.fixture
async def running(stand: StandIn, tmp_path: Path) -> AsyncIterator[Running]:
    settings = msgspec.structs.replace(
        config(tmp_path, keys=KEYS),
        model_dirs=(str(tmp_path / "models"),),
        hub=HubConfig(endpoint=stand.url),
    )
    async with serving(settings, tmp_path) as server:
        yield server


async def post(running: Running, path: str, **fields: object) -> httpx.Response:
    return await running.client.post(f"/v1/admin/{path}", json=fields, headers=BOSS)


async def listed(running: Running) -> list[dict[str, Any]]:
    answer = await running.client.get("/v1/admin/downloads", headers=BOSS)
    found: list[dict[str, Any]] = answer.json()["downloads"]
    return found


async def until(running: Running, state: str) -> dict[str, Any]:
    """The newest download, once it is in that state."""
    with anyio.fail_after(HANG):
        while (newest := (await listed(running))[0])["state"] != state:
            await anyio.sleep(0.005)
        return newest


# ------------------------------------------------------------------------------------------ the hub


async def test_each_quantization_is_offered_with_what_it_takes(running: Running) -> None:
    url = "/v1/admin/hub/files?repository=org/small"
    found = (await running.client.get(url, headers=BOSS)).json()
    assert found["bytes"] == sum(map(len, FILES.values()))
    small, large = found["quantizations"]
    assert (small["name"], small["model"]) == ("Q4_K_M", "org/small:Q4_K_M")
    assert small["files"] == ["small-Q4_K_M.gguf", "mmproj-small-F16.gguf"]
    assert small["bytes"] == len(GGUF) + 50
    assert large["name"] == "Q8_0"
    assert not small["here"]
    assert small["fit"]["verdict"] == "fits"
    assert small["fit"]["device"] == "cpu"
    assert small["fit"]["needs"] > small["bytes"]
    assert small["fit"]["speed"] > large["fit"]["speed"] > 0
    assert (await running.client.get(url, headers=USER)).status_code == 403


async def test_what_can_never_be_had_is_reported_before_it_is_fetched(
    stand: StandIn, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(
        config(tmp_path),
        hub=HubConfig(endpoint=stand.url),
        swap=SwapConfig(memory={"cpu": 3 * len(GGUF)}),
    )
    stand.add("huge-Q2_K.gguf", GGUF * 4)
    async with serving(settings, tmp_path) as running:
        url = "/v1/admin/hub/files?repository=hf:org/small"
        found = (await running.client.get(url)).json()["quantizations"]
        fits = {one["name"]: one["fit"] for one in found}
        assert fits["Q8_0"]["verdict"] == "fits"
        assert fits["Q2_K"]["verdict"] == "too_large"
        assert "cpu" in fits["Q2_K"]["why"]


async def test_a_repository_that_isnt_there_is_not_found(running: Running) -> None:
    for name, status in (("org/none", 404), ("", 400), ("a b", 400)):
        url = f"/v1/admin/hub/files?repository={name}"
        assert (await running.client.get(url, headers=BOSS)).status_code == status


def test_parts_of_one_model_are_one_and_a_repository_without_any_is_whole() -> None:
    def offered(*names: str) -> list[tuple[str | None, str, int]]:
        files = tuple(RemoteFile(name, 10, "") for name in names)
        found = choices("a/b", Listing("c", files, {}), BACKENDS)
        return [(one.name, one.model, one.size) for one in found]

    split = [f"m-Q4_0-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    assert offered(*split, "x/m-Q8_0.gguf") == [("Q8_0", "a/b:Q8_0", 10), ("Q4_0", "a/b:Q4_0", 30)]
    assert offered("model.safetensors", "config.json") == [(None, "a/b", 20)]
    assert offered("mmproj-F16.gguf", "one.gguf") == [("one", "a/b:one", 20)]


# ---------------------------------------------------------------------------------------- downloads


async def test_a_download_goes_on_when_nobody_waits_and_its_model_answers(running: Running) -> None:
    begun = await post(running, "downloads", model="hf:org/small:Q8_0")
    assert (begun.status_code, begun.json()["model"]) == (202, "org/small:Q8_0")
    done = await until(running, "finished")
    assert done["done"] == done["total"] == len(FILES["small-Q8_0.gguf"]) + 50
    assert done["path"].endswith("models/small-Q8_0")
    with anyio.fail_after(HANG):
        while not any("small-Q8_0" in one.id for one in running.registry.statuses()):
            await anyio.sleep(0.005)
    url = "/v1/admin/hub/files?repository=org/small"
    found = (await running.client.get(url, headers=BOSS)).json()["quantizations"]
    assert {one["name"]: one["here"] for one in found} == {"Q4_K_M": False, "Q8_0": True}


async def test_a_download_can_be_stopped_and_goes_on_where_it_was(
    stand: StandIn, running: Running
) -> None:
    stand.cut["small-Q8_0.gguf"] = len(GGUF)
    number = (await post(running, "downloads", model="org/small:Q8_0")).json()["id"]
    with anyio.fail_after(HANG):
        await stand.sent_cut.wait()
        while (await listed(running))[0]["done"] < 1 << 20:
            await anyio.sleep(0.005)
    again = await post(running, "downloads", model="org/small:Q8_0")
    assert again.json()["id"] == number  # it runs already
    stopped = (await post(running, f"downloads/{number}/stop")).json()
    assert (stopped["state"], stopped["bytes_per_second"]) == ("stopped", None)
    stand.cut.clear()
    resumed = await post(running, f"downloads/{number}/resume")
    assert (resumed.status_code, resumed.json()["state"]) == (202, "running")
    assert (await until(running, "finished"))["id"] == number
    ranges = [one for one in stand.asked if "small-Q8_0" in one and "bytes=" in one]
    assert len(ranges) == 1


async def test_two_parts_of_one_repository_come_side_by_side(
    stand: StandIn, running: Running
) -> None:
    stand.cut["small-Q4_K_M.gguf"] = 10
    first = (await post(running, "downloads", model="org/small:Q4_K_M")).json()["id"]
    with anyio.fail_after(HANG):
        await stand.sent_cut.wait()
    await post(running, "downloads", model="org/small:Q8_0")
    done = await until(running, "finished")
    assert left(Path(done["path"])) == [".hub.json", "mmproj-small-F16.gguf", "small-Q8_0.gguf"]
    await post(running, f"downloads/{first}/stop")
    stand.cut.clear()
    await post(running, f"downloads/{first}/resume")
    with anyio.fail_after(HANG):
        while {one["state"] for one in await listed(running)} != {"finished"}:
            await anyio.sleep(0.005)


async def test_what_goes_wrong_is_reported_and_can_be_tried_again(
    stand: StandIn, running: Running
) -> None:
    stand.checksums["small-Q8_0.gguf"] = "0" * 64
    number = (await post(running, "downloads", model="org/small:Q8_0")).json()["id"]
    failed = await until(running, "failed")
    assert "checksum" in failed["why_failed"]
    stand.add("small-Q8_0.gguf", FILES["small-Q8_0.gguf"])
    await post(running, f"downloads/{number}/resume")
    await until(running, "finished")
    answer = await running.client.delete(f"/v1/admin/downloads/{number}", headers=BOSS)
    assert answer.json() == {"removed": number}
    assert await listed(running) == []
    for what in ("stop", "resume"):
        assert (await post(running, f"downloads/{number}/{what}")).status_code == 404


async def test_downloads_are_reported_to_administrators_alone(running: Running) -> None:
    for method, path in (("GET", ""), ("POST", ""), ("POST", "/1/stop"), ("DELETE", "/1")):
        url = f"/v1/admin/downloads{path}"
        answer = await running.client.request(method, url, json={"model": "a/b"}, headers=USER)
        assert answer.status_code == 403


async def test_without_a_folder_nothing_comes(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        answer = await running.client.post("/v1/admin/downloads", json={"model": "org/small"})
        assert answer.status_code == 400
        assert "hub.folder" in answer.json()["error"]["message"]
        sent = await running.client.put(
            "/v1/admin/uploads/a.gguf", content=b"GGUF", headers={"content-type": "x/y"}
        )
        assert sent.status_code == 400


# ------------------------------------------------------------------------------------------ uploads


async def send(running: Running, name: str, data: bytes, **headers: str) -> httpx.Response:
    kind = {"content-type": "application/octet-stream"}
    url = f"/v1/admin/uploads/{name}"
    return await running.client.put(url, content=data, headers={**BOSS, **kind, **headers})


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


async def test_a_file_that_is_sent_becomes_a_model(running: Running, tmp_path: Path) -> None:
    answer = await send(running, "mine.gguf", GGUF)
    assert answer.status_code == 201
    assert answer.json() == {"name": "mine.gguf", "bytes": len(GGUF), "models": ["mine"]}
    assert (tmp_path / "models" / "mine.gguf").read_bytes() == GGUF
    assert left(tmp_path / "models") == ["mine.gguf"]
    body = {"model": "mine", "prompt": "Hi", "max_tokens": 2}
    said = await running.client.post("/v1/completions", json=body, headers=USER)
    assert said.status_code == 200


async def test_a_file_may_be_larger_than_other_bodies(tmp_path: Path) -> None:
    small = msgspec.structs.replace(config(tmp_path).server, max_body=1000)
    settings = msgspec.structs.replace(
        config(tmp_path, server=small), model_dirs=(str(tmp_path / "models"),)
    )
    async with serving(settings, tmp_path) as running:
        assert len(GGUF) > 1000
        assert (await send(running, "mine.gguf", GGUF)).status_code == 201


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("mine.gguf", b"PK\x03\x04" + b"x" * 100),
        ("mine.gguf", b"GGUF" + b"x" * 100),
        ("mine.gguf", GGUF[:300_000]),
        ("mine.gguf", b""),
        ("mine.bin", GGUF[:100]),
        (".mine.gguf", GGUF[:100]),
        ("..%2fmine.gguf", GGUF[:100]),
        ("mine%0a.gguf", GGUF[:100]),
    ],
)
async def test_what_is_no_model_leaves_nothing(
    name: str, data: bytes, running: Running, tmp_path: Path
) -> None:
    answer = await send(running, name, data)
    assert answer.status_code in (400, 404)
    assert str(tmp_path) not in answer.text
    assert left(tmp_path / "models") == []


async def test_nothing_is_overwritten_and_the_disk_has_an_end(
    running: Running, tmp_path: Path
) -> None:
    await send(running, "mine.gguf", GGUF)
    again = await send(running, "mine.gguf", GGUF)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "name")
    stream = await anyio.connect_tcp("127.0.0.1", running.port)
    async with stream:
        head = (
            "PUT /v1/admin/uploads/huge.gguf HTTP/1.1\r\nHost: localhost\r\nx-api-key: admin\r\n"
            "Content-Type: application/octet-stream\r\nContent-Length: 99999999999999\r\n\r\n"
        )
        await stream.send(head.encode())
        assert b"413" in await stream.receive(20)
    assert left(tmp_path / "models") == ["mine.gguf"]


async def test_who_leaves_in_the_middle_leaves_nothing(running: Running, tmp_path: Path) -> None:
    stream = await anyio.connect_tcp("127.0.0.1", running.port)
    head = (
        "PUT /v1/admin/uploads/half.gguf HTTP/1.1\r\nHost: localhost\r\nx-api-key: admin\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(GGUF)}\r\n\r\n"
    )
    with anyio.fail_after(HANG):
        async with stream:
            await stream.send(head.encode() + GGUF[:1000])
            while not left(tmp_path / "models"):
                await anyio.sleep(0.005)
        while left(tmp_path / "models"):
            await anyio.sleep(0.005)


async def test_users_send_nothing(running: Running, tmp_path: Path) -> None:
    assert (await send(running, "mine.gguf", GGUF, **USER)).status_code == 403
    assert left(tmp_path / "models") == []


# ------------------------------------------------------------------------------------- the search

# As huggingface.co answers GET /api/models with these values of `expand`.
LISTED: list[dict[str, object]] = [
    {
        "_id": "1", "id": "org/small", "modelId": "org/small", "likes": 12, "downloads": 3400,
        "gated": False, "pipeline_tag": "text-generation", "private": False,
        "tags": ["gguf", "license:apache-2.0", "region:us"],
        "lastModified": "2026-05-21T06:00:00.000Z",
        "gguf": {"total": 1_000_000_000, "architecture": "llama", "context_length": 4096},
    },
    {
        "_id": "2", "id": "org/huge", "likes": 900, "downloads": 10, "gated": "manual",
        "tags": [], "gguf": {"total": 10**15, "architecture": "llama"},
    },
    {"_id": "3", "id": "org/odd", "likes": "many", "downloads": -1, "tags": None,
     "gguf": {"total": "a lot"}},
    {"_id": "4", "id": "no-owner"},
]  # fmt: skip


async def searched(running: Running, **query: str) -> httpx.Response:
    return await running.client.get("/v1/admin/hub/search", params=query, headers=BOSS)


async def test_a_search_has_likes_sizes_and_what_fits(running: Running, stand: StandIn) -> None:
    stand.listed = LISTED
    found = (await searched(running, words="small llama")).json()
    assert found["suggested"] is False
    small, huge, odd = found["models"]
    assert (small["repository"], small["likes"], small["downloads"]) == ("org/small", 12, 3400)
    assert (small["parameters"], small["license"]) == (1_000_000_000, "apache-2.0")
    assert small["size"] == pytest.approx(0.61 * 1e9, rel=0.01)
    assert small["changed"] == "2026-05-21"
    assert small["fit"]["verdict"] == "fits"
    assert small["fit"]["needs"] > small["size"]
    assert small["fit"]["speed"] == pytest.approx(main_bandwidth() / small["size"])
    assert (huge["gated"], huge["fit"]["verdict"]) == (True, "too_large")
    assert (odd["likes"], odd["size"], odd["fit"]) == (0, None, None)
    (asked,) = [one for one in stand.asked if "/api/models?" in one]
    for part in ("search=small", "filter=gguf", "sort=downloads", "expand=gguf"):
        assert part in asked


async def test_without_words_what_fits_is_suggested(running: Running, stand: StandIn) -> None:
    stand.listed = LISTED
    found = (await searched(running)).json()
    assert found["suggested"] is True
    assert [one["repository"] for one in found["models"]] == ["org/small"]
    assert "sort=trendingScore" in stand.asked[-1]


async def test_safetensors_are_as_large_as_their_types(running: Running, stand: StandIn) -> None:
    parameters = {"BF16": 1_000_000, "F32": 10}
    weights = {"parameters": parameters, "total": 1_000_010}
    stand.listed = [{"_id": "1", "id": "org/plain", "tags": [], "safetensors": weights}]
    (one,) = (await searched(running, words="x", format="safetensors")).json()["models"]
    assert (one["parameters"], one["size"]) == (1_000_010, 2_000_040)


@pytest.mark.parametrize(
    ("query", "param"),
    [({"words": "x" * 201}, "words"), ({"format": "bin"}, "format"), ({"sort": "x"}, "sort")],
)
async def test_a_search_that_is_none_names_the_field(
    query: dict[str, str], param: str, running: Running, stand: StandIn
) -> None:
    answer = await searched(running, **query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not stand.asked
    who = await running.client.get("/v1/admin/hub/search", headers=USER)
    assert who.status_code == 403


async def test_a_hub_that_is_away_says_so(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(
        config(tmp_path, keys=KEYS), hub=HubConfig(endpoint="http://127.0.0.1:9")
    )
    async with serving(settings, tmp_path) as running:
        answer = await searched(running, words="x")
    assert answer.status_code == 503
    assert "can't reach http://127.0.0.1:9" in answer.json()["error"]["message"]
