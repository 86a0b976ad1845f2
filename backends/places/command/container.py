"""Starts the server of a model that is a command, and hands requests to it. See
`backends.contract.catalog.ContainerModule`.

While it runs, its API is an upstream of one server on a loopback port.
"""

import asyncio
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
import httpx
import structlog
from anyio import to_thread
from msgspec.structs import replace

from backends.contract.catalog import CPU, ModelFiles
from backends.contract.errors import LoadFailed, OutOfMemory, UpstreamError
from backends.contract.protocol import ModelInfo, Progress, Report, Tokenizer
from backends.contract.remote import (
    PassedAnswer,
    RemoteEvent,
    RemoteEvents,
    RemoteRequest,
)
from backends.machine.command import Command, Process
from backends.machine.processes import is_foreign, tree_memory
from backends.places.upstream.upstream import Upstream, UpstreamModel, client_of
from backends.places.upstream.wire import Question
from config.commands import COMMAND, filled, words
from config.engines import CommandOptions, EngineOptions
from config.upstreams import UpstreamConfig
from config.values import alike

log = structlog.get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=RemoteRequest)

HOST = "127.0.0.1"
NO_HEALTH = "none"
SOONEST, LATEST = 0.02, 1.0  # seconds between two looks at whether it is up
HEALTH_TIMEOUT = 10.0  # seconds for one answer
GONE = ("upstream_cut", "upstream_unreachable")  # codes of errors that its end may be behind
NOTICED = 2.0  # seconds in which the end of a process is noticed behind that of its connections
OWN_VARIABLES = "ROUNDHOUSE_"  # settings of this server, keys among them: no child needs them
NEVER = 2**31  # failures until its circuit opens: its process says whether it is there
MEMORY_RAN_OUT = re.compile(
    r"out of memory|OutOfMemory|cudaMalloc failed|failed to allocate|bad_alloc|MemoryError",
    re.IGNORECASE,
)


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> "CommandModel":
    """Runs the command until its server is up. Raises LoadFailed with its last words; nothing of it
    is left then, or where it is cancelled.
    """
    assert isinstance(options, CommandOptions)
    assert files.remote is not None, "its own server answers"
    report(Progress("start", 0, 0))
    name, port, key = files.remote.upstream, options.port or free_port(), secrets.token_hex(16)
    process = await _started(_command(name, files, options, port, key))
    upstream: Upstream | None = None
    try:
        upstream = Upstream(config := _upstream(name, options, port, key), client_of(config))
        await _up(process, upstream, options)
        served = await _served(upstream, options, name)
        held = await to_thread.run_sync(tree_memory, process.guardian)
        # What can't be measured stays promised: a card whose driver doesn't say, a budget's name.
        promised = {} if isinstance(options.memory, int) else options.memory
        held = held and {**promised, **held}
        process.serves()
        return CommandModel(process, upstream, served, options, held=held)
    except BaseException:
        await _given_up(process, upstream)
        raise


async def _started(command: Command) -> Process:
    try:
        return await Process.start(command)
    except OSError as error:
        where = f" in {command.folder}" if command.folder else ""
        raise LoadFailed(f"its command can't be started{where}: {error.strerror}") from error


async def _given_up(process: Process, upstream: Upstream | None) -> None:
    with anyio.CancelScope(shield=True):  # a scope that is left cancels each wait in it anew
        await process.stop()
        if upstream is not None:
            await upstream.client.aclose()


def tokenizer(info: ModelInfo) -> Tokenizer:
    """It has none here."""
    raise LoadFailed(f"{info.backend}: its server knows its tokens alone")


def free_port() -> int:
    """One of this machine's own address that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _command(name: str, files: ModelFiles, options: CommandOptions, port: int, key: str) -> Command:
    path = str(files.parts[0]) if files.parts else ""
    values = {"path": path, "port": str(port), "host": HOST, "key": key, "name": name}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
    own = {variable: filled(text, values) for variable, text in options.env.items()}
    return Command(
        name=name,
        words=words(options, values),
        environment={**inherited, "PORT": str(port), **own},
        folder=options.cwd,
        stop_timeout=options.stop_timeout,
        logged=options.log_output,
        hidden=(key,),
    )


def _upstream(name: str, options: CommandOptions, port: int, key: str) -> UpstreamConfig:
    return alike(UpstreamConfig, options)(
        name=name,
        urls=(f"http://{HOST}:{port}/v1",),
        key=key,
        models={name: options.served_name or name},
        failures=NEVER,
        fallbacks=(),  # as any model's, they stand in its own options
    )


async def _up(process: Process, upstream: Upstream, options: CommandOptions) -> None:
    """Returns when its server answers. Raises LoadFailed where it ends before, or is late."""
    healthy = asyncio.create_task(_healthy(upstream, options))
    ended = asyncio.create_task(process.ended.wait())
    try:
        await asyncio.wait(
            [healthy, ended], timeout=options.load_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if ended.done():
            raise _failed(process)
        if not healthy.done():
            raise LoadFailed(_late(process, options))
        await healthy
    finally:
        for task in (healthy, ended):
            task.cancel()
        await asyncio.wait([healthy, ended])


def _failed(process: Process) -> LoadFailed:
    reason = process.end()
    return (OutOfMemory if MEMORY_RAN_OUT.search(reason) else LoadFailed)(reason)


def _late(process: Process, options: CommandOptions) -> str:
    where = "its port" if options.health == NO_HEALTH else options.health
    text = f"its server didn't answer at {where} within {options.load_timeout:g} s (load_timeout)"
    last = process.last_words()
    return f"{text}: {last}" if last else text


async def _healthy(upstream: Upstream, options: CommandOptions) -> None:
    """Asks until the answer is good. Raises LoadFailed where somebody else answers."""
    base = _base(upstream)
    pause, told = SOONEST, False
    while (
        not 0
        < (status := await _status(upstream.client, base, options.health))
        < httpx.codes.BAD_REQUEST
    ):
        if status == httpx.codes.NOT_FOUND and not told:
            told = True
            log.warning("a command's server has no such health route", health=options.health)
        await asyncio.sleep(pause)
        pause = min(LATEST, pause * 1.5)
    port = int(base.rpartition(":")[2])
    if await to_thread.run_sync(is_foreign, port):
        raise LoadFailed(f"another user's process listens at port {port}")


def _base(upstream: Upstream) -> str:
    return upstream.config.urls[0].removesuffix("/v1")


async def _status(client: httpx.AsyncClient, base: str, health: str) -> int:
    """0: it doesn't answer."""
    with suppress(httpx.HTTPError, OSError, TimeoutError):
        async with asyncio.timeout(HEALTH_TIMEOUT):
            if health == NO_HEALTH:
                _, writer = await asyncio.open_connection(HOST, int(base.rpartition(":")[2]))
                writer.close()
                return httpx.codes.OK
            return (await client.get(base + health)).status_code
    return 0


