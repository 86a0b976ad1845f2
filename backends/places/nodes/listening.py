"""A process that listens for gateways on other machines, and starts a worker for each connection:
the other end of `backends.places.nodes.node`.

    gateway ──TCP──▶ Session: handshake, then Recognise, Fit ──▶ reads headers here
                     LoadModel ──▶ a worker of this machine (`backends.places.worker`), as ever
                     Begin, …: handed on, decoded and encoded anew; Outcomes: as they came

So a crash ends one connection's worker; its last words, its heartbeat and its memory are seen to
here, and what the gateway hears of them is a message. A gateway that comes again gets a new worker.

A stranger can open connections, and send the few bytes of a handshake in a few seconds. Whoever has
the token can load any file that this process can read (or of `folders` alone), with any options: it
is as good as an account here.
"""

import asyncio
import os
import secrets
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from backends.contract.catalog import BACKENDS, CPU, Catalog, ModelFiles, Placement
from backends.contract.errors import BackendError, BackendMissing, LoadFailed
from backends.contract.framing import (
    LARGEST,
    Fit,
    Fitted,
    Frames,
    Loaded,
    Loading,
    LoadModel,
    Ping,
    Pong,
    Received,
    Recognise,
    Recognised,
    Refused,
    Shelf,
    VocabularyFiles,
    WorkerCommand,
    WorkerEvent,
)
from backends.contract.identity import identity_if_there
from backends.contract.messages import Close, Closed, Event, Failure, Lost
from backends.contract.protocol import Progress
from backends.machine.control_groups import main_memory, main_memory_free
from backends.machine.devices import devices
from backends.machine.futures import settle
from backends.places.nodes.certificates import certificate_of, made_certificate
from backends.places.nodes.handshake import (
    Handshake,
    HandshakeFailed,
    OtherVersion,
    certificate_fingerprint,
)
from backends.places.worker import WorkerPort, Workers, ended_unless_whole
from config.engines import EngineOptions
from config.nodes import joined

log = structlog.get_logger(__name__)

STRANGERS = 64  # connections at a time that have not proven anything yet; then the oldest goes
GREETING = 5.0  # seconds for that, TLS included
LARGEST_ORDER = 16 * 1024 * 1024  # bytes of a message before a model is loaded
LONGEST_QUEUE = 16 * 1024 * 1024  # bytes that a gateway has not taken, before its worker must wait
TOLD_EVERY = 1.0  # seconds between two lines of the log about strangers
TOKEN_VARIABLE = "ROUNDHOUSE_WORKER_TOKEN"  # noqa: S105 - the name of one


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, and for whom. `folders`: none but their models are loaded; empty: any.
    `tls` without `certificate` and `key`, files in PEM: one is made that signs itself.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    certificate: str | None = None
    key: str | None = None
    folders: tuple[str, ...] = ()
    silence: float = 30.0  # seconds without a heartbeat, after which a gateway is gone


