"""A client that leaves gives back all it held, wherever it stood; one that reads nothing is cut
off; and the log says of both what became of them.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hang import HANG
from tests.served import Serve, Served, scripted, served

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
BIG = 2_000_000_000  # bytes; the budget holds one of them
PATIENCE = 0.3  # seconds that a client may read nothing
LONG = "The engine turns. " * 100_000  # more than kernels keep for a client that doesn't read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("leaving")
    config = {
        "server": {"comment_after": 1.0, "send_timeout": PATIENCE},
        "swap": {"memory": {"cpu": BIG * 3 // 2}, "min_stay": 0.0},
        "models": [
            scripted(folder, "talks", LONG, tokens_per_second=20, context_length=2_000_000),
            scripted(folder, "floods", LONG, context_length=2_000_000),
            scripted(folder, "holds", LONG, size_bytes=BIG, tokens_per_second=20),
            scripted(folder, "waits", size_bytes=BIG),
            scripted(folder, "loads", load_seconds=HANG),
        ],
    }
    with served(folder, config) as server:
        yield server


def ask(server: Served, request: str, **body: Any) -> socket.socket:
    """A chat on a bare socket, to be left or not read at will."""
    content = json.dumps({"messages": HELLO, "stream": True, **body})
    connection = socket.socket()
    connection.settimeout(HANG)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # a kernel may keep 32 MB
    connection.connect(("127.0.0.1", server.port))
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        f"X-Request-Id: {request}\r\n\r\n"
    )
    connection.sendall(head.encode() + content.encode())
    return connection


def ended(server: Served, request: str) -> Mapping[str, Any]:
    return server.log.wait_for("request", lambda record: record["request"] == request)


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_an_answer_ends_it(stream: bool, server: Served) -> None:
    connection = ask(server, f"answer-{stream}", model="talks", stream=stream)
    if stream:
        connection.recv(1)
    else:
        server.log.wait_for("model loaded", lambda record: record["model"] == "talks")
    connection.close()
    assert ended(server, f"answer-{stream}")["outcome"] == "left"
    assert running(server) == 0


def running(server: Served) -> int:
    activity = server.client.get("/v1/admin/requests").json()
    return sum(request["state"] != "done" for request in activity["requests"])


def test_who_leaves_the_line_or_a_load_holds_nobody_up(server: Served) -> None:
    with ask(server, "holder", model="holds") as holder:
        holder.recv(1)
        with ask(server, "in-line", model="waits") as waiting:
            assert b": queued for waits" in comment(waiting)
        assert ended(server, "in-line")["outcome"] == "left"
    assert ended(server, "holder")["outcome"] == "left"
    answer = server.client.post(
        "/v1/chat/completions", json={"model": "waits", "messages": HELLO}
    ).json()
    assert answer["choices"][0]["message"]["content"] == "Hello from the script."
    with ask(server, "loader", model="loads") as loading:
        assert b": loading loads" in comment(loading)
    assert ended(server, "loader")["outcome"] == "left"


def comment(connection: socket.socket) -> bytes:
    """What comes, up to the first comment's end."""
    text = b""
    while b"\n\n" not in text.partition(b"\r\n\r\n")[2]:
        more = connection.recv(65_536)
        assert more, text
        text += more
    return text


def test_who_reads_nothing_is_cut_off(server: Served) -> None:
    """Of each token something is told: a busy server would join them, and kernels keep the rest."""
    with ask(server, "unread", model="floods", logprobs=True):
        assert server.log.wait_for("client disconnected")["seconds"] == PATIENCE
        assert ended(server, "unread")["outcome"] == "send_timeout"


def half_sent(server: Served, request: str) -> socket.socket:
    """A chat whose body's other half never comes."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=HANG)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200\r\n"
        f"Content-Type: application/json\r\nX-Request-Id: {request}\r\n\r\n"
    )
    connection.sendall(head.encode() + b'{"messages": [')
    return connection


def test_who_leaves_in_the_middle_of_a_body_has_left(server: Served) -> None:
    half_sent(server, "half").close()
    assert (ended(server, "half")["outcome"], ended(server, "half")["status"]) == ("left", None)
    counted = server.client.get("/metrics").text.splitlines()
    assert not [line for line in counted if 'status="500"' in line and not line.endswith(" 0.0")]


def test_a_body_that_is_not_whole_holds_up_no_stop(serve: Serve, tmp_path: Path) -> None:
    server = serve({"models": [scripted(tmp_path, "m")], "server": {"shutdown_grace": 2 * HANG}})
    with half_sent(server, "half") as connection:
        server.client.get("/health")
        assert server.stop() == 0
        assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")
    assert ended(server, "half")["outcome"] == "left"
