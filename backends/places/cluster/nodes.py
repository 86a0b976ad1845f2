"""The gateway's end of a cluster: which nodes there are, and a model loaded on one of them.

It speaks to the process that speaks to Ray (`backends.places.cluster.control`), and to the nodes'
workers by sockets of our own. Create it on the event loop.
"""

import asyncio
import hashlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from backends.contract.catalog import CPU, Backend, ModelFiles, NodeShare, command
from backends.contract.errors import LoadFailed
from backends.contract.protocol import MemoryNeed, Progress, Report
from backends.machine.futures import settle
from backends.machine.supervision import Supervisor
from backends.places.cluster.messages import (
    Bring,
    Brought,
    Check,
    Connected,
    Copying,
    Joined,
    Left,
    NodeFacts,
    Order,
    Part,
    decode_report,
    encode,
)
from backends.places.container import PortContainer
from backends.places.encoder_container import PortEncoder
from backends.places.nodes import node as place
from config.engines import EngineOptions
from config.nodes import NodeConfig
from config.values import alike

CONNECTING = 60.0  # seconds until Ray's cluster is reached
CHECKING = 5.0  # seconds until it is known whether a node is there
REST = 5.0  # seconds until the process that speaks to Ray is begun again
LONGEST = 2**20  # bytes of a message
COPIED = 200e6  # bytes a second; a guess, before a copy was measured

log = structlog.get_logger(__name__)


class NodeLost(LoadFailed):
    """The node that was to load it is gone. Says nothing of the model."""


