"""A client that doesn't read is cut off, and what it held is given to others."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVarTuple, Unpack

import anyio
import msgspec
import pytest
import uvicorn
from anyio import wait_readable
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from config.settings import Config, ModelConfig, ServerConfig
from gateway.serving.server import LOOK, GuardedConnection
from tests.gateway.http.serving import Running, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

Args = TypeVarTuple("Args")

NAME = "a-model-of-a-long-name-" * 900  # which stands in every chunk: few tokens make much to send
TOKENS = 6_000
PATIENCE = 0.3
SPEED = {"tokens_per_second": 500}  # so that each token is a chunk, nearly
SELECTOR = ("asyncio", {"use_uvloop": False})
UVLOOP = ("asyncio", {"use_uvloop": True})  # as the command runs it
SECOND = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def config(folder: Path) -> Config:
    """A model with much to say, and another one for which there is no room beside it."""
    shown = {NAME: "{{ messages[-1].content }}", "other": "{# %s #}Hi" % ("x" * 6_000_000)}
    models = []
    for name, template in shown.items():
        path = folder / f"{name[:10]}.script.json"
        script = {"lines": [{"say": "x" * TOKENS}], "chat_template": template}
        path.write_bytes(msgspec.json.encode({"context_length": 100_000, **script}))
        models.append(ModelConfig(name=name, path=str(path), options=SPEED))
    return Config(server=ServerConfig(port=0, send_timeout=PATIENCE), models=tuple(models))


async def unread(
    running: Running, head: str, body: bytes = b"", then: bytes = b""
) -> socket.socket:
    """A request whose answer nobody reads, and what follows it. The kernel keeps little for the
    client.
    """
    lines = (
        head,
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "",
        "",
    )
    request, loop = "\r\n".join(lines).encode() + body + then, asyncio.get_running_loop()
    with ExitStack() as unless_it_is_sent:
        client = unless_it_is_sent.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", running.port))
        await loop.sock_sendall(client, request)
        unless_it_is_sent.pop_all()
    return client


async def logged(lines: Sequence[MutableMapping[str, Any]], event: str) -> Mapping[str, Any]:
    """The line of the log with that event, once it is there."""
    with anyio.fail_after(HANG):
        while True:
            for line in lines:
                if line["event"] == event:
                    return line
            await anyio.sleep(0.01)


async def rest(client: socket.socket) -> int:
    """Bytes that come until the connection ends."""
    size = 0
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    with anyio.fail_after(HANG):
        while True:
            await wait_readable(client)
            try:
                data = client.recv(65536)
            except ConnectionResetError:
                return size
            if not data:
                return size
            size += len(data)


@pytest.mark.parametrize(("anyio_backend", "then"), [(SELECTOR, SECOND), (UVLOOP, b"")])
async def test_a_stream_that_nobody_reads_gives_its_lease_back(then: bytes, tmp_path: Path) -> None:
    """`then`: a second request that was pipelined is the one uvicorn would tell."""
    chat = {"model": NAME, "stream": True, "messages": [{"role": "user", "content": "x"}]}
    body = msgspec.json.encode(chat)
    async with serving(config(tmp_path), tmp_path) as running:
        with capture_logs() as lines:
            with await unread(running, "POST /v1/chat/completions HTTP/1.1", body, then) as client:
                cut = await logged(lines, "client disconnected: it doesn't read")
                answered = await logged(lines, "request")
                with anyio.fail_after(HANG):
                    while any(status.in_use for status in running.registry.statuses()):
                        await anyio.sleep(0.01)
                assert await rest(client) < TOKENS * len(NAME)
        numbers = (await running.client.get("/metrics")).text
    assert cut["client"] == "127.0.0.1"
    assert cut["unsent_bytes"] > 0
    assert answered["outcome"] == "send_timeout"
    assert 'outcome="send_timeout"' in numbers
    assert "roundhouse_send_timeouts_total 1.0" in numbers


@pytest.mark.parametrize(("anyio_backend", "ends"), [(SELECTOR, "close"), (UVLOOP, "keep-alive")])
async def test_a_whole_body_that_nobody_reads_is_not_kept(ends: str, tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        head = f"GET /props?model=other HTTP/1.1\r\nConnection: {ends}"
        with capture_logs() as lines:
            with await unread(running, head) as client:
                await logged(lines, "client disconnected: it doesn't read")
                assert await rest(client) < 6_000_000


@pytest.mark.parametrize("anyio_backend", [SELECTOR, UVLOOP])
async def test_states_that_nobody_reads_end_their_stream(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        own = len(running.registry.watchers)
        with capture_logs() as lines, await unread(running, "GET /models/sse HTTP/1.1") as client:

            async def change() -> None:
                while True:
                    await running.registry.load(NAME)
                    await running.registry.unload(NAME)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(change)
                cut = await logged(lines, "client disconnected: it doesn't read")
                tasks.cancel_scope.cancel()
            assert await rest(client) > 0
            with anyio.fail_after(HANG):
                while len(running.registry.watchers) > own:
                    await anyio.sleep(0.01)
    assert cut["unsent_bytes"] > 0


class Transport(asyncio.Transport):
    """A client whose reading the test decides."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


