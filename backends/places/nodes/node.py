"""The gateway's end of a worker on another machine: it connects to the listener there
(`backends.places.nodes.listening`), has a model described, and loads it.

The model's files lie there, so what this end knows of them was asked for: what they are and what
they take (`recognise`, `fitted`), and with the load the files that a tokenizer is made of.

The listener watches its worker, and says how that ended; this end watches the listener, which
answers heartbeats whatever its workers do. Where it answers none for three seconds, and takes
nothing of what is sent either, the node is lost.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from backends.contract.catalog import Backend, ModelFiles, NodeShare
from backends.contract.errors import LoadFailed
from backends.contract.framing import (
    LARGEST,
    Fit,
    Fitted,
    Loaded,
    Recognise,
    Recognised,
    VocabularyFiles,
    WorkerEvent,
)
from backends.contract.messages import (
    Answered,
    Begin,
    Close,
    Command,
    Event,
    Failure,
    Left,
    Lost,
    Outcomes,
    SaveSlot,
)
from backends.contract.protocol import Ended, ModelInfo, Output, Piece, Report, Tokenizer
from backends.machine.futures import settle
from backends.machine.paths import within
from backends.places.container import PortContainer
from backends.places.encoder_container import PortEncoder, over
from backends.places.nodes.handshake import Handshake, HandshakeFailed, certificate_fingerprint
from backends.places.nodes.lines import progress_of
from backends.places.worker import GOODBYE, Answer, FramedPort, ended_unless_whole
from config.engines import EngineOptions
from config.nodes import NodeConfig, split
from config.values import alike

CONNECTING = 5.0  # seconds until both ends know each other
DESCRIBING = 30.0  # seconds to read a model's headers there
REST = 5.0  # seconds after which a node that wasn't reached is tried again

# What a node may send: bytes of a message, by what was asked of it
DESCRIPTION = 16 << 20
VOCABULARY = 512 << 20  # with the files of a tokenizer
ORDINARY = 64 << 20  # any other, but for a slot that is to be saved
SPARE = 4_096  # outputs of a job beyond its tokens: reports of progress, held text, a closing
SPARE_TEXT, PER_TOKEN = 1 << 16, 1_024  # characters of a job; those that a token may stand for

T = TypeVar("T")


class Unreached(LoadFailed):
    """The node itself can't be asked, or is not ours."""


class Owed(dict[int, tuple[int, int]]):
    """What may still come of the jobs that a node has: outputs, and characters of their texts."""

    def begin(self, begun: Begin, context_length: int) -> None:
        """A job is sent there."""
        job = begun.job
        tokens = context_length if job.max_tokens is None else job.max_tokens
        outputs = SPARE + len(job.prompt) + 2 * min(tokens, context_length)
        self[begun.key] = outputs, SPARE_TEXT

    def take(self, event: Event) -> None:
        """Something has come. Raises ValueError where it is more than was asked for."""
        match event:
            case Outcomes(outputs):
                for key, output in outputs:
                    self._one(key, output)
            case Left(key):
                self.pop(key, None)

    def _one(self, key: int, output: Output | Failure) -> None:
        if key not in self:
            raise ValueError("outputs of a job that isn't there")
        outputs, characters = self[key]
        match output:
            case Ended() | Failure():
                del self[key]
                return
            case Piece(text=text, tokens=tokens):
                outputs -= max(1, len(tokens))
                characters += PER_TOKEN * len(tokens) - len(text)
            case _:
                outputs -= 1
        if outputs < 0 or characters < 0:
            raise ValueError("more of an answer than was asked for")
        self[key] = outputs, characters


