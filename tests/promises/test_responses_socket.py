"""OpenAI's responses over a WebSocket, with OpenAI's own client where that can say it: turns of a
conversation that nobody stores, lanes, cancelling, and the bounds of a connection.
"""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.resources.responses.responses import ResponsesConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from tests.hang import HANG
from tests.served import Serve, Served, scripted, served

# What OpenAI's client does is said to be old by the library that it does it with.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

KEY, OTHER = "first-key-of-all", "second-key-of-all"
MOST = 3  # sockets of a key
BIG = 2_000_000_000  # bytes; the budget holds one of them
LONG = "The engine turns. " * 1_000
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
NAMES = [
    {"when": "My name is Ada.", "say": "You are Ada."},
    {"when": "My name is Bob.", "say": "You are Bob."},
    {"say": "Who are you?"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("socket")
    config = {
        "keys": [{"key": KEY}, {"key": OTHER, "models": ["one"]}],
        "server": {"max_sockets": MOST, "max_message": 1 << 20, "send_timeout": 0.5},
        "swap": {"memory": {"cpu": BIG * 3 // 2}, "min_stay": 0.0},
        "models": [
            scripted(folder, "one", lines=NAMES, size_bytes=BIG),
            scripted(folder, "two", lines=NAMES, size_bytes=BIG),
            scripted(folder, "talks", LONG, tokens_per_second=20, context_length=2_000_000),
            scripted(folder, "echoes", context_length=2_000_000),
        ],
    }
    with served(folder, config) as server:
        yield server


@pytest.fixture
def talk(server: Served) -> Iterator[ResponsesConnection]:
    with api(server) as client, client.responses.connect() as connection:
        yield connection


def api(server: Served, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key)


def bare(server: Served, key: str = KEY, **options: Any) -> ClientConnection:
    url = f"{server.url.replace('http', 'ws', 1)}/v1/responses"
    headers = {"authorization": f"Bearer {key}"}
    connection: ClientConnection
    connection = connect(url, additional_headers=headers, open_timeout=HANG, **options)
    return connection


def ask(talk: ResponsesConnection, text: str, model: str = "one", **more: Any) -> None:
    asked: Any = {"type": "response.create", "model": model, "input": text, **more}
    talk.send(asked)


def answer(talk: ResponsesConnection) -> Any:
    """The last event of a response."""
    return next(event for event in talk if event.type in ENDS)


def said(talk: ResponsesConnection, text: str, model: str = "one", **more: Any) -> Any:
    """The response."""
    ask(talk, text, model, **more)
    event = answer(talk)
    assert event.type == "response.completed", event
    return event.response


def received(connection: ClientConnection) -> Any:
    return json.loads(connection.recv(timeout=HANG))


def test_turns_go_on_from_each_other_though_nobody_stores_them(
    server: Served, talk: ResponsesConnection
) -> None:
    first = said(talk, "My name is Ada.", store=False)
    assert first.output_text == "You are Ada."
    fork = said(talk, "Who am I?", store=False, previous_response_id=first.id)
    last = said(talk, "Still?", store=False, previous_response_id=fork.id)
    again = said(talk, "And now?", store=False, previous_response_id=first.id)
    assert {one.output_text for one in (fork, last, again)} == {"You are Ada."}
    assert said(talk, "Who am I?", store=False).output_text == "Who are you?"
    with pytest.raises(openai.NotFoundError):
        api(server).responses.retrieve(last.id)


def test_another_connection_knows_only_what_is_stored(
    server: Served, talk: ResponsesConnection
) -> None:
    kept = said(talk, "My name is Ada.")
    lost = said(talk, "Who am I?", store=False, previous_response_id=kept.id)
    with api(server) as client, client.responses.connect() as other:
        found = said(other, "Who am I?", store=False, previous_response_id=kept.id)
        further = said(other, "And now?", store=False, previous_response_id=found.id)
        ask(other, "Who am I?", previous_response_id=lost.id)
        error: Any = answer(other)
    assert found.output_text == further.output_text == "You are Ada."
    assert error.type == "error"
    assert error.status == 400
    assert error.error.code == "previous_response_not_found"
    assert error.error.param == "previous_response_id"


def test_a_request_that_only_makes_ready_can_be_gone_on_from(talk: ResponsesConnection) -> None:
    ready = said(talk, "My name is Ada.", store=False, generate=False)
    assert ready.output == []
    assert ready.usage.output_tokens == 0
    more = said(talk, "Who am I?", store=False, previous_response_id=ready.id)
    assert more.output_text == "You are Ada."


def test_models_are_swapped_under_a_connection(talk: ResponsesConnection) -> None:
    for model in ("one", "two", "one"):
        assert said(talk, "My name is Bob.", model).model == model


def test_lanes_are_answered_side_by_side_and_name_themselves(talk: ResponsesConnection) -> None:
    ask(talk, "Talk.", "talks", stream_id="long")
    ask(talk, "My name is Ada.", stream_id="short")
    ended = next(event for event in talk if event.type == "response.completed")
    assert ended.stream_id == "short"
    cancel: Any = {"type": "response.cancel", "stream_id": "long"}
    talk.send(cancel)
    last: Any = next(event for event in talk if event.type in ENDS)
    assert (last.type, last.stream_id) == ("response.incomplete", "long")
    assert last.response.status == "cancelled"


def test_a_lane_is_answered_in_its_order(talk: ResponsesConnection) -> None:
    for name in ("Ada", "Bob", "Ada"):
        ask(talk, f"My name is {name}.")
    assert [answer(talk).response.output_text for _ in range(3)] == [
        "You are Ada.",
        "You are Bob.",
        "You are Ada.",
    ]


def test_the_first_event_says_who_answered_and_what_was_left_out(
    server: Served, talk: ResponsesConnection
) -> None:
    ask(talk, "Hello!", background=True, tools=[{"type": "web_search"}])
    created: Any = next(iter(talk))
    assert created.headers["x-roundhouse-model"] == "one"
    assert created.headers["x-roundhouse-ignored"] == "background, tools[0]"
    assert "web_search" in answer(talk).response.metadata["roundhouse_left_out"]
    seen = server.client.get(
        f"/v1/admin/requests/{created.headers['x-request-id']}", headers={"x-api-key": KEY}
    ).json()
    assert "Hello!" in json.dumps(seen["body"])


@pytest.mark.parametrize(
    ("message", "status", "param"),
    [
        ("no JSON", 400, None),
        ("[]", 400, None),
        ({"type": "response.delete"}, 400, "type"),
        ({"type": "response.create", "input": "Hi", "stream_id": ""}, 400, "stream_id"),
        ({"type": "response.create", "input": "Hi", "generate": "no"}, 400, "generate"),
        ({"type": "response.create", "input": "Hi", "temperature": "hot"}, 400, "temperature"),
        ({"type": "response.create", "input": "Hi", "model": "none"}, 404, "model"),
        ({"type": "response.cancel", "response_id": "resp_0"}, 400, "response_id"),
    ],
)
def test_an_error_is_an_event_and_the_connection_goes_on(
    server: Served, message: Any, status: int, param: str | None
) -> None:
    with bare(server) as connection:
        connection.send(message if isinstance(message, str) else json.dumps(message))
        error = received(connection)
        assert (error["type"], error["status"]) == ("error", status)
        assert error["error"]["param"] == param
        hello = {"type": "response.create", "model": "one", "input": "Hello!"}
        connection.send(json.dumps(hello))
        assert received(connection)["type"] == "response.created"


def test_steering_is_given_back(talk: ResponsesConnection) -> None:
    steer: Any = {"type": "response.steer", "previous_response_id": "resp_0", "input": "Shorter."}
    talk.send(steer)
    failed: Any = next(iter(talk))
    assert failed.type == "response.steer.failed"
    assert failed.error.code == "steering_not_supported"
    assert failed.steer.input == "Shorter."


def test_who_leaves_ends_what_runs(server: Served) -> None:
    with bare(server) as connection:
        connection.send(json.dumps({"type": "response.create", "model": "talks", "input": "Go."}))
        created = received(connection)
        request = created["headers"]["x-request-id"]
        assert received(connection)["type"] == "response.in_progress"
    line = server.log.wait_for("request", lambda record: record["request"] == request)
    assert line["outcome"] == "left"


def test_a_client_that_reads_nothing_is_cut_off(server: Served) -> None:
    long = "x" * 900_000  # three events repeat it; a few such are more than kernels keep
    asked = {"type": "response.create", "model": "echoes", "input": "Go.", "instructions": long}
    frame = Frame(Opcode.TEXT, json.dumps(asked).encode()).serialize(mask=True)
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG) as connection:
        connection.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Authorization: Bearer %b\r\n\r\n" % KEY.encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 101"
        connection.sendall(frame * 8)
        server.log.wait_for("request", lambda record: record["outcome"] == "send_timeout")
    assert server.log.wait_for("client disconnected")


def test_a_message_that_is_too_long_closes_the_connection(server: Served) -> None:
    with bare(server) as connection:
        connection.send(json.dumps({"type": "response.create", "input": "x" * (2 << 20)}))
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=HANG)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_key_is_needed_and_has_its_own_sockets_and_models(server: Served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        bare(server, "wrong")
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"
    several = [bare(server) for _ in range(MOST)]
    with pytest.raises(InvalidStatus) as refused:
        bare(server)
    assert refused.value.response.status_code == 429
    assert "server.max_sockets" in json.loads(refused.value.response.body)["error"]["message"]
    with api(server, OTHER) as client, client.responses.connect() as other:
        ask(other, "Hello!", "two")
        error: Any = answer(other)
    assert error.status == 404
    for one in several:
        one.close()


def test_another_address_is_not_found(server: Served) -> None:
    url = f"{server.url.replace('http', 'ws', 1)}/v1/realtime"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, additional_headers={"authorization": f"Bearer {KEY}"}, open_timeout=HANG)
    assert refused.value.response.status_code == 404


def test_without_keys_other_sites_pages_open_none_and_idle_ones_are_closed(serve: Serve) -> None:
    server = serve({"server": {"socket_idle": 0.2}})
    with pytest.raises(InvalidStatus) as refused:
        bare(server, origin="https://evil.example")
    assert refused.value.response.status_code == 403
    with bare(server) as connection:
        error = received(connection)
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=HANG)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


def test_a_stop_lets_an_answer_finish_and_closes_the_connection(
    serve: Serve, tmp_path: Path
) -> None:
    model = scripted(tmp_path, "m", "Hello. " * 8, tokens_per_second=20)
    server = serve({"models": [model]})
    with bare(server) as connection, bare(server) as idle:
        connection.send(json.dumps({"type": "response.create", "model": "m", "input": "Go."}))
        while received(connection)["type"] != "response.output_text.delta":
            pass
        server.signal(signal.SIGTERM)
        assert received(idle)["error"]["code"] == "shutting_down"
        connection.send(json.dumps({"type": "response.create", "model": "m", "input": "More."}))
        events: list[Any] = []
        with pytest.raises(ConnectionClosed) as closed:
            events.extend(iter(lambda: received(connection), None))
    kinds = [event["type"] for event in events]
    assert "response.completed" in kinds
    assert events[-1]["error"]["code"] == "shutting_down"
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert server.status() == 0
