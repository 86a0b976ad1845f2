"""uvicorn around the application: signals, the grace for running answers, clients that don't read.

SIGTERM or SIGINT (Ctrl-C) stops: new connections are refused, running answers have `shutdown_grace`
seconds, then each ends with an error event. A second one ends the grace at once. Whatever native
code still runs then (an engine's import, a load) is not waited for. SIGHUP reads the configuration
again; a closed terminal doesn't end the server.

Exit status: 0 after a stop that was asked for, 128 + the signal's number after a second one, 1
where the address can't be listened on, 2 where the start failed, or a model that is to be loaded
with it can't fit, 70 where what all answers need has failed.
"""

import asyncio
import errno
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import msgspec
import structlog
import uvicorn
from litestar import Litestar
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from config.settings import ServerConfig
from config.values import UNIX
from gateway.http.sse import SEND_TIMED_OUT
from gateway.reconfiguring.joining import Joiner
from gateway.registry import Registry
from gateway.terms.tasks import companions

if sys.platform != "win32":
    import resource

log = structlog.get_logger()

LAST_WORDS = 5.0  # seconds for cut-off answers to send their error event
CLOSING = 2.0  # seconds for a WebSocket's client to answer that it is closed
TIDYING = 1.0  # seconds to close models and files once no client is left
STOPS = (signal.SIGINT, signal.SIGTERM)
BROKEN = 70  # EX_SOFTWARE of sysexits.h
MOST_BESIDE = 64 * 1024  # bytes of a request that are no body
MOST_FRAME = 8  # bytes around one of a chunked body
PATIENCE = 20.0  # seconds for a head, or for a body that comes too slowly
LOOK = 2.0  # seconds between two looks at that
LEAST_BODY = 1024.0  # bytes of a body a second
FILES = 65_536  # that are wanted, where the system allows them
MOST_CONNECTIONS = 4_096


