"""Limits of keys, and fair turns among them, on a process as users start it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.hang import HANG
from tests.served import Serve, Served, scripted, served

CHAT, MESSAGES, EMBED = "/v1/chat/completions", "/v1/messages", "/v1/embeddings"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
SLOW = "word " * 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("limits")
    config = {
        "models": [scripted(folder, "quick"), scripted(folder, "slow", SLOW, tokens_per_second=5)],
        "keys": [
            {"key": "free", "role": "admin"},
            {"key": "two-a-minute", "requests_per_minute": 2, "label": "laptop"},
            {"key": "two-for-claude", "requests_per_minute": 2},
            {"key": "two-failing", "requests_per_minute": 2},
            {"key": "one-at-a-time", "parallel": 1},
            {"key": "few-tokens", "tokens_per_minute": 1000, "tokens_per_day": 100_000},
            {"key": "few-a-day", "tokens_per_day": 30},
            {"key": "cancelling", "tokens_per_minute": 1000},
        ],
        "server": {"cors_origins": ["https://page.example"]},
    }
    with served(folder, config) as server:
        for model in ("quick", "slow"):  # no stream begins with a comment on its load
            assert chat(server, "free", model, max_tokens=1).status_code == 200
        yield server


def chat(server: Served, key: str, model: str = "quick", **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": HELLO, **fields}
    return server.client.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"})


def test_requests_beyond_the_limit_are_refused_until_there_is_room(server: Served) -> None:
    first = chat(server, "two-a-minute")
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    streamed = chat(server, "two-a-minute", stream=True)
    assert streamed.headers["x-ratelimit-remaining-requests"] == "0"
    for _ in range(3):
        refused = chat(server, "two-a-minute")
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "requests_per_minute" in error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert chat(server, "free").status_code == 200
    assert "x-ratelimit-limit-requests" not in chat(server, "free").headers
    metrics = server.client.get("/metrics", headers={"x-api-key": "free"}).text
    assert 'roundhouse_key_limited_total{key="laptop"} 3.0' in metrics


def test_anthropics_clients_get_their_own_headers(server: Served) -> None:
    body = {"model": "quick", "max_tokens": 8, "messages": HELLO}
    key = {"x-api-key": "two-for-claude"}
    answers = [server.client.post(MESSAGES, json=body, headers=key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    for answer, left in zip(answers, ("1", "0", "0"), strict=True):
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == left
        assert answer.headers["anthropic-ratelimit-requests-reset"].startswith("20")
    assert answers[2].json()["error"]["type"] == "rate_limit_error"


def test_what_fails_before_the_model_works_costs_nothing(server: Served) -> None:
    for _ in range(5):
        assert chat(server, "two-failing", model="nobody").status_code == 404
        assert chat(server, "two-failing", messages=7).status_code == 400
    assert chat(server, "two-failing").headers["x-ratelimit-remaining-requests"] == "1"


def test_a_key_has_so_many_requests_at_a_time(server: Served) -> None:
    body = {"model": "slow", "messages": HELLO, "stream": True}
    key = {"authorization": "Bearer one-at-a-time", "x-request-id": "the-slow-one"}
    with server.client.stream("POST", CHAT, json=body, headers=key) as answer:
        lines = answer.iter_lines()  # the connection is closed with it
        next(lines)
        refused = chat(server, "one-at-a-time")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert chat(server, "free").status_code == 200
    server.log.wait_for("request", lambda line: line["request"] == "the-slow-one")
    assert chat(server, "one-at-a-time").status_code == 200


def test_tokens_are_charged_as_they_were_used(server: Served) -> None:
    key = "few-tokens"
    first = chat(server, key, max_tokens=100)
    assert first.headers["x-ratelimit-limit-tokens"] == "1000"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) <= 900, "its answer is expected"
    used = first.json()["usage"]["total_tokens"]
    second = chat(server, key, max_tokens=1, messages=[{"role": "user", "content": "a"}])
    assert int(second.headers["x-ratelimit-remaining-tokens"]) == 1000 - used - 1
    used += second.json()["usage"]["total_tokens"]
    long = chat(server, key, max_tokens=1, messages=[{"role": "user", "content": "a" * 4000}])
    assert long.status_code == 429
    assert "tokens_per_minute" in long.json()["error"]["message"]
    assert int(long.headers["x-ratelimit-remaining-tokens"]) == 1000 - used


def test_a_day_s_tokens_end_and_no_client_tries_again_at_once(server: Served) -> None:
    while (answer := chat(server, "few-a-day")).status_code == 200:
        pass
    assert answer.status_code == 429
    assert "tokens_per_day" in answer.json()["error"]["message"]
    if int(answer.headers["retry-after"]) > 60:
        assert answer.headers["x-should-retry"] == "false"


def test_who_leaves_gets_back_what_was_not_used(server: Served) -> None:
    body = {"model": "slow", "messages": HELLO, "stream": True, "max_tokens": 500}
    key = {"authorization": "Bearer cancelling", "x-request-id": "the-one-that-left"}
    with server.client.stream("POST", CHAT, json=body, headers=key) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 500
    server.log.wait_for("request", lambda line: line["request"] == "the-one-that-left")
    left = chat(server, "cancelling", max_tokens=1).headers["x-ratelimit-remaining-tokens"]
    assert int(left) > 900


def test_pages_may_read_what_is_left(server: Served) -> None:
    headers = {"authorization": "Bearer free", "origin": "https://page.example"}
    answer = server.client.get("/v1/models", headers=headers)
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert "x-ratelimit-remaining-tokens" in exposed
    assert "anthropic-ratelimit-tokens-remaining" in exposed


def test_a_key_that_floods_a_model_delays_another_by_little(serve: Serve, tmp_path: Any) -> None:
    """One slot: twenty requests of one key stand in line before one of another."""
    says = [{"when": "Hold", "say": SLOW * 100}, {"say": "one two three"}]
    many: dict[str, Any] = {
        "context_length": 1_000_000,
        "tokens_per_second": 200,
        "max_concurrent": 1,
    }
    model = scripted(tmp_path, "m", lines=says, **many)
    keys = [{"key": key, "label": key} for key in ("holds", "many", "few")]
    server = serve({"models": [model], "keys": [*keys, {"key": "admin", "role": "admin"}]})
    hold = {"model": "m", "messages": [{"role": "user", "content": "Hold"}], "stream": True}

    def in_line(count: int) -> None:
        """Until so many have come, the one that holds the slot among them."""
        found, end = 0, time.monotonic() + HANG
        while found != count:
            listed = server.client.get("/v1/models", headers={"x-api-key": "admin"}).json()["data"]
            found = listed[0]["in_use"] + listed[0]["waiting"]
            assert time.monotonic() < end, found

    with ThreadPoolExecutor(24) as clients:
        with server.client.stream(
            "POST", CHAT, json=hold, headers={"authorization": "Bearer holds"}
        ) as answer:
            lines = answer.iter_lines()  # the connection is closed with it
            next(lines)
            waiting = [clients.submit(chat, server, "many", "m") for _ in range(20)]
            in_line(21)
            waiting.append(clients.submit(chat, server, "few", "m"))
            in_line(22)
        assert {one.result().status_code for one in waiting} == {200}
    server.log.wait_for("request", lambda _line: len(order(server)) == 21)
    assert order(server).index("few") <= 4


def order(server: Served) -> list[str]:
    """Whose answers ended, the first one first."""
    ended = (line["key"] for line in server.log.records("request"))
    return [key for key in ended if key in ("many", "few")]
