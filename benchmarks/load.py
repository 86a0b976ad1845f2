"""The load driver: N streams to one chat endpoint, each sending its next request after its answer.

It must not be the bottleneck on a machine it shares with the server, so it runs in a process of its
own, on raw sockets and uvloop, and while it measures it only notes what arrived when; `answers`
reads that afterwards.

    python -m benchmarks.load < load.json     a `Load` in, `Figures` out
"""

import asyncio
import itertools
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import uvloop

from benchmarks.answers import Answer, Arrival, Figures, figures, whole_answers

LAST_CHUNK = b"0\r\n\r\n"  # what ends a chunked body (RFC 9112, 7.1)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEAD_END = b"\r\n\r\n"
PATIENCE = 60.0  # seconds that answers begun in the window may take after it

# Short, and different, so that no prompt repeats another.
OPENINGS = ("Tell me about", "Write a story about", "What do you know of", "Describe", "Who made")
THINGS = (
    "the lighthouse",
    "a red boat",
    "my cat",
    "the old bridge",
    "a quiet lake",
    "that machine",
    "the moon",
)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to do to whom. `body` is in every request, beside messages, stream and max_tokens."""

    port: int
    streams: int
    seconds: (
        float  # measured, after `warm_up` seconds of the same load; of one stream whole answers
    )
    warm_up: float
    max_tokens: int
    body: dict[str, Any]


class Connection(asyncio.Protocol):
    """One socket, one exchange at a time."""

    def __init__(self) -> None:
        self.open = True
        self._transport: asyncio.Transport | None = None
        self._arrivals: list[Arrival] = []
        self._ended: asyncio.Future[None] | None = None
        self._tail = b""
        self._expected: int | None = None  # bytes of head and body, when the head says so

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's own class doesn't derive from it

    def data_received(self, data: bytes) -> None:
        body = data
        if not self._arrivals:
            self._expected = expected_length(data)
            body = data[data.find(HEAD_END) + len(HEAD_END) :]  # a head may end like a last chunk
        self._arrivals.append(Arrival(time.perf_counter(), data))
        self._tail = (self._tail + body[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
        if self._complete():
            self._end()

    def _complete(self) -> bool:
        if self._expected is None:
            return self._tail == LAST_CHUNK
        return sum(len(arrival.data) for arrival in self._arrivals) >= self._expected

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._end()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def exchange(self, request: bytes) -> Answer:
        """Send a request and wait until its answer has ended, or the server has hung up."""
        assert self._transport is not None
        self._arrivals, self._tail = [], b""
        self._ended = asyncio.get_running_loop().create_future()
        sent = time.perf_counter()
        self._transport.write(request)
        await self._ended
        return Answer(sent, tuple(self._arrivals))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def expected_length(head: bytes) -> int | None:
    """Bytes of a response that begins with `head`; None when its body is chunked.

    The head comes in one piece: each server here writes it at once.
    """
    length = LENGTH.search(head, 0, head.find(HEAD_END) + 2)
    return None if length is None else head.index(HEAD_END) + len(HEAD_END) + int(length[1])


def prompts(stream: int) -> Iterator[str]:
    """An endless row of prompts that no other stream shares."""
    for number in itertools.count():
        opening, thing = OPENINGS[number % len(OPENINGS)], THINGS[(number + stream) % len(THINGS)]
        yield f"{stream}.{number} {opening} {thing}."


def request(load: Load, prompt: str) -> bytes:
    """A whole HTTP request."""
    body = msgspec.json.encode(
        {
            **load.body,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": load.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        f"host: 127.0.0.1:{load.port}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def drive(load: Load) -> Figures:
    """Put the load on and measure.

    Raises an ExceptionGroup of OSError when nobody listens, TimeoutError when answers don't end.
    """
    start = time.perf_counter() + load.warm_up
    end = start + load.seconds
    async with (
        asyncio.timeout(load.warm_up + load.seconds + PATIENCE),
        asyncio.TaskGroup() as group,
    ):
        watch = group.create_task(_own_load(start, end))
        streams = [group.create_task(_stream(load, stream, end)) for stream in range(load.streams)]
    answers = [answer for stream in streams for answer in stream.result()]
    if load.streams == 1:
        start, end = whole_answers(answers, start, end)
    measured = figures(answers, start, end, load.max_tokens)
    return msgspec.structs.replace(measured, driver_load=watch.result())


async def _stream(load: Load, stream: int, end: float) -> list[Answer]:
    answers: list[Answer] = []
    connection = await _connect(load.port)
    for prompt in prompts(stream):
        if time.perf_counter() >= end:
            break
        if not connection.open:
            connection = await _connect(load.port)
        answer = await connection.exchange(request(load, prompt))
        if not answer.arrivals:  # it hung up behind the answer before: llama-server does
            connection = await _connect(load.port)
            answer = await connection.exchange(request(load, prompt))
        answers.append(answer)
    connection.close()
    return answers


async def _connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, "127.0.0.1", port
    )
    return connection


async def _own_load(start: float, end: float) -> float:
    """CPU seconds per second that this process takes in the window."""
    await asyncio.sleep(max(0.0, start - time.perf_counter()))
    begun, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(max(0.0, end - time.perf_counter()))
    return (time.process_time() - used) / (time.perf_counter() - begun)


def main() -> None:
    """Read the load, put it on, write the figures."""
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(drive(load))))


if __name__ == "__main__":
    main()
