"""What it costs to stand in front of another server: python -m benchmarks.relay

A stub on this machine says a chunk each 20 ms, as engines do, or 200 at once, or one body, or a
chunk a second. A driver asks it straight, through Roundhouse, through a relay of a few lines over
httpx, through nginx where it is installed, and through LiteLLM where `--litellm PYTHON` names the
interpreter of an environment that has `litellm[proxy]`. They take turns, and share the machine:
the times are of this run alone; processor seconds are what other work on it changes least. The
paced row is the one that users have.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx
import msgspec
import psutil  # type: ignore[import-untyped,unused-ignore]
import uvicorn
import uvloop

from benchmarks.peers import DidNotStart, free_port, roundhouse, serving

CHUNKS = 200
PACE = 0.02  # seconds between two chunks of a paced stream
PACED = 64  # of them at once
ROUNDS = 3  # of which the cheapest counts: other work on the machine only ever slows one down
SLOW = 1_000  # streams held at once
OPEN_TO_ALL = "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"  # else it does not start
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


# ----------------------------------------------------------------------------------------- the stub


def _chunk(delta: object, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    about = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
    return b"data: " + msgspec.json.encode({**about, "choices": [choice]}) + b"\n\n"


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_WORDS = [_piece(_chunk({"content": f"word{k} "})) for k in range(CHUNKS)]
_OPENING = _piece(_chunk({"role": "assistant", "content": ""}))
_CLOSING = _piece(_chunk({}, "stop")) + _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_STREAM = b"".join((_STREAM_HEAD, _OPENING, *_WORDS, _CLOSING))
_BRIEF = b"".join((_STREAM_HEAD, _OPENING, _WORDS[0], _CLOSING))


def _whole() -> bytes:
    message = {"role": "assistant", "content": "word " * CHUNKS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 5}
    about = {"id": "c", "object": "chat.completion", "created": 1, "model": "stub"}
    body = msgspec.json.encode({**about, "choices": [choice], "usage": usage})
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_WHOLE = _whole()
_LIST = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n"
    b'{"data":[{"id":"stub"}]}'
)


class Stub(asyncio.Protocol):
    """Answers by the model that is asked for: stub, brief, paced, or slow."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head, rest = self._data[:end], self._data[end + 4 :]
            length = int(found[1]) if (found := _LENGTH.search(head)) else 0
            if len(rest) < length:
                return
            body, self._data = rest[:length], rest[length:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        transport = self._transport
        if head.startswith(b"GET"):
            transport.write(_LIST)
        elif b'"slow"' in body:
            transport.write(_STREAM_HEAD + _OPENING)
            self._drip(transport)
        elif b'"brief"' in body:
            transport.write(_BRIEF)
        elif b'"paced"' in body:
            transport.write(_STREAM_HEAD + _OPENING)
            self._pace(transport, 0)
        else:
            transport.write(_STREAM if b'"stream":true' in body.replace(b" ", b"") else _WHOLE)

    def _drip(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.write(_WORDS[0])
            asyncio.get_running_loop().call_later(1.0, self._drip, transport)

    def _pace(self, transport: asyncio.Transport, number: int) -> None:
        if transport.is_closing():
            return
        if number == CHUNKS:
            transport.write(_CLOSING)
            return
        transport.write(_WORDS[number])
        asyncio.get_running_loop().call_later(PACE, self._pace, transport, number + 1)


async def _serve_stub(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=2_000)
    await server.serve_forever()


# --------------------------------------------------------------------------------------- the driver


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one server. Times are seconds, `cpu` is what the server's process used."""

    clients: int
    streamed: bool
    requests: int
    seconds: float
    cpu: float
    first: float  # until the first content, of the middle request

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_per_request(self) -> float:
        """Seconds: what other work on the machine changes least."""
        return self.cpu / self.requests

    @property
    def chunks_per_second(self) -> float:
        return self.requests_per_second * CHUNKS

    @property
    def cpu_per_chunk(self) -> float:
        """Microseconds, all of a request shared out among its chunks."""
        return self.cpu / (self.requests * CHUNKS) * 1e6


def _request(model: str, *, stream: bool) -> bytes:
    body = msgspec.json.encode(
        {"model": model, "stream": stream, "messages": [{"role": "user", "content": "Hello!"}]}
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _client(port: int, request: bytes, streamed: bool, until: float) -> list[float]:  # noqa: FBT001
    """Asks again and again; the time to the first content of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    found = []
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(request)
        found.append(await (_streamed if streamed else _read_whole)(reader) - began)
    writer.close()
    return found


async def _streamed(reader: asyncio.StreamReader) -> float:
    """Reads one stream to its end; when its first content came."""
    first, data = 0.0, b""
    while not data.endswith(b"0\r\n\r\n"):
        got = await reader.read(1 << 20)
        assert got, data[-2_000:]
        data += got
        if not first and b'"content":"w' in data.replace(b'": "', b'":"'):
            first = time.perf_counter()
    assert data.count(b"word") in (1, CHUNKS), data[:2_000]
    return first


async def _read_whole(reader: asyncio.StreamReader) -> float:
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    found = _LENGTH.search(head)
    assert found, head
    await reader.readexactly(int(found[1]))
    return time.perf_counter()


async def drive(
    port: int, pid: int, *, model: str, clients: int, stream: bool, seconds: float
) -> Driven:
    """`clients` ask for `seconds`, each one request after the other."""
    request, server = _request(model, stream=stream), psutil.Process(pid)
    await _client(port, request, stream, time.perf_counter() + 0.3)
    used, began = sum(server.cpu_times()[:2]), time.perf_counter()
    until = began + seconds
    asked = [_client(port, request, stream, until) for _ in range(clients)]
    times = [one for each in await asyncio.gather(*asked) for one in each]
    return Driven(
        clients=clients,
        streamed=stream,
        requests=len(times),
        seconds=time.perf_counter() - began,
        cpu=sum(server.cpu_times()[:2]) - used,
        first=statistics.median(times),
    )


async def pace(port: int, pid: int, clients: int) -> Driven:
    """`clients` read one paced stream each, which begin apart."""
    request, server = _request("paced", stream=True), psutil.Process(pid)

    async def read(number: int) -> list[float]:
        await asyncio.sleep(PACE * number / clients)
        return await _client(port, request, True, time.perf_counter() + PACE)  # noqa: FBT003

    await _client(port, _request("stub", stream=True), True, time.perf_counter() + 0.1)  # noqa: FBT003
    used, began = sum(server.cpu_times()[:2]), time.perf_counter()
    times = [one for each in await asyncio.gather(*map(read, range(clients))) for one in each]
    return Driven(
        clients=clients,
        streamed=True,
        requests=len(times),
        seconds=time.perf_counter() - began,
        cpu=sum(server.cpu_times()[:2]) - used,
        first=statistics.median(times),
    )


async def hold(port: int, pid: int) -> int:
    """Bytes that the server takes while `SLOW` streams are open and move."""
    request = _request("slow", stream=True)
    streams = []
    for _ in range(SLOW):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        streams.append((reader, writer))
    for reader, _ in streams:
        seen = b""
        while b"word0" not in seen:
            seen += await reader.read(65_536)
    resident: int = psutil.Process(pid).memory_info().rss
    for _, writer in streams:
        writer.transport.abort()
    return resident


# ---------------------------------------------------------------------------------------- the whole


@contextlib.contextmanager
def stub() -> Iterator[int]:
    """The stub's port."""
    port = free_port()
    with serving([sys.executable, "-m", "benchmarks.relay", "--stub", str(port)], port):
        yield port


@contextlib.contextmanager
def ours(port: int, folder: Path) -> Iterator[tuple[int, int]]:
    """Roundhouse in front of the stub: port and process."""
    config = folder / "roundhouse.yaml"
    names = "{stub: stub, brief: brief, paced: paced, slow: slow}"
    config.write_text(
        f"upstreams:\n  - name: stub\n    urls: ['http://127.0.0.1:{port}']\n"
        f"    models: {names}\n    max_concurrent: 2000\nlog: {{level: warning}}\n"
    )
    environment = {"XDG_CACHE_HOME": str(folder)}
    with roundhouse("--config", str(config), environment=environment) as running:
        yield running.port, running.pid


def httpx_relay(port: int) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """What one writes in an afternoon: an ASGI app that hands bytes on."""
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None)  # noqa: S113

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        async with client.stream(scope["method"], scope["path"], content=body) as response:
            kept = (b"content-type", b"content-length")
            headers = [pair for pair in response.headers.raw if pair[0].lower() in kept]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in response.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def _serve_httpx(port: int, mine: int) -> None:
    uvicorn.run(httpx_relay(port), port=mine, log_level="warning", lifespan="off")


@contextlib.contextmanager
def over_httpx(port: int) -> Iterator[tuple[int, int]]:
    """The relay over httpx in front of the stub: port and process."""
    mine = free_port()
    command = [sys.executable, "-m", "benchmarks.relay", "--httpx", str(port), str(mine)]
    with serving(command, mine) as running:
        yield mine, running.pid


NGINX = """
daemon off; master_process off; pid nginx.pid; error_log stderr;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 10000000; client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  upstream stub {{ server 127.0.0.1:{port}; keepalive 128; keepalive_requests 10000000; }}
  server {{
    listen 127.0.0.1:{mine};
    location / {{
      proxy_pass http://stub; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(program: str, port: int, folder: Path) -> Iterator[tuple[int, int]]:
    """Nginx in front of the stub, in one process: port and process. It reads no answer."""
    mine, config = free_port(), folder / "nginx.conf"
    config.write_text(NGINX.format(port=port, mine=mine))
    with serving([program, "-p", str(folder), "-c", str(config)], mine) as running:
        yield mine, running.pid


@contextlib.contextmanager
def litellm(python: str, port: int, folder: Path) -> Iterator[tuple[int, int]]:
    """LiteLLM's proxy in front of the stub, with one worker: port and process."""
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n"
        + "".join(
            f"  - model_name: {name}\n    litellm_params:\n      model: openai/{name}\n"
            f"      api_base: http://127.0.0.1:{port}/v1\n      api_key: sk-1\n"
            for name in ("stub", "brief", "paced")
        )
    )
    mine = free_port()
    command = [str(Path(python).parent / "litellm"), "--config", str(config), "--port", str(mine)]
    command += ["--host", "127.0.0.1", "--num_workers", "1"]
    with serving(command, mine, {OPEN_TO_ALL: "true"}) as running:
        time.sleep(5)  # it listens before it is ready
        yield mine, running.pid


Load: TypeAlias = Callable[[int, int], Awaitable[Driven]]
Contestants: TypeAlias = dict[str, tuple[int, int]]  # port and process


def loads(seconds: float) -> Iterator[tuple[str, Load]]:
    """Each with its name; the first row is the one that users have."""
    yield f"paced {PACED} streams", partial(pace, clients=PACED)
    brief = partial(drive, model="brief", clients=1, stream=True, seconds=seconds)
    yield "brief 1 client", brief
    for kind, stream in (("stream", True), ("whole", False)):
        for clients in (1, 16, 64):
            of_stub = partial(drive, model="stub", clients=clients, stream=stream, seconds=seconds)
            yield f"{kind} {clients} clients", of_stub


async def measure(name: str, load: Load, contestants: Contestants) -> None:
    """One load on all in turn, again and again, printed: the least processor time of each."""
    driven: dict[str, list[Driven]] = {who: [] for who in contestants}
    for _ in range(ROUNDS):
        for who, (port, pid) in contestants.items():
            driven[who].append(await load(port, pid))
    for who, rounds in driven.items():
        best = min(rounds, key=lambda one: one.cpu_per_request)
        first = min(one.first for one in rounds)
        line = (
            f"{name:17} {who:10} {best.requests_per_second:8.0f} req/s, first {first * 1e3:7.2f} ms"
        )
        line += f", {best.cpu_per_request * 1e3:6.2f} ms CPU per request"
        if best.streamed and not name.startswith("brief"):
            line += f", {best.cpu_per_chunk:6.2f} us per chunk"
        print(line, flush=True)


async def main(arguments: argparse.Namespace) -> None:
    """Start all, measure each load on all in turn, and print."""
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        port = running.enter_context(stub())
        contestants: Contestants = {
            "straight": (port, os.getpid()),
            "roundhouse": running.enter_context(ours(port, folder)),
            "httpx": running.enter_context(over_httpx(port)),
        }
        if (program := shutil.which("nginx")) is not None:
            contestants["nginx"] = running.enter_context(nginx(program, port, folder))
        if (python := arguments.litellm or _own_litellm()) is not None:
            try:
                contestants["litellm"] = running.enter_context(litellm(python, port, folder))
            except DidNotStart as error:
                print(f"litellm is left out: {error}")
        for name, load in loads(arguments.seconds):
            await measure(name, load, contestants)
        resident = await hold(*contestants["roundhouse"])
        print(f"roundhouse holds {SLOW} slow streams in {resident / 2**20:.0f} MiB", flush=True)


def _own_litellm() -> str | None:
    """This interpreter, if it has LiteLLM."""
    return sys.executable if find_spec("litellm") else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stub", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--httpx", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--litellm", metavar="PYTHON", help="an interpreter that has LiteLLM")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    arguments = parser.parse_args()
    if arguments.httpx:
        _serve_httpx(*arguments.httpx)
    else:
        uvloop.run(_serve_stub(arguments.stub) if arguments.stub else main(arguments))