class NodePort(FramedPort):
    """A `Port` whose other end is a listener on another machine, and behind it a worker."""

    def __init__(self, node: NodeConfig, model: str, report: Report) -> None:
        super().__init__(model, report)
        self._frames.most = DESCRIPTION
        self._owed = Owed()
        self._node = node
        self._handshake = Handshake("gateway", node.token)
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._lost = False  # it was told how the worker ended
        self._serving = False  # a model was asked for

    async def greet(self) -> None:
        """Connect, and make sure of each other. Raises LoadFailed."""
        host, port = split(self._node.address)
        try:
            async with asyncio.timeout(CONNECTING):
                await self._loop.create_connection(
                    lambda: self, host, port, ssl=_client_context() if self._node.tls else None
                )
                await asyncio.shield(self._greeted)
        except TimeoutError:
            self._kill(f"did not answer within {CONNECTING:.0f} s")
        except OSError as error:  # ssl.SSLError is one
            self._why = f"can't be reached: {_reason(error)}"
        if self._why is not None:
            raise self._unreached()

    async def load(self, files: ModelFiles, options: EngineOptions) -> Loaded:
        """See `FramedPort.load`."""
        self._serving = True
        self._frames.most = VOCABULARY
        return await super().load(replace(files, node=None), options)

    def send(self, command: Command) -> None:
        """See `Port.send`."""
        match command:
            case Begin():
                self._owed.begin(command, self.info.context_length)
            case SaveSlot():
                self._frames.most = LARGEST
        super().send(command)

    async def end(self) -> None:
        """Have the worker ended. When this returns its memory is free, if the node can be asked."""
        self._closing = True
        if self._transport is None:
            return
        if self._serving:
            self._write(Close())
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await self.buried.wait()
        self._abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        certificate = _certificate(transport)
        pinned = self._node.fingerprint
        if pinned is not None and (
            certificate is None or certificate_fingerprint(certificate) != pinned
        ):
            self._why = "has another certificate than the configured fingerprint's"
            assert isinstance(transport, asyncio.WriteTransport)
            transport.abort()
            return
        self._transport = cast(asyncio.Transport, transport)
        self._put(self._handshake.begin(certificate))

    def data_received(self, data: bytes) -> None:
        if not self._greeted.done():
            data = self._greet(data)
        if data:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._why is None and not self._handshake.done:
            self._why = "closed the connection: it has another token, or doesn't speak TLS as here"
        elif self._why is None:
            self._why = "closed the connection" + (f" ({_reason(exc)})" if exc else "")
        settle(self._greeted, self._unreached())
        if not self._serving:
            settle(self._answer, self._unreached())
        super().connection_lost(exc)

    def _unreached(self) -> Unreached:
        return Unreached(f"node {self._node.name} ({self._node.address}) {self._why}")

    def _greet(self, data: bytes) -> bytes:
        """What of it comes after the handshake."""
        try:
            sent, rest = self._handshake.feed(data)
        except HandshakeFailed as error:
            self._kill(str(error))
            return b""
        self._put(sent)
        if self._handshake.done:
            self._greeted.set_result(None)
            self._beat()
        return rest

    def _put(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _hand_on(self, event: WorkerEvent) -> None:
        match event:
            case Lost(reason):
                self._lost = True
                reason = f"node {self._node.name}: {reason}"
                settle(self._answer, LoadFailed(reason))
                self._tell(Lost(reason))
            case Loaded() | Answered():
                self._frames.most = ORDINARY
                super()._hand_on(event)
            case _:
                super()._hand_on(event)

    def _tell(self, event: Event) -> None:
        self._owed.take(event)
        super()._tell(event)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _progress_there(self) -> object:
        """How many bytes it has taken of what is under way: a slow network is none that is gone.
        Where nothing is, a node's system takes heartbeats for it, whatever became of the node.
        """
        return self._transport and progress_of(self._transport)

    async def _loss(self) -> LoadFailed | None:
        if self._closing or self._lost:
            return None
        return LoadFailed(f"the worker of {self._model} is lost: {self._unreached()}")


def _client_context() -> ssl.SSLContext:
    """Any certificate: each end proves by the token that it sees the other's own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _certificate(transport: asyncio.BaseTransport) -> bytes | None:
    secured = transport.get_extra_info("ssl_object")
    found: bytes | None = secured.getpeercert(binary_form=True) if secured is not None else None
    return found


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__


async def recognise(node: NodeConfig, path: str, backend: str | None = None) -> ModelFiles:
    """The model at `path` of that machine. Raises LoadFailed, UnsupportedModel."""
    return (await _asked(node, path, Recognise(path, backend), Recognised)).files


async def fitted(node: NodeConfig, files: ModelFiles, options: EngineOptions) -> ModelFiles:
    """The model as `options` make it there, with what it takes (`ModelFiles.node`). Raises
    LoadFailed.
    """
    encoded = msgspec.Raw(msgspec.msgpack.encode(replace(options, host="worker")))
    found = await _asked(node, files.path.name, Fit(replace(files, node=None), encoded), Fitted)
    return replace(found.files, node=alike(NodeShare, found)(node=node))


async def _asked(
    node: NodeConfig, model: str, command: Recognise | Fit, kind: type[Answer]
) -> Answer:
    port = NodePort(node, model, lambda _: None)
    await port.greet()
    try:
        async with asyncio.timeout(DESCRIBING):
            return await port.ask(command, kind)
    except TimeoutError:
        text = f"node {node.name} did not describe {model} within {DESCRIBING:.0f} s"
        raise LoadFailed(text) from None
    finally:
        await port.end()


async def load(
    backend: Backend, files: ModelFiles, options: EngineOptions, report: Report
) -> PortContainer | PortEncoder:
    """A model that another machine has, loaded there. Raises LoadFailed; leaves nothing behind
    then, or when it is cancelled.
    """
    assert files.node is not None, "it lies there"
    port = NodePort(files.node.node, files.path.name, report)
    await port.greet()
    async with ended_unless_whole(port):
        loaded = await port.load(files, options)
        made = await asyncio.to_thread(tokenizer, backend, loaded.info, loaded.vocabulary)
    return over(port, made)


def tokenizer(backend: Backend, info: ModelInfo, vocabulary: VocabularyFiles | None) -> Tokenizer:
    """That of a model elsewhere, made in this process of the files that came from there. Raises
    LoadFailed.
    """
    with TemporaryDirectory(prefix="roundhouse-vocabulary-") as folder:
        path = Path(folder)
        try:
            for name, data in (vocabulary.files if vocabulary else {}).items():
                within(path, name).write_bytes(data)
            if info.tokenizer_path is not None:
                one = vocabulary.name if vocabulary else None
                info = replace(info, tokenizer_path=str(within(path, one) if one else path))
            return backend.container.tokenizer(info)
        except (OSError, ValueError) as error:
            raise LoadFailed(f"the node sent no vocabulary that can be used: {error}") from error
        except ImportError as error:
            text = f"{backend.name} is needed here, too, for the model's tokenizer: {error}"
            raise LoadFailed(text) from error


class Nodes:
    """The nodes of a configuration, asked from a thread that may wait. What wasn't reached is not
    asked again for some seconds, or each of its models would wait for it.
    """

    def __init__(self, nodes: tuple[NodeConfig, ...]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._unreached: dict[str, tuple[float, Unreached]] = {}

    def get(self, name: str | None) -> NodeConfig | None:
        """None where `name` says that a model runs here."""
        return self._nodes.get(name or "")

    def recognise(self, node: NodeConfig, path: str, backend: str | None) -> ModelFiles:
        """See `recognise`."""
        return self._run(node, lambda: recognise(node, path, backend))

    def fitted(self, node: NodeConfig, files: ModelFiles, options: EngineOptions) -> ModelFiles:
        """See `fitted`."""
        return self._run(node, lambda: fitted(node, files, options))

    def _run(self, node: NodeConfig, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        at, error = self._unreached.get(node.name, (0.0, None))
        if error is not None and time.monotonic() - at < REST:
            raise error
        with ThreadPoolExecutor(1) as thread:  # this one may have an event loop of its own
            try:
                found = thread.submit(lambda: asyncio.run(ask())).result()
            except Unreached as error:
                self._unreached[node.name] = time.monotonic(), error
                raise
        self._unreached.pop(node.name, None)
        return found