class Timers(asyncio.SelectorEventLoop):
    """`due` are the calls for later; nothing runs by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Callable[[], object]] = []

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if delay != LOOK:  # at what the client sends
            assert delay == PATIENCE
            self.due.append(lambda: callback(*args))
        return asyncio.TimerHandle(0.0, callback, args, self, context)


def test_a_client_that_reads_ever_so_slowly_is_served() -> None:
    times: list[None] = []
    timers, transport = Timers(), Transport()
    application = uvicorn.Config(lambda: None, log_config=None)
    connection = GuardedConnection(
        application,
        ServerState(),
        {},
        timers,
        patience=PATIENCE,
        timed_out=lambda: times.append(None),
    )
    connection.connection_made(transport)
    transport.unsent = 100_000
    connection.pause_writing()
    for _ in range(5):
        transport.unsent -= 1
        timers.due.pop()()
        assert not transport.aborted
    timers.due.pop()()
    assert transport.aborted
    assert times == [None]
    assert not timers.due
    timers.close()


@pytest.mark.parametrize("anyio_backend", [SELECTOR, UVLOOP])
async def test_a_slow_reader_gets_every_token_once_and_in_order(tmp_path: Path) -> None:
    """Its buffer is full again and again, so that tokens come by either way: straight from the
    engine's step while it reads, and with those they waited for while it doesn't.
    """
    said = " ".join(map(str, range(600)))
    script = {"context_length": 100_000, "lines": [{"say": said}]}
    path = tmp_path / "numbers.script.json"
    path.write_bytes(msgspec.json.encode(script))
    model = ModelConfig(name=NAME, path=str(path))
    chat = {"model": NAME, "stream": True, "messages": [{"role": "user", "content": "x"}]}
    async with serving(Config(server=ServerConfig(port=0), models=(model,)), tmp_path) as running:
        request = "POST /v1/chat/completions HTTP/1.1"
        with await unread(running, request, msgspec.json.encode(chat)) as client:
            assert await content(client) == said


async def content(client: socket.socket) -> str:
    """What a streamed chat says, read in small parts; the rest of its bytes are as they must be."""
    received = b""
    with anyio.fail_after(HANG):
        while not received.endswith(b"\r\n0\r\n\r\n"):
            await wait_readable(client)
            received += client.recv(2_000)
    frames = b"".join(chunks(received.partition(b"\r\n\r\n")[2])).split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    deltas = [msgspec.json.decode(frame[6:])["choices"][0]["delta"] for frame in frames[:-2]]
    return "".join(delta.get("content") or "" for delta in deltas)


def chunks(body: bytes) -> Iterator[bytes]:
    """The chunks of a body (RFC 9112, 7.1)."""
    while body:
        size, _, body = body.partition(b"\r\n")
        yield body[: int(size, 16)]
        assert body[int(size, 16) :][:2] == b"\r\n"
        body = body[int(size, 16) + 2 :]