def raise_files() -> None:
    """As many open files as this process may have."""
    if sys.platform == "win32":  # which has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def most_connections() -> int:
    """Half of the files: an answer may need one, too."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, files // 2)


class Watched(asyncio.Protocol):
    """One of uvicorn's protocols that cuts off a client which takes nothing of what waits for it.

    It watches only while the write buffer is so full that senders wait, and what is left when
    nothing more will come: a frame that is sent costs nothing.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: float,
        timed_out: Callable[[], None],
    ) -> None:
        """`patience`: seconds without progress. `timed_out` is called where it cuts off."""
        super().__init__(config, server_state, app_state, _loop)  # type: ignore[call-arg] # uvicorn's take them
        self._patience = patience
        self._timed_out = timed_out

    def pause_writing(self) -> None:
        """The buffer is full."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Unless it does already, or nothing waits."""
        unsent = self.transport.get_write_buffer_size()
        if self._timer is None and unsent:
            self._timer = self.loop.call_later(self._patience, self._check, unsent)

    def _rest(self) -> None:
        """The client reads, or has left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, before: int) -> None:
        """While it is watched the buffer only shrinks: as large as before is no progress."""
        self._timer = None
        unsent = self.transport.get_write_buffer_size()
        if unsent < before:
            self._watch()
            return
        log.warning(
            "client disconnected: it doesn't read",
            client=self.client[0] if self.client else "",
            seconds=self._patience,
            unsent_bytes=unsent,
        )
        self._cut_off()
        self._timed_out()
        self.transport.abort()

    def _cut_off(self) -> None:
        """Note it for whoever answers."""
        raise NotImplementedError


class GuardedConnection(Watched, HttpToolsProtocol):
    """uvicorn's, with bounds for who sends: of the bytes of a request that are no body (URL,
    headers, trailers, frames of chunks), of the time until its head is whole, of how slowly its
    body comes, and of connections.
    """

    _answering: RequestResponseCycle | None = None
    _beside = 0  # bytes of the present request that are no body
    _came = 0  # bytes since the last look
    _owed = 0.0  # bytes that its client is behind
    _looks: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected. One address gets half of what the others leave."""
        super().connection_made(transport)
        left = most_connections() - len(self.connections)
        if left < len(self.connections):
            theirs = (getattr(one, "client", None) for one in self.connections)
            mine = self.client and self.client[0]
            if sum(one is not None and one[0] == mine for one in theirs) > left:
                self._refuse(503, "too_many_connections", "This server has no connection left.")
                return
        self._looks = self.loop.call_later(LOOK, self._look)

    def data_received(self, data: bytes) -> None:
        """In parts that hold no more beside the body than a request may have."""
        self._came += len(data)
        while data and not self.transport.is_closing():
            room = MOST_BESIDE - self._beside
            part, data = data[:room], data[room:]
            self._beside += len(part)
            super().data_received(part)
            if self._beside >= MOST_BESIDE:
                text = f"URL and headers have more than {MOST_BESIDE:,} bytes."
                self._refuse(431, "headers_too_large", text)

    def on_body(self, body: bytes) -> None:
        """A chunk may have as many bytes of frame as a small one needs."""
        self._beside = max(0, self._beside - MOST_FRAME * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next request has bounds of its own."""
        self._beside, self._owed = 0, 0.0
        super().on_message_complete()

    def _look(self) -> None:
        """Whether the client sends what it owes: a head at once, a body not too slowly."""
        self._looks = self.loop.call_later(LOOK, self._look)
        came, self._came = self._came, 0
        if self.flow.read_paused:
            return
        cycle = self._answering
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            self._owed = max(0.0, self._owed + LOOK * LEAST_BODY - came)
        elif self._beside or cycle is None:
            self._owed += LOOK * LEAST_BODY
        if self._owed >= PATIENCE * LEAST_BODY:
            self._refuse(408, "request_too_slow", f"Nothing whole came in {PATIENCE:g} s.")

    def _refuse(self, status: int, code: str, text: str) -> None:
        """End the connection; with an answer where none has begun."""
        cycle = self._answering
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = msgspec.json.encode({"error": {"message": text, "code": code, "param": None}})
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(
                STATUS_LINE[status] + f"{head}connection: close\r\n\r\n".encode() + body
            )
        self.transport.close()

    def shutdown(self) -> None:
        """The server stops. Answers are waited for; a body may never be whole."""
        cycle = self._answering
        if cycle is not None and cycle.more_body and not cycle.response_started:
            self._refuse(503, "shutting_down", "The server is stopping.")
        super().shutdown()

    def on_response_complete(self) -> None:
        """What the buffer still holds must be read, too; uvicorn would keep it for ever."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Both requests are notified where a second was pipelined: uvicorn notifies the newest
        alone.
        """
        if self._looks is not None:
            self._looks.cancel()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is a `GuardedSocket`'s."""
        if self._looks is not None:
            self._looks.cancel()
        super().handle_websocket_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        if not self.flow.write_paused:  # the next answer will make the buffer grow
            self._rest()
        super()._start_asgi_task(cycle, app)

    def _cut_off(self) -> None:
        if self._answering is not None:
            self._answering.scope["state"][SEND_TIMED_OUT] = True


class GuardedSocket(Watched, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket. When the server stops its route ends it, once what it answers is over:
    see `Sockets.drain`.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self.close_timeout = CLOSING

    def shutdown(self) -> None:
        """The server stops. Where it is open its route knows."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()

    async def send(self, message: ASGISendEvent) -> None:
        """A refusal is a whole answer; uvicorn would log that the route opened nothing."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True

    def _cut_off(self) -> None:
        self.scope["state"][SEND_TIMED_OUT] = True


class Server(uvicorn.Server):
    """Stops accepting on SIGTERM, lets answers finish for a while, then ends them with an error
    event.
    """

    def __init__(
        self,
        app: Litestar,
        config: ServerConfig,
        registry: Registry,
        greet: Callable[[str], None],
        *,
        timed_out: Callable[[], None] = lambda: None,
        hangup: Callable[[], None] = lambda: None,
        drain: Callable[[], None] = lambda: None,
    ) -> None:
        """`timed_out` is called for each client that is cut off after `send_timeout`, `hangup` on
        the event loop after SIGHUP, `drain` before the process is ended: what was printed goes out.
        """
        patience = config.send_timeout
        super().__init__(
            uvicorn.Config(
                self._served,
                interface="asgi3",
                host=config.host,
                port=config.port,
                loop="auto",  # uvloop, where there is one
                # any callables that make a protocol
                http=partial(GuardedConnection, patience=patience, timed_out=timed_out),  # type: ignore[arg-type]
                ws=partial(GuardedSocket, patience=patience, timed_out=timed_out),  # type: ignore[arg-type]
                ws_max_size=config.max_message,
                ws_ping_timeout=config.send_timeout,
                ws_per_message_deflate=False,  # texts of a few words, and a zip bomb less
                log_config=None,
                access_log=False,
                server_header=False,
                forwarded_allow_ips=list(config.trusted_proxies),
                timeout_keep_alive=math.ceil(config.idle_timeout),
                timeout_graceful_shutdown=int(config.shutdown_grace + LAST_WORDS),
            )
        )
        self.app = app
        self._address = config.host, config.port
        self._grace = config.shutdown_grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurry = asyncio.Event()  # a second signal came
        self.status = 0
        self._registry = registry
        self._greet = greet
        self._hangup = hangup
        self._drain = drain
        self.joiner: Joiner | None = None  # announces this server as long as it listens

    def listen(self) -> list[socket.socket]:
        """The sockets of its address, before anything is started. Raises OSError."""
        host, port = self._address
        if host.startswith(UNIX):
            return [_unix(Path(host.removeprefix(UNIX)))]
        if host in ("*", "::") and socket.has_dualstack_ipv6():
            return [_bound(socket.AF_INET6, ("::", port), takes_all=True)]
        host = "0.0.0.0" if host == "*" else host  # noqa: S104 - as it is configured
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return [_bound(family, address) for family, _, _, _, address in found]

    def obstacle(self, error: OSError) -> str:
        """Why it can't listen, in one line."""
        host, port = self._address
        place = host if host.startswith(UNIX) else f"{host}:{port}"
        reason = (error.strerror or str(error)).lower()
        return f"can't listen on {place}: {reason}; use --host and --port to choose another address"

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising the signal again: a stop that was asked for exits with 0."""
        before = {kind: signal.signal(kind, self.handle_exit) for kind in STOPS}
        if sys.platform != "win32":  # which has no such signal
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hung_up)
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    async def _served(self, scope: Any, *channel: Any) -> None:
        """The application. Where its life (ASGI's lifespan) ends by an error, nobody is served any
        more: uvicorn would serve on without all that lives there.
        """
        try:
            await self.app(scope, *channel)
        except BaseException as error:
            if scope["type"] == "lifespan" and self.started and not self.should_exit:
                log.critical("the server can't go on: it ends", exc_info=error)
                self.status, self.should_exit = BROKEN, True
                self.end_after(LAST_WORDS)
            raise

    def _hung_up(self, _sig: int, _frame: FrameType | None) -> None:
        """In the main thread, wherever it is."""
        self._on_loop(self._hangup)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """In the main thread, wherever it is."""
        if not self.should_exit:
            self.should_exit = True
            self.end_after(self._grace + TIDYING)
            return
        self.status = 128 + sig
        self.end_after(TIDYING)
        self._on_loop(self._hurry.set)

    def _on_loop(self, function: Callable[[], None]) -> None:
        """From a signal's handler, which may stand in the middle of anything."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function)

    def _announce(self) -> None:
        """What is waited for, and how not to."""
        answers = sum(one.in_use + one.waiting for one in self._registry.statuses())
        if not answers:
            log.info("stopping")
            return
        counted = "1 answer has" if answers == 1 else f"{answers} answers have"
        text = f"stopping: {counted} {self._grace:g} s; Ctrl-C or a second signal ends them"
        log.info(text, answers=answers, seconds=self._grace)

    def end_after(self, seconds: float, more: float = LAST_WORDS) -> None:
        """End the process then, whatever still runs in it."""
        timer = threading.Timer(seconds, self._end, [more])
        timer.daemon = True
        timer.start()

    def _end(self, more: float) -> None:
        """On a thread of its own, since the event loop may stand still while an engine is imported.
        Clients get `more` seconds to receive the error.
        """
        if more and self.server_state.tasks:
            self.end_after(more, 0.0)
            return
        self._drain()
        os._exit(self.status)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)  # type: ignore[arg-type]
        if not (self.started and self.servers):
            return
        if (obstacle := self._registry.preload_obstacle()) is not None:
            print(f"roundhouse: preload: {obstacle}", file=sys.stderr)  # noqa: T201 - the command's output
            self.status, self.should_exit = 2, True
        else:
            address = self.servers[0].sockets[0].getsockname()
            if isinstance(address, str):
                self._greet(f"{UNIX}{address}")
                return
            host, port = address[:2]
            self._greet(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            if self.joiner is not None:
                self.joiner.begin(port)

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        self._registry.watchers.end()
        if not self.status:
            self._announce()
        if self.joiner is not None:  # first: nobody is sent here whom nobody answers
            await self.joiner.withdraw()
        async with companions() as tasks:
            tasks.start_soon(self._cut_off_late)
            await super().shutdown(sockets)  # type: ignore[arg-type]

    async def _cut_off_late(self) -> None:
        with anyio.move_on_after(self._grace):
            await self._hurry.wait()
        self._registry.cut_off()


def _unix(path: Path) -> socket.socket:
    """Listening there; what a server that has ended left is removed. Raises OSError."""
    listens = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        if path.is_socket() and listens.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()
    listens.bind(str(path))
    path.chmod(0o666)  # as a port of loopback, which whoever is on this machine reaches
    return listens


def _bound(family: int, address: Any, *, takes_all: bool = False) -> socket.socket:
    """Bound there, of IPv6 for IPv4 too where it `takes_all`. Raises OSError."""
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not takes_all)
    bound.bind(address)
    return bound


def run(server: Server) -> int:
    """Serve until a stop signal. Returns the exit status, see above."""
    try:
        sockets = server.listen()
    except OSError as error:
        print(f"roundhouse: {server.obstacle(error)}", file=sys.stderr)  # noqa: T201 - the command's output
        return 1
    raise_files()
    with suppress(SystemExit):  # uvicorn's own status when it can't start; it has said why
        server.run(sockets)
    if server.started:  # a thread may hang: in the file system of a share, say
        server.end_after(TIDYING)
    return server.status if server.started else 2
