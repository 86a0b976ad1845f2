"""While a client waits, its stream says so: in every API that streams, before an answer and in the
middle of one, and in whatever way that API's clients understand.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx
import pytest

from tests.hang import HANG
from tests.served import Served, events, scripted, served

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
LOAD = 2.5  # seconds; a second later than the first comment
SLOW = 0.5  # tokens a second, where there is a comment after a second of silence
BIG = 2_000_000_000  # bytes; the budget holds one of them

# API: path, body, how the answer begins that comes behind the comments, and how it ends
STREAMS: Mapping[str, tuple[str, dict[str, Any], str, str]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": HELLO, "stream": True},
        'data: {"object":"chat.completion.chunk"',
        "data: [DONE]\n\n",
    ),
    "text": (
        "/v1/completions",
        {"prompt": "Hello", "stream": True},
        'data: {"object":"text_completion"',
        "data: [DONE]\n\n",
    ),
    "responses": (
        "/v1/responses",
        {"input": "Hello!", "stream": True},
        "event: response.created\n",
        "\n\n",
    ),
    "messages": (
        "/v1/messages",
        {"messages": HELLO, "max_tokens": 50, "stream": True},
        "event: message_start\n",
        'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
    "kobold": (
        "/api/extra/generate/stream",
        {"prompt": "Hello"},
        "event: message\n",
        "\n\n",
    ),
    "llamaserver": (
        "/completion",
        {"prompt": "Hello", "stream": True},
        'data: {"index":0',
        "\n\n",
    ),
    "tgi": (
        "/generate_stream",
        {"inputs": "Hello"},
        'data: {"index":',
        "\n\n",
    ),
    "ollama-chat": ("/api/chat", {"messages": HELLO}, '{"model":', "}\n"),
    "ollama-generate": ("/api/generate", {"prompt": "Hello"}, '{"model":', "}\n"),
}
CHAT = "/v1/chat/completions"
CHATTING = {"messages": HELLO, "stream": True}
OTHERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "load": ("/v1/model/load", {"model_name": "load"}),
    "loading-text": (CHAT, {**CHATTING, "model": "loading-text", "loading_text": True}),
    "slow": (CHAT, {**CHATTING, "model": "slow", "max_tokens": 2}),
    "slow-messages": ("/v1/messages", {**CHATTING, "model": "slow", "max_tokens": 2}),
    "slow-ollama": (
        "/api/chat",
        {"model": "slow", "messages": HELLO, "options": {"num_predict": 2}},
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("waiting")
    loading = [
        scripted(folder, name, size_bytes=1000, load_seconds=LOAD)
        for name in (*STREAMS, "load", "loading-text")
    ]
    slow = scripted(folder, "slow", "abc", size_bytes=1000, tokens_per_second=SLOW)
    big = [
        scripted(folder, "first", "x" * 4000, size_bytes=BIG, tokens_per_second=10),
        scripted(folder, "second", size_bytes=BIG),
    ]
    config = {
        "server": {"comment_after": 1.0},
        "swap": {"memory": {"cpu": BIG * 3 // 2}, "min_stay": 0.0},
        "models": [*loading, slow, *big],
    }
    with served(folder, config) as server:
        yield server


@pytest.fixture(scope="module")
def streams(server: Served) -> Iterator[Mapping[str, Future[str]]]:
    """What each one's client got, all at the same time. `second` waits for the memory that `first`
    has.
    """
    asked = {name: {"model": name, **body} for name, (_, body, *_) in STREAMS.items()}
    requests = {
        **{name: (STREAMS[name][0], body) for name, body in asked.items()},
        **OTHERS,
    }
    both = Barrier(2)
    with (
        server.client.stream("POST", CHAT, json={**CHATTING, "model": "first"}) as holding,
        ThreadPoolExecutor(len(requests) + 3) as pool,
    ):
        lines = holding.iter_lines()  # the connection is closed with it
        assert next(lines).startswith("data: ")
        futures = {
            name: pool.submit(read, server.client, path, body)
            for name, (path, body) in requests.items()
        }
        yield {
            **futures,
            "followed": pool.submit(first_comment, server.client),
            "in line": pool.submit(place, server.client, "second", both),
            "behind it": pool.submit(place, server.client, "second", both),
        }


def read(client: httpx.Client, path: str, body: Mapping[str, Any]) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


def place(client: httpx.Client, model: str, all_know: Barrier) -> str:
    """The first comment of a chat, which stays in line until others know their place, too."""
    with client.stream("POST", CHAT, json={**CHATTING, "model": model}) as answer:
        lines = answer.iter_lines()
        line = next(lines)
        all_know.wait(HANG)
        return line


def first_comment(client: httpx.Client) -> str:
    """Of the list of models, which is followed for ever."""
    with client.stream("GET", "/models/sse") as answer:
        return next(line for line in answer.iter_lines() if line.startswith(":"))


@pytest.mark.parametrize("name", STREAMS)
def test_a_load_is_reported_before_the_answer_in_every_api(
    name: str, streams: Mapping[str, Future[str]]
) -> None:
    text = streams[name].result()
    _, _, begins, ends = STREAMS[name]
    waited, found, answer = text.partition(begins)
    assert found, text
    assert answer.endswith(ends)
    if name.startswith("ollama"):
        assert waited
        assert not waited.strip()  # white space, which JSON allows
        assert all(map(json.loads, text.splitlines()))
    else:
        assert waited.startswith(f": loading {name}")
        assert ", position 1\n\n" in waited
    assert ("event: ping\n" in waited) == (name == "messages")


def test_tabbyapis_load_reports_its_progress(streams: Mapping[str, Future[str]]) -> None:
    states = [event["status"] for event in events(streams["load"].result())]
    assert states[0] == "processing"
    assert states[-1] == "finished"


def test_with_loading_text_the_load_is_reported_as_reasoning_at_once(
    streams: Mapping[str, Future[str]],
) -> None:
    text = streams["loading-text"].result()
    assert text.startswith("data: ")
    deltas = [event["choices"][0]["delta"] for event in events(text) if event["choices"]]
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    content = "".join(delta.get("content") or "" for delta in deltas)
    assert reasoning.startswith("loading loading-text")
    assert content == "Hello from the script."


@pytest.mark.parametrize(
    ("name", "silence"),
    [
        ("slow", ": still here\n\n"),
        ("slow-messages", 'event: ping\ndata: {"type":"ping"}\n\n'),
        ("slow-ollama", "\n {"),
    ],
)
def test_a_silence_inside_an_answer_is_filled(
    name: str, silence: str, streams: Mapping[str, Future[str]]
) -> None:
    assert silence in streams[name].result()


def test_the_place_in_line_is_reported_while_another_model_has_the_memory(
    streams: Mapping[str, Future[str]],
) -> None:
    places = {streams["in line"].result(), streams["behind it"].result()}
    assert places == {f": queued for second, position {place}" for place in (1, 2)}


def test_lists_of_models_that_are_followed_are_kept_alive(
    streams: Mapping[str, Future[str]],
) -> None:
    assert streams["followed"].result() == ": still here"
