"""Boxes that join a server by themselves: processes as users start them."""

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.served import Served, events, scripted, served

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
ADMIN, USER = {"x-api-key": "the-administrators"}, {"x-api-key": "a-users"}
NUMBERS = itertools.count()
DOOR_KEYS = [{"key": ADMIN["x-api-key"], "role": "admin"}, {"key": USER["x-api-key"]}]

Begin = Callable[..., Served]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a server in a folder of its own."""
    with ExitStack() as stack:

        def started(name: str, config: dict[str, Any], *arguments: str, **options: Any) -> Served:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            models = [
                {**scripted(folder, *one), "preload": True} for one in config.get("scripts", ())
            ]
            rest = {key: value for key, value in config.items() if key != "scripts"}
            whole = {"hub": {"cached_models": False}, **rest, "models": models}
            return stack.enter_context(served(folder, whole, *arguments, **options))

        yield started


def box(begin: Begin, door: Served, name: str, *arguments: str, **join: Any) -> Served:
    """One with a model, which joins."""
    config = {
        "scripts": [("shared", f"From {name}.")],
        "keys": [{"key": f"of-{name}"}],
        "join": {"lease": 2.0, **join},
    }
    keyed = ("--join", door.url, "--join-key", ADMIN["x-api-key"])
    return begin(name, config, *keyed, *arguments)


def replicas(door: Served) -> dict[str, list[dict[str, Any]]]:
    listed = door.client.get("/v1/upstreams", headers=ADMIN).json()
    return {one["name"]: one["replicas"] for one in listed}


def until(found: Callable[[], bool]) -> None:
    """It becomes so; the test's own time limit ends what never does."""
    while not found():
        time.sleep(0.01)  # a core that asks without an end keeps the servers from it


def ask(door: Served, model: str = "shared", key: dict[str, str] = USER) -> str:
    """Of a conversation of its own: the same one would return to the same box."""
    body = {"model": model, "messages": [{"role": "user", "content": f"Hello {next(NUMBERS)}!"}]}
    answer = door.client.post(CHAT, json=body, headers=key)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def models(door: Served) -> set[str]:
    cards = door.client.get("/v1/models", headers=USER).json()["data"]
    return {card["id"] for card in cards}


@pytest.mark.slow
def test_a_killed_box_is_gone_when_its_lease_ends_and_nobody_notices(begin: Begin) -> None:
    door = begin("door", {"keys": DOOR_KEYS, "scripts": [("own", "From the door.")]})
    one, two = (box(begin, door, name) for name in ("one", "two"))
    until(lambda: len(replicas(door).get("joined", ())) == 2 and "shared" in models(door))
    servers = replicas(door)["joined"]
    assert {one.url + "/v1", two.url + "/v1"} == {server["url"] for server in servers}
    assert all(0 < server["lease"] <= 2 for server in servers)
    until(lambda: {ask(door), ask(door)} == {"From one.", "From two."})

    answers: list[str] = []

    def keep_asking() -> None:
        while "stop" not in answers:
            answers.append(ask(door))

    client = Thread(target=keep_asking)
    client.start()
    one.stop(signal.SIGKILL)
    until(lambda: len(replicas(door)["joined"]) == 1)
    before = len(answers)
    until(lambda: len(answers) > before + 10)
    answers.append("stop")
    client.join()
    assert set(answers[before + 1 : -2]) <= {"From two.", "stop"}
    assert Counter(answers)["From two."] > 10, "every answer was a 200"
    door.log.wait_for("lease ended", lambda line: line["url"] == one.url + "/v1")


