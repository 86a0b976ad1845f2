"""The console's stream on a real server: a snapshot, changes, going on, and who hears of what."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from backends.contract.protocol import SlotState
from backends.machine.supervision import Supervisor
from config.settings import KeyConfig, ServerConfig
from gateway.http.feed import Feed, ModelRemoved
from gateway.http.gauges import kept_tokens
from gateway.http.publishing import poll_forever, progress_of
from gateway.keys.access import ADMIN, Access
from gateway.reconfiguring.reloading import ConfigSource
from gateway.registry import ModelStatus
from gateway.registry.overview import ModelCost, Parts
from tests.gateway.http.serving import HELLO, Running, config, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

KEYS = (
    KeyConfig(key="admin", role="admin", label="the house"),
    KeyConfig(key="user"),
    KeyConfig(key="one", models=("scripted",)),
)
BOSS, USER, ONE = ({"x-api-key": key} for key in ("admin", "user", "one"))
URL = "/v1/admin/events"


class SentEvent(msgspec.Struct):
    """One event."""

    id: str
    event: str
    data: Any


async def read(lines: AsyncIterator[str]) -> AsyncIterator[SentEvent]:
    fields: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif "data" in fields:
            yield SentEvent(fields["id"], fields["event"], msgspec.json.decode(fields["data"]))
            fields = {}


@asynccontextmanager
async def listening(running: Running, **headers: str) -> AsyncIterator[AsyncIterator[SentEvent]]:
    with anyio.fail_after(HANG):
        async with running.client.stream("GET", URL, headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield read(answer.aiter_lines())


async def until(news: AsyncIterator[SentEvent], event: str, **wanted: object) -> SentEvent:
    """The next event of that name and with those fields."""
    while True:
        one = await anext(news)
        if one.event == event and all(one.data[name] == value for name, value in wanted.items()):
            return one


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(config(tmp_path, keys=KEYS), tmp_path) as server:
        yield server


def names(models: list[dict[str, Any]]) -> set[str]:
    return {model["id"] for model in models}


async def test_a_snapshot_comes_first_and_then_each_change(running: Running) -> None:
    async with listening(running, **BOSS) as news:
        first = await anext(news)
        assert first.event == "snapshot"
        assert first.data["me"]["label"] == "the house"
        assert names(first.data["models"]) == {"roundhouse-tiny", "scripted"}
        assert first.data["requests"] == []
        (cpu,) = [one for one in first.data["gauges"]["devices"] if one["device"] == "cpu"]
        assert cpu["promised"] == 0 < cpu["budget"] <= cpu["total"]
        assert cpu["models"] == []

        await running.registry.load("roundhouse-tiny")
        loaded = (await until(news, "model", id="roundhouse-tiny", state="loaded")).data
        assert loaded["cost"] == {"cpu": sum(loaded["parts"].values())}
        assert loaded["parts"]["weights"] > 0
        assert loaded["fit"]["verdict"] == "loaded"
        assert loaded["load_seconds"] > 0
        gauges = (await until(news, "gauges", in_use=0)).data
        while not (held := gauges["devices"][0]["models"]):
            gauges = (await until(news, "gauges")).data
        (one,) = held
        assert one["id"] == "roundhouse-tiny"
        assert one["bytes"] == sum(one["parts"].values()) == gauges["devices"][0]["promised"]
        await running.registry.unload("roundhouse-tiny")
        await until(news, "model", id="roundhouse-tiny", state="unloaded")


async def test_what_is_kept_of_conversations_is_reported(running: Running) -> None:
    chat = {"model": "roundhouse-tiny", "messages": HELLO, "max_tokens": 4}
    answer = await running.client.post("/v1/chat/completions", json=chat, headers=USER)
    used = answer.json()["usage"]
    async with listening(running, **BOSS) as news:
        gauges = (await anext(news)).data["gauges"]
        while (kept := gauges["devices"][0]["models"][0]["kept_tokens"]) is None:
            gauges = (await until(news, "gauges")).data  # the engine is asked again
        assert 0 < kept <= used["total_tokens"]


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        ((), None),
        ((SlotState(id=0, cells=7), SlotState(id=1, cells=5, task=3)), 7),
        ((SlotState(id=0, cells=7), SlotState(id=1, cells=5)), 12),
        ((SlotState(id=0, cells=None),), None),
    ],
)
def test_what_an_answer_uses_is_not_kept(states: tuple[SlotState, ...], kept: int | None) -> None:
    assert kept_tokens(states) == kept


async def test_a_request_is_reported_from_beginning_to_end(running: Running) -> None:
    async with listening(running, **BOSS) as news:
        await anext(news)
        chat = {"model": "scripted", "messages": HELLO}
        await running.client.post("/v1/chat/completions", json=chat, headers=USER)
        done = (await until(news, "request", state="done")).data
        assert (done["key"], done["outcome"], done["model"]) == ("key 2", "ok", "scripted")
        assert done["completion_tokens"] > 0
        assert "owner" not in done


async def test_who_comes_again_is_sent_what_was_missed(running: Running) -> None:
    async with listening(running, **BOSS) as news:
        last = (await until(news, "gauges")).id
    await running.registry.load("scripted")
    async with listening(running, **BOSS, **{"last-event-id": last}) as news:
        assert (await anext(news)).event != "snapshot"
        await until(news, "model", id="scripted", state="loaded")


@pytest.mark.parametrize("last", ["", "x", "abcd-ef-1", "1", "-" * 99, "9" * 500])
async def test_an_id_of_nowhere_begins_anew(last: str, running: Running) -> None:
    async with listening(running, **BOSS, **{"last-event-id": last}) as news:
        assert (await anext(news)).event == "snapshot"


async def test_an_id_is_of_no_use_with_another_key(running: Running) -> None:
    async with listening(running, **BOSS) as news:
        last = (await anext(news)).id
    async with listening(running, **USER, **{"last-event-id": last}) as news:
        assert (await anext(news)).event == "snapshot"


async def test_a_user_hears_of_his_models_and_requests_only(running: Running) -> None:
    hidden = ("roundhouse-tiny", "org/tiny", "the house", "secret-")
    async with listening(running, **ONE) as news:
        heard = [await anext(news)]
        snapshot = heard[0].data
        assert names(snapshot["models"]) == {"scripted"}
        assert (snapshot["gauges"]["devices"], snapshot["history"]["times"]) == ([], [])
        for key, model in ((BOSS, "roundhouse-tiny"), (USER, "scripted"), (ONE, "scripted")):
            chat = {"model": model, "messages": HELLO, "max_tokens": 4}
            headers = {**key, "x-request-id": f"secret-{key['x-api-key']}"}
            if key is ONE:
                headers["x-request-id"] = "mine"
            answer = await running.client.post("/v1/chat/completions", json=chat, headers=headers)
            assert answer.status_code == 200
        while heard[-1].event != "request" or heard[-1].data["state"] != "done":
            heard.append(await anext(news))
        requests = [one.data for one in heard if one.event == "request"]
        assert {one["request"] for one in requests} == {"mine"}
        for one in heard:
            text = msgspec.json.encode(one.data).decode()
            assert not [word for word in hidden if word in text], one
            if one.event == "model":
                assert {one.data[name] for name in ("memory", "fit", "file")} == {None}


async def test_models_are_listed_as_they_are_reported(running: Running) -> None:
    async def listed(key: dict[str, str]) -> list[dict[str, Any]]:
        answer = await running.client.get("/v1/admin/models", headers=key)
        found: list[dict[str, Any]] = answer.json()["models"]
        return found

    tiny = next(one for one in await listed(BOSS) if one["id"] == "roundhouse-tiny")
    assert (tiny["state"], tiny["backend"], tiny["default"]) == ("unloaded", "llamacpp", True)
    assert tiny["fit"] == {"verdict": "fits", "unload": [], "why": None}
    assert tiny["memory"].startswith("needs")
    assert tiny["file"].endswith(".gguf")
    assert names(await listed(ONE)) == {"scripted"}
    for one in await listed(USER):
        assert one["file"] is one["memory"] is one["fit"] is one["cost"] is None
    assert (await running.client.get("/v1/admin/models")).status_code == 401


async def test_memory_is_for_administrators(running: Running) -> None:
    found = (await running.client.get("/v1/admin/memory", headers=BOSS)).json()
    assert {one["device"] for one in found["gauges"]["devices"]} >= {"cpu"}
    assert found["history"]["every"] == 10.0
    assert (await running.client.get("/v1/admin/memory", headers=USER)).status_code == 403


async def test_a_load_tells_how_far_it_is(tmp_path: Path) -> None:
    async with serving(config(tmp_path, load_seconds=2 * HANG), tmp_path) as running:
        async with listening(running) as news:
            await anext(news)
            async with running.registry.loading("scripted"):
                loading = (await until(news, "model", id="scripted", state="loading")).data
            progress = loading["progress"]
            assert 0 <= progress["done"] <= progress["total"]
            assert progress["seconds_left"] is None  # it was never loaded before
            await running.registry.unload("scripted")
            assert (await until(news, "model", state="unloaded")).data["progress"] is None


@pytest.mark.parametrize(("last", "left"), [(None, None), (8.0, 5.0), (2.0, 0.0)])
def test_what_is_left_of_a_load_is_reported_from_the_last_one(
    last: float | None, left: float | None
) -> None:
    cost = ModelCost(
        devices={},
        parts=Parts(weights=0, cache=0, projector=0, engine=0),
        measured=False,
        load_seconds=last,
        loading_for=3.0,
        loaded_for=None,
        slots=1,
        pinned=False,
        ttl=-1.0,
    )
    progress = progress_of(ModelStatus(id="a", state="loading"), cost, 100.0)
    assert progress is not None
    assert (progress.began_at, progress.seconds_left) == (97.0, left)
    assert progress_of(ModelStatus(id="a", state="loaded"), cost, 100.0) is None


async def test_a_key_that_is_taken_away_hears_no_more(tmp_path: Path) -> None:
    before = config(tmp_path, keys=KEYS)
    later = [msgspec.structs.replace(before, keys=KEYS[:1])]
    source = ConfigSource(lambda: later[0])
    async with serving(before, tmp_path, source=source) as running:
        async with listening(running, **USER) as news:
            await anext(news)
            assert (await running.client.post("/v1/admin/reload", headers=BOSS)).status_code == 200
            assert {one.event async for one in news} <= {"gauges", "model"}


async def test_who_may_less_begins_anew_with_that(tmp_path: Path) -> None:
    before = config(tmp_path, keys=KEYS)
    limited = (KEYS[0], KeyConfig(key="user", models=("scripted",)))
    source = ConfigSource(lambda: msgspec.structs.replace(before, keys=limited))
    async with serving(before, tmp_path, source=source) as running:
        async with listening(running, **USER) as news:
            assert len((await anext(news)).data["models"]) == 2
            await running.client.post("/v1/admin/reload", headers=BOSS)
            assert names((await until(news, "snapshot")).data["models"]) == {"scripted"}


async def test_a_stop_waits_for_no_reader(tmp_path: Path) -> None:
    patient = ServerConfig(shutdown_grace=HANG * 10)
    async with serving(config(tmp_path, server=patient), tmp_path) as running:
        async with listening(running) as news:
            await anext(news)
            running.server.should_exit = True
            assert {one.event async for one in news} <= {"gauges", "model"}


async def test_a_page_elsewhere_may_not_listen(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        answer = await running.client.get(URL, headers={"host": "evil.example"})
        assert answer.status_code == 403


async def test_a_model_that_fails_is_reported_without_its_place_to_users(tmp_path: Path) -> None:
    known = config(tmp_path, keys=KEYS)
    broken = tmp_path / "torn.gguf"
    broken.write_bytes(b"GGUF")
    settings = msgspec.structs.replace(known, model_dirs=(str(tmp_path),))
    async with serving(settings, tmp_path) as running:
        for key in (BOSS, USER):
            rows = (await running.client.get("/v1/admin/models", headers=key)).json()["models"]
            torn = next(one for one in rows if one["id"] == "torn")
            assert torn["state"] == "failed"
            assert torn["fit"] == (
                None if key is USER else {"verdict": "unknown", "unload": [], "why": None}
            )
            assert key is BOSS or str(tmp_path) not in msgspec.json.encode(torn).decode()


async def test_what_goes_wrong_behind_the_stream_stops_nothing() -> None:
    looks: list[int] = []

    async def look() -> None:
        looks.append(len(looks))
        if len(looks) < 3:
            raise OSError("no such device")

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Supervisor(rest=0.0).keep, "console", poll_forever, look, 0.0)
            while len(looks) < 5:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------- the feed


def test_what_is_kept_has_a_bound_and_its_end_is_noticed() -> None:
    feed = Feed(most=3)
    for number in range(5):
        feed.add(ModelRemoved(str(number)))
    assert [number for number, _ in feed.since(2) or ()] == [3, 4, 5]
    assert [number for number, _ in feed.since(4) or ()] == [5]
    assert feed.since(5) == ()
    assert feed.since(1) is None  # the second is gone
    assert feed.since(6) is None  # nobody was told of it


def test_after_an_interruption_everybody_begins_anew() -> None:
    feed = Feed()
    feed.add(ModelRemoved("a"))
    feed.interrupt()
    assert feed.since(1) is None
    feed.add(ModelRemoved("b"))
    assert feed.since(1) is None
    assert [number for number, _ in feed.since(2) or ()] == [3]


def test_an_id_holds_for_one_server_and_one_key() -> None:
    feed, user = Feed(), Access(owner="a")
    assert feed.number(feed.id(7, user), user) == 7
    assert feed.number(feed.id(7, user), ADMIN) is None
    assert feed.number(feed.id(7, user), Access(owner="b")) is None
    assert Feed().number(feed.id(7, user), user) is None
    head = feed.id(7, user).rpartition("-")[0]
    assert feed.number(f"{head}-²", user) is None