class Listening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A listener, as it reports itself. `fingerprint`: of its certificate, where it has TLS.
    `token`: left out of what is printed.
    """

    address: str
    pid: int
    fingerprint: str | None = None
    token: str = ""

    def __repr__(self) -> str:
        """All but the secret, since representations end in logs."""
        return f"Listening(address={self.address!r}, pid={self.pid}, tls={bool(self.fingerprint)})"


class Session(asyncio.Protocol):
    """One connection of a gateway, and the worker behind it."""

    def __init__(self, place: "Place", token: str) -> None:
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._handshake = Handshake("worker", token)
        self._frames = Frames(WorkerCommand, lambda: self._send(Received()))
        self._frames.most = LARGEST_ORDER
        self._shelf = Shelf(shared=False)
        self._transport: asyncio.Transport | None = None
        self._heard = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None  # reads headers, or loads
        self._port: WorkerPort | None = None
        self._leaving = False  # its gateway has said `Close`
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.ended = anyio.Event()  # its worker is gone, too

    def abort(self, connection: socket.socket | None = None) -> None:
        """End it at once. `connection`: what it would have been connected by."""
        if self._transport is not None:
            self._transport.abort()
        elif connection is not None:
            connection.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(LONGEST_QUEUE)
        self._handshake.begin(self._place.certificate)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            if not self._handshake.done:
                data = self._greet(data)
            for command in self._frames.feed(data) if data else ():
                self._obey(command)
        except Exception as error:  # noqa: BLE001 - whatever it sent, no other session is hurt by it
            self._refuse(error)

    def pause_writing(self) -> None:
        if self._port is not None:
            self._port.pause()

    def resume_writing(self) -> None:
        if self._port is not None:
            self._port.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
        settle(self.greeted, HandshakeFailed("closed the connection"))
        self._end = self._loop.create_task(self._clear())

    def _greet(self, data: bytes) -> bytes:
        sent, rest = self._handshake.feed(data)
        if self._transport is not None and sent:
            self._transport.write(sent)
        if self._handshake.done:
            self.greeted.set_result(None)
            self._look()
        return rest

    def _refuse(self, error: Exception) -> None:
        if self._transport is None:
            return
        if isinstance(error, OtherVersion):
            self._transport.write(error.answer)
            self._transport.close()
        else:
            self._transport.abort()
        if not self.greeted.done():
            self.greeted.set_exception(error)
        else:
            log.warning("a gateway sent what can't be read", reason=str(error))

    def _look(self) -> None:
        """Whether the gateway is still there."""
        silence = self._place.silence
        if self._loop.time() - self._heard > silence:
            log.warning("a gateway is silent: its worker ends", seconds=silence)
            self.abort()
            return
        self._watch = self._loop.call_later(silence / 4, self._look)

    def _send(self, event: WorkerEvent) -> None:
        if self._transport is not None:
            self._transport.write(self._shelf.frame(event))

    def _tell(self, event: Event) -> None:
        self._send(event)
        if isinstance(event, Closed | Lost) and self._transport is not None:
            self._transport.close()  # when all is sent

    def _obey(self, command: WorkerCommand) -> None:
        match command:
            case Ping():
                self._send(Pong())
            case Received():
                self._shelf.received()
            case Recognise() | Fit() | LoadModel() if self._task is None and self._port is None:
                self._task = self._loop.create_task(self._answer(command))
                self._task.add_done_callback(self._ended)
            case Close():
                self._leave()
            case Recognise() | Fit() | LoadModel():
                raise ValueError("a connection is for one thing at a time")
            case _ if self._port is not None:
                self._port.send(command)
            case _:
                raise ValueError(f"{type(command).__name__} before a model is loaded")

    def _leave(self) -> None:
        self._leaving = True
        if self._task is not None:
            self._task.cancel()
        elif self._port is not None:
            self._port.send(Close())
        else:
            self._tell(Closed())

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """It may have run none of its own code: it was cancelled before it began."""
        self._task = None
        if self._leaving:
            self._leave()

    async def _answer(self, command: Recognise | Fit | LoadModel) -> None:
        """One of them; nothing is left of a load that fails or is cancelled."""
        try:
            self._send(await self._result(command))
        except BackendError as error:
            self._send(Refused(Failure.of(error)))
        except Exception as error:
            log.exception("a gateway's order failed unexpectedly")
            self._send(Refused(Failure("LoadFailed", f"{type(error).__name__}: {error}")))
        if self._port is not None:  # what it says comes after `Loaded`
            self._port.connect(self._tell)

    async def _result(self, command: Recognise | Fit | LoadModel) -> WorkerEvent:
        match command:
            case Recognise(path, backend):
                return Recognised(await asyncio.to_thread(self._place.recognise, path, backend))
            case Fit(files, encoded):
                return await asyncio.to_thread(self._place.fitted, files, encoded)
            case LoadModel():
                return await self._load(command)

    async def _load(self, command: LoadModel) -> Loaded:
        place = self._place
        files, options = await asyncio.to_thread(place.placed, command)
        backend = place.catalog[files.backend]
        port = await place.workers.start(backend, files, options, self._report)
        async with ended_unless_whole(port):
            vocabulary = await asyncio.to_thread(place.vocabulary, files, port.info)
            own = await asyncio.to_thread(identity_if_there, files, options, port.info)
        self._port = port
        self._frames.most = LARGEST  # pictures and saved slots
        return Loaded(replace(port.info, identity=own), vocabulary)

    def _report(self, progress: Progress) -> None:
        self._send(Loading(progress))

    async def _clear(self) -> None:
        """The gateway is gone: nothing is left for it."""
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
            if self._port is not None:
                await self._port.end()
        finally:
            self.ended.set()


class Place:
    """What sessions load from, and with: this machine's models, engines and workers."""

    def __init__(
        self,
        workers: Workers,
        settings: ListenerSettings,
        certificate: bytes | None,
        catalog: Catalog,
    ) -> None:
        self.workers = workers
        self.catalog = catalog
        self.certificate = certificate  # in DER; None: there is no TLS
        self.silence = settings.silence
        self._folders = [Path(folder).expanduser().resolve() for folder in settings.folders]

    def recognise(self, path: str, backend: str | None) -> ModelFiles:
        """The model there. Raises LoadFailed, UnsupportedModel."""
        if backend is not None and backend not in self.catalog:
            raise BackendMissing(f"there is no engine {backend!r} here")
        return self.catalog.recognise(self._allowed(path), backend)

    def found(
        self, described: ModelFiles, encoded: msgspec.Raw
    ) -> tuple[ModelFiles, EngineOptions]:
        """The files as they are now, and the options. Raises LoadFailed."""
        files = self.recognise(str(described.path), described.backend)
        backend = self.catalog[files.backend]
        try:
            options = msgspec.msgpack.decode(encoded, type=backend.options)
        except msgspec.DecodeError as error:
            raise LoadFailed(f"options of {files.backend}: {error}") from error
        return backend.files.fitted(files, options), options

    def placed(self, command: LoadModel) -> tuple[ModelFiles, EngineOptions]:
        """What is to be loaded, as it is to lie. Raises LoadFailed."""
        files, options = self.found(command.files, command.options)
        module, (total, free) = self.catalog[files.backend].files, memory_here()
        cards = {name: size for name, size in total.items() if name != CPU}
        ways = module.placements(files, options, cards)
        way = first_fitting(ways, module.estimate(files, options).total, free)
        return files, module.placed(options, way, cards)

    def fitted(self, described: ModelFiles, encoded: msgspec.Raw) -> Fitted:
        """What a gateway plans with. Raises LoadFailed."""
        files, options = self.found(described, encoded)
        need = self.catalog[files.backend].files.estimate(files, options)
        return Fitted(files, need, memory_here()[0])

    def vocabulary(self, files: ModelFiles, info: Any) -> VocabularyFiles | None:
        """What the gateway makes its tokenizer of. Raises LoadFailed."""
        if info.tokenizer_path is None:
            return None
        path = Path(info.tokenizer_path)
        found = self.catalog[files.backend].files.vocabulary(path)
        return VocabularyFiles(dict(found), None if path.is_dir() else path.name)

    def _allowed(self, text: str) -> Path:
        path = Path(text).expanduser()
        if not path.is_absolute():
            raise LoadFailed(f"{text} is no whole path; on another machine there is no other")
        if self._folders and not any(path.resolve().is_relative_to(one) for one in self._folders):
            raise LoadFailed(f"{text} is outside the folders that this node loads from")
        return path