@pytest.mark.slow
def test_a_box_that_stops_withdraws_and_finishes_its_answers(begin: Begin) -> None:
    door = begin("door", {"keys": DOOR_KEYS, "scripts": [("own", "Mine.")]})
    folder = door.folder.parent / "slow"
    folder.mkdir()
    config = {
        "models": [scripted(folder, "slow", "word " * 30, tokens_per_second=20)],
        "join": {"lease": 600.0, "prefix": "box/"},
    }
    keyed = ("--join", door.url, "--join-key", ADMIN["x-api-key"])
    with served(folder, config, *keyed) as leaving:
        until(lambda: "box/slow" in models(door))
        body = {"model": "box/slow", "messages": HELLO, "stream": True}
        with door.client.stream("POST", CHAT, json=body, headers=USER) as answer:
            lines = answer.iter_lines()
            next(lines)
            leaving.signal(signal.SIGTERM)
            until(lambda: "joined" not in replicas(door))
            text = "\n".join(lines)
        deltas = [event["choices"][0]["delta"] for event in events(text) if event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "word " * 30
        assert "[DONE]" in text
    until(lambda: "box/slow" not in models(door))
    refused = door.client.post(CHAT, json=body, headers=USER)
    assert refused.status_code == 404
    assert ask(door, "own") == "Mine."


def test_the_door_asks_a_box_with_a_key_of_this_lease(begin: Begin) -> None:
    """The box lets nobody in who has no key of its own, and nobody's key is in a log."""
    door = begin("door", {"keys": DOOR_KEYS, "scripts": [("own", "Mine.")]})
    joined = box(begin, door, "one")
    until(lambda: "shared" in models(door))
    assert ask(door) == "From one."
    assert joined.client.get("/v1/models").status_code == 401
    asked = joined.log.wait_for("request", lambda line: line.get("model") == "shared")
    assert asked["key"].startswith("joined http")
    shown = door.client.get("/v1/admin/settings", headers=ADMIN).text
    assert "rh-" not in shown + door.log.text + joined.log.text


def test_a_box_comes_back_to_a_door_that_was_started_again(begin: Begin) -> None:
    config = {"keys": DOOR_KEYS, "scripts": [("own", "Mine.")]}
    door = begin("door", config)
    port = door.port
    joined = box(begin, door, "one", lease=1.0)
    until(lambda: "shared" in models(door))
    door.stop()
    joined.log.wait_for("not joined")
    again = begin("door", {**config, "server": {"port": port}})
    until(lambda: "shared" in models(again))
    assert ask(again) == "From one."


def test_who_may_announce_what(begin: Begin) -> None:
    door = begin(
        "door",
        {
            "keys": DOOR_KEYS,
            "scripts": [("own", "Mine.")],
            "upstreams": [{"name": "taken", "urls": ["http://127.0.0.1:9"]}],
        },
    )
    url = "http://127.0.0.1:9"
    post = door.client.post
    assert post("/v1/upstreams", json={"url": url}).status_code == 401
    assert post("/v1/upstreams", json={"url": url}, headers=USER).status_code == 403
    for body, param in (
        ({"url": "file:///etc/passwd"}, "url"),
        ({}, "url"),
        ({"url": url, "name": "taken"}, "name"),
        ({"url": url, "key": "env:HOME"}, "key"),
        ({"url": url, "lease": 0}, "lease"),
    ):
        refused = post("/v1/upstreams", json=body, headers=ADMIN)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    taken = post("/v1/upstreams", json={"port": 9, "lease": 600}, headers=ADMIN).json()
    assert taken == {"name": "joined", "url": f"{url}/v1", "prefix": "", "lease": 600.0}
    assert post("/v1/admin/reload", headers=ADMIN).status_code == 200
    assert [one["url"] for one in replicas(door)["joined"]] == [f"{url}/v1"], "it outlives a reload"
    gone = {"name": "joined", "url": f"{url}/v1"}
    assert door.client.delete("/v1/upstreams", params=gone, headers=USER).status_code == 403
    assert door.client.delete("/v1/upstreams", params=gone, headers=ADMIN).status_code == 200
    assert door.client.delete("/v1/upstreams", params=gone, headers=ADMIN).status_code == 404
    assert "joined" not in replicas(door)
