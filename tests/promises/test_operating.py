"""What operators rely on, on a process as they start it: what is kept outlives a restart, the
configuration is read again under streams, APIs can be switched off, and what is counted is told.
"""

import gzip
import http.client
import json
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from config.settings import Config
from tests.hang import HANG
from tests.served import ROOT, Serve, Served, events, scripted, served

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with nothing configured, which is only asked."""
    with served(tmp_path_factory.mktemp("plain")) as server:
        yield server


def test_responses_and_conversations_outlive_a_restart(serve: Serve, tmp_path: Path) -> None:
    config = {"models": [scripted(tmp_path, "demo")], "store": {"path": "kept.sqlite"}}
    first = serve(config)
    made = first.client.post("/v1/responses", json={"input": "Hello!"}).json()
    conversation = first.client.post("/v1/conversations", json={}).json()["id"]
    body = {"input": "Hello!", "conversation": conversation}
    first.client.post("/v1/responses", json=body).raise_for_status()
    assert first.stop() == 0
    second = serve(config)
    assert second.client.get(f"/v1/responses/{made['id']}").json()["output"] == made["output"]
    items = second.client.get(f"/v1/conversations/{conversation}/items").json()["data"]
    assert [item["role"] for item in items if item["type"] == "message"] != []
    more = {"input": "And?", "previous_response_id": made["id"]}
    assert second.client.post("/v1/responses", json=more).json()["status"] == "completed"


@pytest.mark.parametrize("way", ["signal", pytest.param("route", marks=pytest.mark.slow)])
def test_the_configuration_is_read_again_under_a_stream(
    way: str, serve: Serve, tmp_path: Path
) -> None:
    slow = scripted(tmp_path, "slow", "word " * 40, tokens_per_second=100)
    server = serve({"models": [slow]})
    changed = {"server": {"port": 0}, "models": [slow, scripted(tmp_path, "more")]}
    body = {"model": "slow", "messages": HELLO, "stream": True}
    with server.client.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        (tmp_path / "roundhouse.yaml").write_text(json.dumps(changed))
        if way == "signal":
            server.signal(signal.SIGHUP)
            report = server.log.wait_for("configuration reloaded")
        else:
            report = server.client.post("/v1/admin/reload").raise_for_status().json()["models"]
        assert report["added"] == ["more"]
        text = "\n".join([first, *lines])
    deltas = [event["choices"][0]["delta"] for event in events(text) if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "word " * 40
    assert server.client.post(CHAT, json={"model": "more", "messages": HELLO}).is_success


def test_a_configuration_with_a_mistake_changes_nothing_and_says_where(
    serve: Serve, tmp_path: Path
) -> None:
    demo = scripted(tmp_path, "demo")
    server = serve({"models": [demo]})
    (tmp_path / "roundhouse.yaml").write_text("models:\n  - nmae: x\n")
    answer = server.client.post("/v1/admin/reload")
    assert answer.status_code == 400
    assert "nmae" in answer.text
    assert server.client.post(CHAT, json={"model": "demo", "messages": HELLO}).is_success


def test_what_is_counted_is_told(serve: Serve, tmp_path: Path) -> None:
    server = serve({"models": [scripted(tmp_path, "demo")]})
    server.client.post(CHAT, json={"model": "demo", "messages": HELLO}).raise_for_status()
    text = server.client.get("/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert any('model="demo"' in line and not line.endswith(" 0") for line in lines)
    assert server.client.get("/health").status_code == 200


def test_what_alerts_wait_for_is_counted_from_the_start(serve: Serve, tmp_path: Path) -> None:
    """A series that begins with its first failure has never increased."""
    server = serve({"models": [scripted(tmp_path, "demo")]})
    lines = server.client.get("/metrics").text.splitlines()
    rules = (ROOT / "deploy" / "alerts.yaml").read_text("utf-8")
    waited = re.findall(r"increase\((\w+)(?:{(.+?)})?\[", rules)
    assert waited
    for name, label in waited:
        series = [line for line in lines if line.startswith(f"{name}{{") and label in line]
        assert series, (name, label)
        assert {line.rpartition(" ")[2] for line in series} == {"0.0"}, series


def test_a_connection_is_kept_between_requests_as_long_as_is_configured(serve: Serve) -> None:
    """Longer than pools of clients keep theirs: what is sent while it ends would be lost."""
    assert Config().server.idle_timeout > 60
    server = serve({"server": {"idle_timeout": 1}})
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG)
    with closing(client):
        client.connect()
        connection = client.sock
        for _ in range(2):
            client.request("GET", "/health")
            answer = client.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            assert client.sock is connection
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("body", "said"),
    [(gzip.compress(b"{}", mtime=0), "compressed (gzip)"), (b"\xef\xbb\xbf{}", "byte order")],
    ids=["gzip", "byte order"],
)
def test_a_body_that_is_not_plain_json_is_told_why(plain: Served, body: bytes, said: str) -> None:
    answer = plain.client.post(CHAT, content=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


APIS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"messages": HELLO}),
    "anthropic": ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    "ollama": ("/api/chat", {"messages": HELLO}),
    "kobold": ("/api/v1/generate", {"prompt": "Hi"}),
}


def test_an_api_that_is_switched_off_is_not_there(serve: Serve, tmp_path: Path) -> None:
    off = {name: False for name in APIS if name != "openai"}
    server = serve({"models": [scripted(tmp_path, "demo")], "apis": off})
    found = {
        name: server.client.post(path, json={"model": "demo", **body}).status_code
        for name, (path, body) in APIS.items()
    }
    assert found == {"openai": 200, **dict.fromkeys(off, 404)}
    paths = server.client.get("/openapi.json").json()["paths"]
    assert "/v1/messages" not in paths
    assert "/v1/chat/completions" in paths