def memory_here() -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of this machine's devices with memory of their own, and how many of them are free."""
    cards = {name: one for name, one in devices().items() if not one.shared}
    return (
        {name: one.total for name, one in cards.items()} | {CPU: main_memory()},
        {name: one.free for name, one in cards.items()} | {CPU: main_memory_free()},
    )


def first_fitting(ways: Sequence[Placement], need: int, free: Mapping[str, int]) -> Placement:
    """The first way to lie for which there is room now; where there is none, the last."""
    for way in ways:
        if all(need * part <= free.get(name, 0) for name, part in way.items()):
            return way
    return ways[-1]


class Listener:
    """A listening socket, and the sessions of those who have the token."""

    def __init__(self, bound: socket.socket, place: Place, token: str, context: Any) -> None:
        """`context`: an ssl.SSLContext; None: without TLS."""
        self._bound = bound
        self._place = place
        self._token = token
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._sessions = WeakSet[Session]()
        self._told = float("-inf")

    async def run(self) -> None:
        """Until it is cancelled: then all of its workers are ended."""
        try:
            while True:
                try:
                    connection, address = await self._loop.sock_accept(self._bound)
                except OSError as error:  # no more files, say
                    self._tell_of("nobody can be let in", reason=str(error))
                    await asyncio.sleep(0.1)
                    continue
                self._admit(connection, address)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _close(self) -> None:
        for task in tuple(self._strangers):
            task.cancel()
        sessions = tuple(self._sessions)
        for session in sessions:
            session.abort()
        for session in sessions:
            await session.ended.wait()

    def _admit(self, connection: socket.socket, address: Any) -> None:
        if len(self._strangers) >= STRANGERS:  # who has the token needs a moment, not all of them
            next(iter(self._strangers)).cancel()
        task = self._loop.create_task(self._greet(connection, address))
        self._strangers[task] = None
        task.add_done_callback(lambda _: self._strangers.pop(task, None))

    async def _greet(self, connection: socket.socket, address: Any) -> None:
        session = Session(self._place, self._token)
        try:
            async with asyncio.timeout(GREETING):
                await self._loop.connect_accepted_socket(
                    lambda: session, connection, ssl=self._context
                )
                await asyncio.shield(session.greeted)
        except (OSError, HandshakeFailed, TimeoutError) as error:  # ssl.SSLError is an OSError
            self._tell_of(
                "a connection was refused", peer=str(address[0]), reason=str(error) or "too slow"
            )
            if not isinstance(error, OtherVersion):  # which is still being sent
                session.abort(connection)
        except BaseException:
            session.abort(connection)
            raise
        else:
            self._sessions.add(session)

    def _tell_of(self, what: str, **facts: str) -> None:
        """Strangers don't fill the log."""
        if time.monotonic() - self._told >= TOLD_EVERY:
            self._told = time.monotonic()
            log.warning(what, **facts)