async def _served(upstream: Upstream, options: CommandOptions, name: str) -> str:
    """What its server calls the model: as configured, else as its list does where that names one
    alone, else as we do. A server without a list has what it is asked for.
    """
    (replica,) = upstream.balance.replicas
    await upstream.lists.refresh(replica)
    offers = upstream.lists.offers or {}
    if options.served_name is not None:
        return options.served_name
    return next(iter(offers)) if len(offers) == 1 else name


class CommandModel(UpstreamModel):
    """The model while its process runs. `held`: see `ModelInfo.held`."""

    def __init__(
        self,
        process: Process,
        upstream: Upstream,
        model: str,
        options: CommandOptions,
        *,
        held: Mapping[str, int] | None,
    ) -> None:
        super().__init__(lambda: upstream, model)
        self._process = process
        self._upstream = upstream
        self._options = options
        self._held = held

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, backend=COMMAND, held=self._held)

    @property
    def failure(self) -> str | None:
        """How its process ended; None while it runs."""
        return self._process.end() if self._process.ended.is_set() else None

    def on_failure(self, tell: Callable[[], None]) -> None:
        self._process.on_end(tell)

    async def park(self) -> Mapping[str, int]:
        """See `Parkable`. What can't be measured is not held."""
        self._held = await self._grown()
        await self._told(self._options.sleep)
        held = await to_thread.run_sync(tree_memory, self._process.guardian)
        return held or {CPU: self._options.parked_memory}

    async def wake(self) -> None:
        """See `Parkable`."""
        await self._told(self._options.wake)
        await _up(self._process, self._upstream, self._options)

    async def _told(self, path: str | None) -> None:
        """Its server did what a call asks for. Raises LoadFailed."""
        assert path is not None, "it is configured with both"
        base, within = _base(self._upstream), self._options.load_timeout
        try:
            async with asyncio.timeout(within):
                response = await self._upstream.client.post(base + path)
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            raise LoadFailed(f"no answer to {path} ({type(error).__name__})") from error
        if not response.is_success:
            raise LoadFailed(f"{path} was answered with status {response.status_code}")

    async def aclose(self) -> None:
        """Its process is gone when this returns, and all that it started; what it held before is
        known then.
        """
        try:
            self._held = await self._grown()
        finally:
            await _given_up(self._process, self._upstream)

    async def _grown(self) -> Mapping[str, int] | None:
        """The most that it held of each device: caches fill up as it works."""
        now = await to_thread.run_sync(tree_memory, self._process.guardian)
        before = self._held or {}
        if now is None:
            return self._held
        return {one: max(now.get(one, 0), before.get(one, 0)) for one in {**before, **now}}

    @asynccontextmanager
    async def _answered(
        self, upstream: Upstream, request: R, written: Callable[[Upstream, R], Question]
    ) -> AsyncIterator[RemoteEvents]:
        answered = super()._answered(upstream, request, written)
        async with self._explained_at_its_end(), answered as events:
            yield self._explained(events)

    async def _explained(self, events: RemoteEvents) -> AsyncIterator[Sequence[RemoteEvent]]:
        async with self._explained_at_its_end():
            async for batch in events:
                yield batch

    @asynccontextmanager
    async def passed(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes
    ) -> AsyncIterator[PassedAnswer]:
        """See `Passing`."""
        client, url = self._upstream.client, _base(self._upstream) + path
        async with self._explained_at_its_end():
            try:
                async with client.stream(method, url, headers=headers, content=content) as answer:
                    head = answer.headers.raw
                    yield PassedAnswer(answer.status_code, head, answer.aiter_raw())
            except httpx.HTTPError as error:
                text = f"no answer to {path:.200} ({type(error).__name__})"
                raise UpstreamError(text, code="upstream_cut") from error

    async def _whole(self, question: Question, read: Callable[[bytes], T]) -> T:
        async with self._explained_at_its_end():
            return await super()._whole(question, read)

    @asynccontextmanager
    async def _explained_at_its_end(self) -> AsyncIterator[None]:
        try:
            yield
        except UpstreamError as error:
            raise await self._reason(error) from None

    async def _reason(self, error: UpstreamError) -> UpstreamError:
        """What the client is told of a server that says nothing more: that its process ended, where
        it did.
        """
        if error.code not in GONE:
            return error
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICED):
                await self._process.ended.wait()
        if not self._process.ended.is_set():
            return error
        text = f"The model broke: {self._process.end()}."
        return UpstreamError(text, status=502, code="upstream_cut")
