"""The log that an operator reads: one line of JSON for each request, by the id that its client has;
who did what; and no word of what was written.
"""

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hang import HANG
from tests.served import Serve, Served, scripted, served

CHAT = "/v1/chat/completions"
SECRET = "a word that nobody else may read"
HELLO: list[Any] = [{"role": "user", "content": SECRET}]
ADMIN, USER = "the-administrators-key", "a-users-key"


def key(value: str) -> dict[str, str]:
    return {"authorization": f"Bearer {value}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("log")
    config = {
        "keys": [
            {"key": ADMIN, "role": "admin", "label": "laptop"},
            {"key": USER, "label": "phone"},
        ],
        "models": [{**scripted(folder, "demo", SECRET), "aliases": ["gpt"]}],
    }
    with served(folder, config) as server:
        yield server
        assert SECRET not in server.log.text
        assert ADMIN not in server.log.text
        assert USER not in server.log.text


def line(server: Served, request: str) -> dict[str, Any]:
    def fits(record: dict[str, Any]) -> bool:
        return (record["event"], record.get("request")) == ("request", request)

    return server.log.wait_for("request", fits)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_one_line_with_the_id_that_its_client_has(
    stream: bool, server: Served
) -> None:
    body = {"model": "gpt", "messages": HELLO, "stream": stream}
    answer = server.client.post(CHAT, json=body, headers=key(USER))
    found = line(server, answer.headers["x-request-id"])
    told = {name: found[name] for name in ("key", "client", "method", "route", "status")}
    assert told == {
        "key": "phone",
        "client": "127.0.0.1",
        "method": "POST",
        "route": CHAT,
        "status": 200,
    }
    assert (found["asked"], found["model"], found["outcome"]) == ("gpt", "demo", "ok")
    assert found["completion_tokens"] == len(SECRET) + 1
    lines = [one for one in server.log.records() if one.get("request") == found["request"]]
    assert [one["event"] for one in lines if one["event"] != "audit"] == ["request"]


def test_what_is_not_applied_is_in_the_line(server: Served) -> None:
    tools = [{"type": "web_search_20260318", "name": "web_search"}]
    body = {"model": "demo", "max_tokens": 4, "messages": HELLO, "tools": tools}
    answer = server.client.post("/v1/messages", json=body, headers=key(USER))
    said = answer.headers["x-roundhouse-ignored"]
    assert said.startswith("tools[0].web_search_20260318")
    assert line(server, answer.headers["x-request-id"])["ignored"] == said


@pytest.mark.parametrize(
    ("path", "content", "status", "outcome"),
    [
        (CHAT, "{", 400, "invalid_request_error"),
        (CHAT, '{"messages": 1}', 400, "invalid_request_error"),
        ("/v1/messages", "{}", 400, "invalid_request_error"),
        ("/api/chat", '{"model": 1}', 400, "invalid_request_error"),
        (CHAT, json.dumps({"model": "nobody", "messages": HELLO}), 404, "model_not_found"),
        ("/v1/model/load", '{"model_name": "demo"}', 403, "permission_denied"),
    ],
)
def test_an_error_is_a_line_and_has_the_id_of_the_log(
    path: str, content: str, status: int, outcome: str, server: Served
) -> None:
    headers = {**key(USER), "content-type": "application/json", "x-request-id": "client's own"}
    answer = server.client.post(path, content=content, headers=headers)
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, "client's own")
    answer = server.client.post(path, content=content, headers={**headers, "x-request-id": ""})
    found = line(server, answer.headers["x-request-id"])
    assert (found["route"], found["status"], found["key"]) == (path, status, "phone")
    assert found["outcome"] == outcome
    numbers = server.client.get("/metrics", headers=key(ADMIN)).text
    assert f'http_requests_total{{method="POST",route="{path}",status="{status}"}}' in numbers


