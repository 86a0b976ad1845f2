import asyncio
from itertools import islice
from typing import Any

import msgspec
import pytest

from benchmarks.load import Connection, Load, drive, expected_length, prompts, request

pytestmark = pytest.mark.anyio

LOAD = Load(port=1, streams=2, seconds=1.0, warm_up=0.0, max_tokens=3, body={"temperature": 0.5})
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
FRAMES = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n',
)


def test_no_two_prompts_are_alike() -> None:
    asked = [prompt for stream in range(16) for prompt in islice(prompts(stream), 50)]
    assert len(set(asked)) == len(asked)


def test_a_request_is_what_the_load_says() -> None:
    head, body = request(LOAD, "hello").split(b"\r\n\r\n")
    fields = msgspec.json.decode(body)
    assert f"content-length: {len(body)}".encode() in head
    assert fields["messages"] == [{"role": "user", "content": "hello"}]
    assert (fields["max_tokens"], fields["temperature"], fields["stream"]) == (3, 0.5, True)


def test_a_body_of_known_length_is_expected_whole() -> None:
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 12\r\n\r\n"
    assert expected_length(head) == len(head) + 12


def test_a_chunked_body_has_no_expected_length() -> None:
    assert expected_length(HEAD + b"\r\ncontent-length: 5\r\n") is None


async def exchanged(*pieces: bytes) -> bytes:
    """What a connection takes for one answer when these pieces arrive."""
    connection = Connection()
    connection.connection_made(Deaf())
    waiting = asyncio.ensure_future(connection.exchange(b""))
    await asyncio.sleep(0)
    for piece in pieces:
        assert not waiting.done()
        connection.data_received(piece)
        await asyncio.sleep(0)
    assert waiting.done()
    return b"".join(arrival.data for arrival in waiting.result().arrivals)


class Deaf(asyncio.Transport):
    """Takes all that is written to it."""

    def write(self, data: Any) -> None:
        pass


async def test_an_answer_ends_with_the_last_chunk_however_it_is_cut() -> None:
    pieces = (HEAD, b"1\r\na\r\n0\r", b"\n", b"\r\n")
    assert await exchanged(*pieces) == b"".join(pieces)


async def test_an_answer_of_known_length_ends_there() -> None:
    pieces = (b"HTTP/1.1 400 Bad\r\ncontent-length: 4\r\n\r\nab", b"cd")
    assert await exchanged(*pieces) == b"".join(pieces)


async def test_an_answer_ends_when_the_server_hangs_up() -> None:
    connection = Connection()
    connection.connection_made(Deaf())
    waiting = asyncio.ensure_future(connection.exchange(b""))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    assert (await waiting).arrivals == ()
    assert not connection.open


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that answers every request with the same three tokens."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = expected_length(head)
            assert length is not None
            await reader.readexactly(length - len(head))
            writer.write(HEAD)
            for frame in FRAMES:
                writer.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
            writer.write(b"0\r\n\r\n")
    except asyncio.IncompleteReadError:
        writer.close()


async def test_a_server_that_answers_is_measured_without_a_flaw() -> None:
    server = await asyncio.start_server(answer_all, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await drive(msgspec.structs.replace(LOAD, port=port))
    assert result.answers >= LOAD.streams
    assert result.tokens_per_second > 0
    assert (result.errors, result.cut_off) == (0, 0)


async def test_a_head_that_ends_like_a_last_chunk_is_no_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
    assert await exchanged(head, b"0\r\n", b"\r\n") == head + b"0\r\n\r\n"


async def test_a_server_that_hangs_up_behind_each_answer_is_asked_again() -> None:
    """It says nothing of it beforehand, so that the next request may be under way."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = expected_length(head)
        assert length is not None
        await reader.readexactly(length - len(head))
        writer.write(HEAD)
        for frame in FRAMES:
            writer.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await reader.read(1)  # the next request, at least its first byte
        writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await drive(msgspec.structs.replace(LOAD, port=port))
    assert result.answers > LOAD.streams
    assert (result.errors, result.cut_off) == (0, 0)
