"""Models take turns under requests, on a process as users start it: a stream keeps its model to its
end, whoever wants another one waits and is answered, and administrators load and unload meanwhile.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.served import Served, events, scripted, served

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
BIG = 2_000_000_000  # bytes; the budget holds one of them
TURNS = 3


# Where the first model and the second run; the small one does where the server is told.
HOSTS = [
    pytest.param(("worker", "process", "worker"), id="mixed"),
    pytest.param(("process", "process", "process"), id="process", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=HOSTS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    first, second, others = request.param
    folder = tmp_path_factory.mktemp("swapping")
    models = [
        scripted(folder, "first", "one " * 30, size_bytes=BIG, tokens_per_second=100, host=first),
        scripted(folder, "second", "two " * 30, size_bytes=BIG, tokens_per_second=100, host=second),
        scripted(folder, "small", "three", size_bytes=1000),
        scripted(folder, "huge", size_bytes=BIG * 9),
    ]
    swap = {"memory": {"cpu": BIG * 3 // 2}, "min_stay": 0.0}
    config = {"models": models, "swap": swap, "engines": {"host": others}}
    with served(folder, config) as server:
        yield server


def said(server: Served, model: str) -> str:
    body = {"model": model, "messages": HELLO, "stream": True}
    answer = server.client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    deltas = [event["choices"][0]["delta"] for event in events(answer.text)]
    return "".join(delta.get("content") or "" for delta in deltas)


def loaded(server: Served) -> set[str]:
    """The models in memory."""
    models = server.client.get("/v1/models").json()["data"]
    return {model["id"] for model in models if model["status"]["value"] == "loaded"}


def is_of(model: str, record: dict[str, Any]) -> bool:
    return bool(record["model"] == model)


def test_streams_of_models_that_do_not_fit_together_all_end_whole(server: Served) -> None:
    wanted = ["first", "second", "small"] * TURNS
    with ThreadPoolExecutor(len(wanted)) as pool:
        texts = list(pool.map(lambda model: said(server, model), wanted))
    words = {"first": "one " * 30, "second": "two " * 30, "small": "three"}
    assert texts == [words[model] for model in wanted]
    assert not {"first", "second"} <= loaded(server)
    for model in words:
        assert server.log.wait_for("model loaded", partial(is_of, model))


def test_a_model_in_use_stays_until_its_stream_has_ended(server: Served) -> None:
    body = {"model": "first", "messages": HELLO, "stream": True}
    with (
        server.client.stream("POST", CHAT, json=body) as answer,
        ThreadPoolExecutor(1) as pool,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        other = pool.submit(said, server, "second")
        rest = [*lines]
        assert "data: [DONE]" in rest
        assert other.result() == "two " * 30


def test_an_administrator_unloads_under_a_stream_and_the_stream_ends_first(server: Served) -> None:
    body = {"model": "first", "messages": HELLO, "stream": True}
    with server.client.stream("POST", CHAT, json=body) as answer, ThreadPoolExecutor(1) as pool:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        unloading = pool.submit(server.client.post, "/models/unload", json={"model": "first"})
        assert "data: [DONE]" in [*lines]
        assert unloading.result().is_success
    assert server.log.wait_for("model unloaded", lambda record: record["model"] == "first")


def test_an_administrator_loads_and_it_is_listed(server: Served) -> None:
    answer = server.client.post("/models/load", json={"model": "small"})
    assert answer.is_success, answer.text
    server.log.wait_for("model loaded", lambda record: record["model"] == "small")
    running = server.client.get("/api/ps").json()["models"]
    assert "small:latest" in [model["name"] for model in running]


def test_a_model_that_can_never_fit_is_refused_with_its_reason(server: Served) -> None:
    answer = server.client.post(CHAT, json={"model": "huge", "messages": HELLO})
    assert answer.status_code in (400, 503), answer.text
    message = json.loads(answer.text)["error"]["message"]
    assert "huge" in message
    assert "GiB" in message or "GB" in message