def test_every_answer_has_one_id_and_a_client_s_own_is_kept(server: Served) -> None:
    for path in ("/health", "/v1/models", "/nowhere", "/ui/", "/v1/chat/completions"):
        for own in ({}, {"x-request-id": "mine"}):
            answer = server.client.get(path, headers={**key(USER), **own})
            (given,) = answer.headers.get_list("x-request-id")
            assert not own or given == "mine"


@pytest.mark.parametrize(("method", "status"), [("POST", 404), ("PATCH", 405)])
def test_what_is_no_route_has_its_line(method: str, status: int, server: Served) -> None:
    path = "/v1/nowhere" if status == 404 else CHAT
    answer = server.client.request(method, path, headers=key(USER))
    assert answer.status_code == status
    assert line(server, answer.headers["x-request-id"])["status"] == status


@pytest.mark.parametrize(
    ("body", "reason"),
    [(gzip.compress(b"{}", mtime=0), "compressed"), (b"\xef\xbb\xbf{}", "byte order mark")],
)
def test_what_is_no_json_is_said(body: bytes, reason: str, server: Served) -> None:
    answer = server.client.post(CHAT, content=body, headers=key(USER))
    assert (answer.status_code, reason in answer.text) == (400, True)


def test_what_is_refused_is_logged_in_its_own_measure(server: Served) -> None:
    for _ in range(20):
        assert server.client.post(CHAT, json={}, headers=key("guessed")).status_code == 401
    last = server.client.post(CHAT, json={}, headers=key(USER))
    line(server, last.headers["x-request-id"])
    assert len(server.log.records("request refused")) == 10
    assert {one["reason"] for one in server.log.records("request refused")} == {"key_wrong"}
    assert not [one for one in server.log.records("request") if one.get("status") == 401]


def test_who_does_what_others_notice_is_said(server: Served) -> None:
    post = server.client.post
    acts: tuple[tuple[str, dict[str, Any], str, str | None], ...] = (
        ("/v1/model/load", {"model_name": "gpt"}, "load", "demo"),
        ("/v1/model/unload", {}, "unload", None),
        ("/models/load", {"model": "gpt"}, "load", "demo"),
        ("/models/unload", {"model": "gpt"}, "unload", "demo"),
        ("/api/chat", {"model": "gpt"}, "load", "demo"),
        ("/api/chat", {"model": "gpt", "keep_alive": 0}, "unload", "demo"),
        ("/load_model", {"model": "gpt"}, "load", "demo"),
        ("/v1/admin/reload", {}, "reload", None),
    )
    for path, body, act, model in acts:
        answer = post(path, json=body, headers=key(ADMIN)).raise_for_status()
        request = answer.headers["x-request-id"]
        found = server.log.wait_for("audit", lambda one, request=request: one["request"] == request)  # type: ignore[misc]
        assert (found["act"], found.get("model")) == (act, model)
        assert (found["key"], found["client"]) == ("laptop", "127.0.0.1")


def test_at_debug_each_step_of_a_request_is_a_line(serve: Serve, tmp_path: Path) -> None:
    server = serve({"log": {"level": "debug"}, "models": [scripted(tmp_path, "demo")]})
    answer = server.client.post(CHAT, json={"messages": HELLO})
    found = answer.headers["x-request-id"]
    line(server, found)
    told = [one["event"] for one in server.log.records() if one.get("request") == found]
    assert told[-3:] == ["request begins", "first text", "request"]
    assert "request waits" in told
    server.client.get("/v1/models", headers={"x-request-id": "reads"})
    assert line(server, "reads")["level"] == "debug"
    assert SECRET not in server.log.text


def test_what_libraries_log_is_json_too(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG) as connection:
        connection.sendall(b"This is no HTTP.\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    found = server.log.wait_for("Invalid HTTP request")
    assert (found["level"], found["logger"]) == ("warning", "uvicorn.error")
    assert all(one.startswith("{") for one in server.log.text.splitlines())
