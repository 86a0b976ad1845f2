"""What goes on without a request of its own: answers in the background, streams that outlive their
connection, idle models, a file that is watched; and the ends that others put to an answer.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hang import HANG
from tests.served import Serve, Served, events, scripted, served

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
LONG = "The engine turns. " * 5_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lasting")
    config = {
        "models": [
            scripted(folder, "short", "Hello from the script.", tokens_per_second=40),
            scripted(folder, "long", LONG, tokens_per_second=40),
            {**scripted(folder, "idle"), "ttl": 0.2},
        ]
    }
    with served(folder, config) as server:
        yield server


def until(server: Served, path: str, is_there: Callable[[Any], bool]) -> Any:
    """What `path` says, asked until it is so."""
    end = time.monotonic() + HANG
    while not is_there(found := server.client.get(path).json()):
        assert time.monotonic() < end, found
    return found


def test_an_answer_in_the_background_is_polled_and_read_from_any_event(server: Served) -> None:
    body = {"model": "short", "input": "Hello!", "background": True, "stream": True}
    with server.client.stream("POST", "/v1/responses", json=body) as begun:
        first = json.loads(next(line for line in begun.iter_lines() if line[:5] == "data:")[5:])
    path = f"/v1/responses/{first['response']['id']}"
    rest = events(server.client.get(f"{path}?stream=true&starting_after=2").text)
    assert rest[0]["sequence_number"] == 3
    assert rest[-1]["type"] == "response.completed"
    done = until(server, path, lambda found: found["status"] == "completed")
    assert done["output"][-1]["content"][0]["text"] == "Hello from the script."
    assert server.log.wait_for("answered")["api"] == "responses"


def test_a_conversation_s_stream_outlives_its_connection(server: Served) -> None:
    named = {"x-conversation-id": "talk"}
    body = {"model": "short", "messages": HELLO, "stream": True}
    with server.client.stream("POST", CHAT, json=body, headers=named) as begun:
        assert next(begun.iter_lines()).startswith("data:")
    again = server.client.get("/v1/stream?conv_id=talk").text
    assert again.endswith("data: [DONE]\n\n")
    deltas = [event["choices"][0]["delta"] for event in events(again) if event["choices"]]
    said = "".join(delta.get("content") or "" for delta in deltas)
    assert said == "Hello from the script."


def test_an_administrator_ends_an_answer_and_its_client_is_told(server: Served) -> None:
    body = {"model": "long", "messages": HELLO, "stream": True}
    with server.client.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        listed = server.client.get("/v1/admin/requests").json()["requests"]
        (number,) = [one["number"] for one in listed if one["state"] != "done"]
        server.client.post(f"/v1/admin/requests/{number}/cancel").raise_for_status()
        assert any('"code":"cancelled"' in line for line in lines)
    assert server.log.wait_for("audit", lambda record: record["act"] == "cancel")["model"] == "long"


def test_a_kobold_client_aborts(server: Served) -> None:
    body = {"model": "long", "prompt": "Hello", "genkey": "mine", "max_length": 4_000}
    with server.client.stream("POST", "/api/extra/generate/stream", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: message"
        server.client.post("/api/extra/abort", json={"genkey": "mine"}).raise_for_status()
        assert '"finish_reason":"length"' in [line for line in lines if line[:5] == "data:"][-1]


def test_an_idle_model_leaves(server: Served) -> None:
    server.client.post(CHAT, json={"model": "idle", "messages": HELLO}).raise_for_status()
    gone = server.log.wait_for("model unloaded", lambda record: record["model"] == "idle")
    assert gone["why"] == "idle"


def test_a_file_that_is_watched_is_read_again(serve: Serve, tmp_path: Path) -> None:
    config: dict[str, Any] = {"server": {"port": 0, "watch_config": True}}
    server = serve({**config, "models": [scripted(tmp_path, "one")]})
    changed = {**config, "models": [scripted(tmp_path, "two")]}
    (tmp_path / "roundhouse.yaml").write_text(json.dumps(changed))
    assert server.log.wait_for("configuration reloaded")["added"] == ["two"]
    assert server.client.post(CHAT, json={"model": "two", "messages": HELLO}).is_success


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        ("", "it is empty"),
        pytest.param("# all of it\n# is a comment\n", "it is empty", marks=pytest.mark.slow),
        pytest.param(
            'server: {"watch_config": false}\n',
            "every client would be an administrator",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_file_that_is_cut_short_changes_nothing_and_is_watched_all_the_same(
    serve: Serve, tmp_path: Path, cut: str, reason: str
) -> None:
    config: dict[str, Any] = {"server": {"port": 0, "watch_config": True}, "keys": [{"key": "k"}]}
    server = serve({**config, "models": [scripted(tmp_path, "one")]})
    file = tmp_path / "roundhouse.yaml"
    file.write_text(cut)
    assert reason in server.log.wait_for("reload failed")["reason"]
    server.signal(signal.SIGHUP)
    server.log.wait_for("reload failed", lambda one: one != server.log.records("reload failed")[0])
    assert server.client.get("/v1/models").status_code == 401
    whole = {**config, "models": [scripted(tmp_path, "two")]}
    file.write_text(json.dumps(whole))
    assert server.log.wait_for("configuration reloaded")["added"] == ["two"]
    answer = server.client.post(
        CHAT, json={"model": "two", "messages": HELLO}, headers={"authorization": "Bearer k"}
    )
    assert answer.is_success