class ClusterFailed(Exception):
    """Why there is no cluster."""


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node, with bytes of its devices by its names for them."""

    config: NodeConfig
    total: dict[str, int]
    free: dict[str, int]
    draining: bool = False

    @property
    def cards(self) -> dict[str, int]:
        """Its devices but for main memory."""
        return {name: size for name, size in self.total.items() if name != CPU}


class ClusterNodes:
    """`address`: of Ray's cluster, or `auto`; `tls`: connections to workers are encrypted."""

    def __init__(self, address: str, *, tls: bool = False) -> None:
        """Raises ClusterFailed where Ray isn't installed."""
        if find_spec("ray") is None:
            raise ClusterFailed(f"the package `ray` is missing. Install it: {command('cluster')}")
        self._address, self._tls = address, tls
        self.nodes: dict[str, ClusterNode] = {}
        self._drained: set[str] = set()
        self._has: set[tuple[str, Path]] = set()  # what was brought to which node
        self._speed = COPIED
        self._changed: Callable[[], None] = lambda: None
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count()
        self._brought: dict[int, tuple[asyncio.Future[Brought], Report]] = {}
        self._checks: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def running(
        self, supervisor: Supervisor, changed: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Nodes join and leave while the context lasts; `changed` is called then. A cluster that
        isn't there yet is tried again and again: machines start in any order.
        """
        self._changed = changed
        task = asyncio.create_task(supervisor.keep("cluster", self._run))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def drain(self, node: str, *, draining: bool) -> bool:
        """Models leave it, and none come; or they may again. Whether there is such a node."""
        if node not in self.nodes:
            return False
        (self._drained.add if draining else self._drained.discard)(node)
        self.nodes[node] = replace(self.nodes[node], draining=draining)
        self._changed()
        return True

    def copying(self, node: str, files: ModelFiles) -> float:
        """Seconds until `node` has these files; 0: it has them."""
        return 0.0 if (node, files.path) in self._has else 1 + files.size_bytes / self._speed

    async def load(
        self, node: str, backend: Backend, files: ModelFiles, options: EngineOptions, report: Report
    ) -> PortContainer | PortEncoder:
        """A model, loaded there; its files are copied where the node lacks them. Raises LoadFailed,
        NodeLost.
        """
        if (there := self.nodes.get(node)) is None:
            raise NodeLost(f"node {node} left the cluster")
        lying = await self._bring(node, files, report)
        share = NodeShare(node=there.config, need=NOTHING)
        try:
            return await place.load(backend, replace(lying, node=share), options, report)
        except LoadFailed as error:
            if await self._is_there(node):
                raise
            raise NodeLost(f"node {node} was lost: {error}") from error

    def lost(self, node: str) -> None:
        """A connection to it broke: nothing is placed there until it is known to be there."""
        if self.nodes.pop(node, None) is not None:
            log.warning("a node was lost", node=node)
            self._changed()
        self._send(Check(node))

    async def _bring(self, node: str, files: ModelFiles, report: Report) -> ModelFiles:
        """The files as they lie there. Raises LoadFailed, NodeLost."""
        own = wanted(files)
        number, loop = next(self._numbers), asyncio.get_running_loop()
        parts = tuple(Part(str(path), f"{_folder(files)}/{_below(files, path)}") for path in own)
        future, began = loop.create_future(), loop.time()
        self._brought[number] = future, report
        try:
            self._send(Bring(number, node, parts))
            brought = await future
        finally:
            del self._brought[number]
        if brought.failure is not None:
            if await self._is_there(node):
                raise LoadFailed(f"node {node} can't get the model's files: {brought.failure}")
            raise NodeLost(f"node {node} was lost: {brought.failure}")
        if any(str(path) != there for path, there in zip(own, brought.paths, strict=True)):
            self._speed = max(1.0, files.size_bytes / max(0.1, loop.time() - began))
        self._has.add((node, files.path))
        return relocated(files, dict(zip(own, map(Path, brought.paths), strict=True)))

    async def _is_there(self, node: str) -> bool:
        """As its supervisor says now."""
        checked = self._checks.setdefault(node, asyncio.Event())
        self._send(Check(node))
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECKING):
                await checked.wait()
        return node in self.nodes

    def _send(self, order: Order) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            self._refuse()
            return
        process.stdin.write(encode(order) + b"\n")

    async def _run(self) -> None:
        """For ever: hear what the process reports. Where it ends all nodes are lost, and it is
        begun again.
        """
        while True:
            try:
                async with self._connected() as reports:
                    async for line in reports:
                        self._hear(line)
            except ClusterFailed as error:
                log.warning("there is no cluster", reason=str(error))
            else:
                log.warning("the connection to Ray was lost")
                self._refuse()
                self.nodes.clear()
                self._changed()
            await asyncio.sleep(REST)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[asyncio.StreamReader]:
        """The process that speaks to Ray, for as long as the context lasts: what it reports from
        when on it does. Raises ClusterFailed.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"{__package__}.control", str(os.getpid())),
            *(self._address, str(int(self._tls))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # Ray keeps logs of its own
            limit=LONGEST,
            start_new_session=True,  # a terminal's Ctrl-C is not for it
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None, "it has a pipe"
        try:
            if (failure := await _failure(process.stdout)) is not None:
                raise ClusterFailed(f"Ray's cluster {self._address!r} can't be reached: {failure}")
            yield process.stdout
        finally:
            self._process = None
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _refuse(self) -> None:
        """Nobody brings anything any more."""
        for number, (brought, _) in self._brought.items():
            settle(brought, Brought(number, failure="the connection to Ray was lost"))

    def _hear(self, line: bytes) -> None:
        match decode_report(line):
            case Joined(node, facts):
                self._join(node, facts)
                self._checked(node)
            case Left(node, reason):
                if self.nodes.pop(node, None) is not None:
                    log.warning("a node left", node=node, reason=reason)
                    self._changed()
                self._checked(node)
            case Copying(number, done, total):
                if (wanted := self._brought.get(number)) is not None:
                    wanted[1](Progress("copy", done, total))
            case Brought(number) as brought:
                if (wanted := self._brought.get(number)) is not None:
                    settle(wanted[0], brought)

    def _join(self, node: str, facts: NodeFacts) -> None:
        config = alike(NodeConfig, facts)(name=node, tls=facts.fingerprint is not None)
        known = self.nodes.get(node)
        if known is None:
            log.info("a node joined", node=node, address=facts.address, devices=facts.total)
        if known is None or known.config != config:
            drained = node in self._drained
            self.nodes[node] = ClusterNode(
                config=config, total=facts.total, free=facts.free, draining=drained
            )
            self._changed()

    def _checked(self, node: str) -> None:
        if (checked := self._checks.pop(node, None)) is not None:
            checked.set()


async def _failure(reports: asyncio.StreamReader) -> str | None:
    """Why the cluster isn't reached, as the first report says, or that there is none."""
    try:
        async with asyncio.timeout(CONNECTING):
            first = decode_report(await reports.readline())
    except TimeoutError:
        return f"nothing answered within {CONNECTING:.0f} s"
    except msgspec.DecodeError:
        return "the process that speaks to Ray ended"
    assert isinstance(first, Connected), "it comes first"
    return first.failure


NOTHING = MemoryNeed(weights=0, cache=0, engine=0)  # the ledger here has it


def wanted(files: ModelFiles) -> tuple[Path, ...]:
    """Every file that a node needs to load the model."""
    own = list(files.parts or (files.path,))
    if files.projector is not None:
        own.append(files.projector)
    own += [path for path in files.beside if path.is_file()]
    return tuple(dict.fromkeys(path for path in own if path.is_file()))


def relocated(files: ModelFiles, places: Mapping[Path, Path]) -> ModelFiles:
    """`files` where they lie at `places`."""
    path = places.get(files.path)
    if path is None:  # a folder: where the files in it are
        inner, there = next((own, at) for own, at in places.items() if files.path in own.parents)
        path = there
        for _ in inner.relative_to(files.path).parts:
            path = path.parent
    return replace(
        files,
        path=path,
        parts=tuple(places.get(part, part) for part in files.parts),
        beside=tuple(places.get(one, one) for one in files.beside),
        projector=places.get(files.projector) if files.projector is not None else None,
    )


def _folder(files: ModelFiles) -> str:
    """Of the copies of one model."""
    return f"{files.path.stem}-{hashlib.sha256(str(files.path).encode()).hexdigest()[:12]}"


def _below(files: ModelFiles, path: Path) -> str:
    root = files.path if files.path.is_dir() else files.path.parent
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name
