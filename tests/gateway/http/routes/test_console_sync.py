"""The console's conversations on the server: each key's own, bounded, and never overwritten by a
browser that hasn't seen what is there.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from config.settings import Config, ConsoleConfig, KeyConfig, StoreConfig
from gateway.keys import synced
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio

ONE, TWO, ADMIN = ({"x-api-key": key} for key in ("one", "two", "admin"))
PATH = "/v1/admin/console/conversations"


def settings(folder: Path, *, sync: bool = True) -> Config:
    keys = (KeyConfig(key="one"), KeyConfig(key="two"), KeyConfig(key="admin", role="admin"))
    return msgspec.structs.replace(
        config(folder, keys=keys),
        console=ConsoleConfig(sync=sync),
        store=StoreConfig(path=str(folder / "store.db")),
    )


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(settings(tmp_path), tmp_path) as server:
        yield server


async def put(
    running: Running, name: str, text: str, changed: int | None = None, key: Any = ONE
) -> httpx.Response:
    body = {"title": f"About {name}", "conversation": text, "changed": changed}
    return await running.client.put(f"{PATH}/{name}", json=body, headers=key)


async def kept(running: Running, name: str, text: str, changed: int | None = None) -> int:
    """The number that it has now."""
    answer = await put(running, name, text, changed)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["changed"])


async def listed(running: Running, key: dict[str, str] = ONE) -> list[dict[str, Any]]:
    answer = await running.client.get(PATH, headers=key)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["conversations"]
    return found


async def text_of(running: Running, name: str, key: dict[str, str] = ONE) -> str | None:
    answer = await running.client.get(f"{PATH}/{name}", headers=key)
    return answer.json()["conversation"] if answer.status_code == 200 else None


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["param"]


async def test_what_is_kept_is_there_as_it_was_sent(running: Running) -> None:
    text = '{"title": "\\ud83d", "turns": [ ]} ü \x00'  # no JSON: nobody looks into it
    changed = await kept(running, "a", text)
    assert await text_of(running, "a") == text
    assert await listed(running) == [
        {"id": "a", "title": "About a", "changed": changed, "size": len(text.encode())}
    ]


async def test_each_key_has_its_own(running: Running) -> None:
    changed = await kept(running, "a", "mine")
    for key in (TWO, ADMIN):
        assert await listed(running, key) == []
        assert await text_of(running, "a", key) is None
        gone = await running.client.delete(f"{PATH}/a?changed={changed}", headers=key)
        assert gone.status_code == 404
        assert (await put(running, "a", "theirs", key=key)).status_code == 200
        assert await text_of(running, "a", key) == "theirs"
    assert await text_of(running, "a") == "mine"
    assert (await running.client.get(PATH)).status_code == 401


async def test_an_older_copy_replaces_and_deletes_nothing(running: Running) -> None:
    first = await kept(running, "a", "begun")
    second = await kept(running, "a", "begun, gone on", first)
    assert second > first
    for older in (first, None, 10**30):
        assert refusal(await put(running, "a", "begun, otherwise", older)) == (409, "changed")
    gone = await running.client.delete(f"{PATH}/a?changed={first}", headers=ONE)
    assert refusal(gone) == (409, "changed")
    assert await text_of(running, "a") == "begun, gone on"


async def test_a_deletion_is_told_and_what_was_changed_elsewhere_comes_back(
    running: Running,
) -> None:
    first = await kept(running, "a", "begun")
    gone = await running.client.delete(f"{PATH}/a?changed={first}", headers=ONE)
    assert gone.status_code == 200
    (entry,) = await listed(running)
    assert (entry["size"], entry["title"]) == (0, "")
    assert entry["changed"] > first
    assert await text_of(running, "a") is None
    again = await running.client.delete(f"{PATH}/a?changed={entry['changed']}", headers=ONE)
    assert refusal(again) == (404, "id")
    assert await kept(running, "a", "begun, gone on offline", first) > entry["changed"]
    assert await text_of(running, "a") == "begun, gone on offline"


async def test_it_is_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    large = await put(running, "a", "ü" * (synced.LARGEST // 2 + 1))
    assert refusal(large) == (413, "conversation")
    monkeypatch.setattr(synced, "MOST_BYTES", 100)
    monkeypatch.setattr(synced, "MOST", 3)
    first = await kept(running, "a", "x" * 60)
    assert refusal(await put(running, "b", "x" * 41)) == (413, "conversation")
    assert (await put(running, "b", "x" * 41, key=TWO)).status_code == 200
    await kept(running, "a", "x" * 98, first)  # in its own place
    for name in "bc":
        await kept(running, name, "x")
    assert refusal(await put(running, "d", "")) == (400, "conversation")
    monkeypatch.setattr(synced, "MOST_BYTES", 101)
    assert refusal(await put(running, "d", "x")) == (400, "id")
    assert refusal(await put(running, "x" * 65, "x")) == (400, "id")


async def test_old_deletions_are_forgotten(running: Running) -> None:
    for number in range(505):
        changed = await kept(running, f"n{number}", "x")
        await running.client.delete(f"{PATH}/n{number}?changed={changed}", headers=ONE)
    await kept(running, "a", "there")
    found = await listed(running)
    assert (len(found), found[0]["id"]) == (501, "a")
    assert await listed(running, TWO) == []


async def test_it_is_there_after_a_restart_and_not_without_the_option(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), tmp_path) as running:
        await kept(running, "a", "there")
        assert (await running.client.get("/v1/admin/me", headers=ONE)).json()["sync"] is True
    async with serving(settings(tmp_path, sync=False), tmp_path) as running:
        assert (await running.client.get("/v1/admin/me", headers=ONE)).json()["sync"] is False
        assert (await running.client.get(PATH, headers=ONE)).status_code == 404
        assert (await put(running, "a", "more")).status_code == 404
    async with serving(settings(tmp_path), tmp_path) as running:
        assert await text_of(running, "a") == "there"
