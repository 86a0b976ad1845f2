"""Strangers who send heads without an end, bodies that don't come, or open every connection: each
is ended in a clear way, and nobody else waits.
"""

import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gateway.serving.server import MOST_BESIDE, PATIENCE
from tests.hang import HANG
from tests.served import Served, served

MIB = 1 << 20
Parts = Callable[[], Iterator[bytes]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as server:
        yield server


def opened(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=HANG)


def poured(stream: socket.socket, parts: Iterator[bytes], most: int) -> bytes:
    """What is answered to so many bytes, or until the other side has closed."""
    sent, answer = 0, b""
    try:
        while sent < most:
            sent += stream.send(next(parts))
        stream.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    try:
        while data := stream.recv(65536):
            answer += data
    except OSError:
        pass
    assert sent <= 16 * MIB, "it is read on"
    return answer


def lines() -> Iterator[bytes]:
    yield b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    while True:
        yield b"X-%d: %s\r\n" % (time.monotonic_ns(), b"x" * 1000)


def line() -> Iterator[bytes]:
    yield b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: "
    while True:
        yield b"x" * 65536


def url() -> Iterator[bytes]:
    yield b"GET /"
    while True:
        yield b"x" * 65536


def trailers() -> Iterator[bytes]:
    yield b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    yield b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    while True:
        yield b"X-%d: %s\r\n" % (time.monotonic_ns(), b"x" * 1000)


def extensions() -> Iterator[bytes]:
    yield b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    yield b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2;"
    while True:
        yield b"x" * 65536


@pytest.mark.parametrize("parts", [lines, line, url])
def test_a_head_without_end_is_a_431_and_costs_nobody_time(parts: Parts, server: Served) -> None:
    before = server.memory()
    with opened(server) as stream:
        answer = poured(stream, parts(), 200 * MIB)
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
    began = time.monotonic()
    assert server.client.get("/health").status_code == 200
    assert time.monotonic() - began < HANG / 10
    assert server.memory() - before < 32 * MIB


@pytest.mark.parametrize("parts", [trailers, extensions])
def test_what_is_beside_a_body_has_the_same_bound(parts: Parts, server: Served) -> None:
    before = server.memory()
    with opened(server) as stream:
        poured(stream, parts(), 200 * MIB)
    assert server.client.get("/health").status_code == 200
    assert server.memory() - before < 32 * MIB


def test_heads_within_the_bound_are_read(server: Served) -> None:
    whole = {"x-long": "x" * (MOST_BESIDE - 4096)}
    assert server.client.get("/health", headers=whole).status_code == 200
    assert server.client.get("/health", params={"q": "x" * 16_000}).status_code == 200
    body = b"".join(b"1\r\n%c\r\n" % one for one in b'{"messages":[],"x":"%s"}' % (b"y" * 40_000))
    with opened(server) as stream:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = poured(stream, iter([head, body, b"0\r\n\r\n"]), len(head) + len(body) + 5)
    assert answer.startswith(b"HTTP/1.1 400 "), "a body in the smallest chunks is a body"


@pytest.mark.slow  # it waits out the patience of all servers
def test_who_sends_no_whole_head_or_body_is_ended_in_time(server: Served) -> None:
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    bodied = begun + b"Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{"
    with ExitStack() as held:
        streams = [held.enter_context(opened(server)) for _ in range(4)]
        for stream, sent in zip(streams, (b"", b"G", begun, bodied), strict=True):
            stream.sendall(sent)
        began = time.monotonic()
        answers = [stream.recv(65536) for stream in streams]
        assert time.monotonic() - began < 2 * PATIENCE + HANG / 2
    assert [answer[:13] for answer in answers[:3]] == [b"HTTP/1.1 408 "] * 3


def test_announced_bodies_take_no_room_from_others(server: Served) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: 67000000\r\n\r\n{"
    with ExitStack() as held:
        for _ in range(8):
            held.enter_context(opened(server)).sendall(head)
        body = {"messages": [{"role": "user", "content": "x" * 300_000}], "model": "nobody"}
        assert server.client.post("/v1/chat/completions", json=body).status_code == 404


def test_one_address_leaves_others_a_connection_and_is_told(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """As long as the process may have 256 files."""
    folder = tmp_path_factory.mktemp("few-files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served(folder, files=256) as server, ExitStack() as held:
        streams = [held.enter_context(opened(server)) for _ in range(400)]
        said = [stream.recv(65536) for stream in streams[-8:]]
        assert all(one.startswith(b"HTTP/1.1 503 ") for one in said), said
        elsewhere = held.enter_context(
            socket.create_connection(
                ("127.0.0.1", server.port), timeout=HANG, source_address=("127.0.0.2", 0)
            )
        )
        elsewhere.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert elsewhere.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_whatever_is_sent_ends_nothing(server: Served) -> None:
    """Heads of pieces that heads are made of, and any bytes between."""
    chance = random.Random(7)
    pieces = [
        *(b"GET ", b"POST ", b"/health", b"/v1/models?", b" HTTP/1.1\r\n", b" HTTP/9.9\r\n"),
        *(b"\r\n", b"Host: localhost\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: x\r\n", b"5\r\nhello\r\n0\r\n"),
        *(b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Expect: 100-continue\r\n", b"\0\xff"),
        *(b"Trailer: X\r\n", b": \r\n", b"X" * 3_000, b"Content-Length: 99999999999999999999\r\n"),
        b"ffffffffff",
    ]
    for _ in range(200):
        sent = b"".join(
            chance.choice(pieces) if chance.random() < 0.9 else chance.randbytes(9)
            for _ in range(chance.randint(1, 12))
        )
        with opened(server) as stream:
            poured(stream, iter([sent]), len(sent))
    assert server.client.get("/health").status_code == 200