def _bound(host: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.create_server(cast(Any, address), family=family, backlog=STRANGERS)
    bound.settimeout(0)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections have it, too
    return bound


@asynccontextmanager
async def listening(
    settings: ListenerSettings, token: str, catalog: Catalog = BACKENDS
) -> AsyncIterator[Listening]:
    """A listener in this process, until the context ends; its workers end with it. Raises OSError,
    LoadFailed for a certificate that can't be used.
    """
    context, certificate = server_context(settings) if settings.tls else (None, None)
    workers = Workers()
    with _bound(settings.host, settings.port) as bound:
        place = Place(workers, settings, certificate, catalog)
        task = asyncio.create_task(Listener(bound, place, token, context).run())
        try:
            yield Listening(
                address=joined(*bound.getsockname()[:2]),
                pid=os.getpid(),
                fingerprint=certificate_fingerprint(certificate) if certificate else None,
                token=token,
            )
        finally:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
            workers.close()


def server_context(settings: ListenerSettings) -> tuple[ssl.SSLContext, bytes]:
    """And the certificate in DER. Raises LoadFailed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with made_certificate(settings.certificate, settings.key) as (certificate, key):
        try:
            context.load_cert_chain(certificate, key)
            return context, certificate_of(certificate)
        except (OSError, ValueError) as error:
            raise LoadFailed(f"the certificate {certificate} can't be used: {error}") from error


def new_token() -> str:
    """256 bits."""
    return secrets.token_urlsafe(32)


def serve(
    settings: ListenerSettings,
    token: str,
    tell: Callable[[Listening], None],
    catalog: Catalog = BACKENDS,
) -> None:
    """Listen until a signal ends it. `tell` is called once with how it can be reached. Raises as
    `listening`.
    """

    async def run() -> None:
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        async with listening(settings, token, catalog) as listener:
            tell(replace(listener, token=""))
            await ended.wait()

    asyncio.run(run())
