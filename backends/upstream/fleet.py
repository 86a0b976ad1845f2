"""All upstreams of one server: who offers which models, who lives, who is drained."""

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import structlog
from anyio import to_thread

from backends.catalog import ModelFiles
from backends.errors import LoadFailed, UpstreamError
from backends.protocol import Report
from backends.remote import RemoteContainer, RemoteStanding, RemoteTarget
from backends.upstream.discovery import Offer
from backends.upstream.loading import bring, send_away
from backends.upstream.replicas import Replica
from backends.upstream.upstream import Upstream, UpstreamModel, client_of, modalities
from config.upstreams import UpstreamConfig

BACKEND = "upstream"
AGAIN = 2.0  # seconds between two looks at an upstream's list that somebody waits for
STANDINGS = 2.0  # seconds between two looks at a Roundhouse's, whose models come and go

log = structlog.get_logger(__name__)


class Fleet:
    """A context: within it there are connections, and those who rest are probed."""

    def __init__(self, configs: tuple[UpstreamConfig, ...]) -> None:
        self._configs = configs
        self._upstreams: dict[str, Upstream] = {}
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._looked: dict[str, float] = {}
        self._looking: dict[str, anyio.Event] = {}
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises OSError, ssl.SSLError for certificates that can't be read."""
        for config in self._configs:
            client = await to_thread.run_sync(client_of, config)
            await self._exits.enter_async_context(client)
            self._upstreams[config.name] = Upstream(config, client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exits.aclose()

    def models(self) -> Mapping[str, ModelFiles]:
        """What is offered now, by our names: the named ones, and what was discovered last."""
        found: dict[str, ModelFiles] = {}
        for config in self._configs:
            known = {offer.id: offer for offer in self._offers.get(config.name, ())}
            names = (
                {config.prefix + name: name for name in known}
                if config.models == "all"
                else config.models
            )
            for ours, theirs in names.items():
                offer = known.get(theirs, Offer(id=theirs))
                found.setdefault(ours, files_of(ours, target_of(config, offer)))
        return found

    async def look(self) -> bool:
        """Ask all upstreams what they have, but none more often than each `AGAIN` seconds; whether
        that changed. One that doesn't answer keeps what it had.
        """
        before = dict(self._offers)
        async with anyio.create_task_group() as tasks:
            for upstream in self._upstreams.values():
                tasks.start_soon(self._look, upstream)
        return before != self._offers

    async def _look(self, upstream: Upstream, again: float = AGAIN) -> None:
        name = upstream.config.name
        if (looking := self._looking.get(name)) is not None:
            await looking.wait()
        elif time.monotonic() - self._looked.get(name, -again) >= again:
            self._looking[name] = anyio.Event()
            try:
                self._offers[name] = await upstream.offers()
            except UpstreamError as error:
                log.warning("no list of models", upstream=name, reason=str(error))
            finally:
                self._looked[name] = time.monotonic()
                self._looking.pop(name).set()

    async def watch(
        self, changed: Callable[[], object], moved: Callable[[str], object] = lambda _: None
    ) -> None:
        """For ever: probe who rests, look for models; `changed` is called where there are others,
        `moved` with our name of each that does otherwise than it did.
        """
        async with anyio.create_task_group() as tasks:
            for upstream in self._upstreams.values():
                tasks.start_soon(self._watch, upstream, changed, moved)
                tasks.start_soon(_probe, upstream)

    async def _watch(
        self,
        upstream: Upstream,
        changed: Callable[[], object],
        moved: Callable[[str], object],
    ) -> None:
        name, refresh = upstream.config.name, upstream.config.refresh
        before: Mapping[str, RemoteStanding] = {}
        while True:
            offers = self._offers.get(name)
            await self._look(upstream, min(AGAIN, refresh))
            if self._offers.get(name) != offers:
                changed()
            after = self._standings(name)
            for model in before.keys() | after.keys():
                if before.get(model) != after.get(model):
                    moved(model)
            before = after
            await anyio.sleep(min(refresh, STANDINGS) if after else refresh)

    def standing(self, target: RemoteTarget) -> RemoteStanding | None:
        """How a model does at the Roundhouses that may run it; None where none tells."""
        upstream = self._upstreams.get(target.upstream)
        return upstream.standing(target.model) if upstream is not None else None

    def _standings(self, upstream: str) -> Mapping[str, RemoteStanding]:
        """By our names."""
        own = (
            (name, files.remote)
            for name, files in self.models().items()
            if files.remote is not None and files.remote.upstream == upstream
        )
        told = ((name, self.standing(target)) for name, target in own)
        return {name: standing for name, standing in told if standing is not None}

    async def load(self, target: RemoteTarget, report: Report) -> RemoteContainer:
        """The model, once one of its servers gave a sign of life; of a Roundhouse, once it is
        loaded there. Raises LoadFailed.
        """
        upstream = self._upstreams.get(target.upstream)
        if upstream is None:
            raise LoadFailed(f"there is no upstream {target.upstream!r}")
        if target.roundhouse:
            await bring(upstream, target.model, report)
            await self._look(upstream, 0.0)
        else:
            await upstream.alive()
        return UpstreamModel(upstream, target)

    async def unload(self, target: RemoteTarget, *, force: bool) -> bool:
        """Unload a Roundhouse's model wherever it is, as an administrator asked; whether it was
        loaded. Raises UpstreamError.
        """
        upstream = self._upstreams.get(target.upstream)
        if upstream is None or not target.roundhouse:
            return False
        try:
            return await send_away(upstream, target.model, force=force)
        finally:
            await self._look(upstream, 0.0)

    def replicas(self) -> Mapping[str, tuple[Replica, ...]]:
        """Every upstream's servers, to be read."""
        return {name: one.balance.replicas for name, one in self._upstreams.items()}

    def drain(self, upstream: str, url: str, *, draining: bool) -> bool:
        """From now on the server at `url` gets no new requests, or gets them again; whether there
        is such a one.
        """
        for replica in self.replicas().get(upstream, ()):
            if replica.url == url.rstrip("/"):
                replica.draining = draining
                return True
        return False


async def _probe(upstream: Upstream) -> None:
    """For ever: look whether those who rest live again."""
    while True:
        await anyio.sleep(upstream.config.probe_interval)
        async with anyio.create_task_group() as tasks:
            for replica in upstream.balance.resting():
                tasks.start_soon(_probe_one, upstream, replica)


async def _probe_one(upstream: Upstream, replica: Replica) -> None:
    try:
        await upstream.probe(replica)
    except UpstreamError:
        return
    log.info("an upstream's server is back", upstream=upstream.config.name, url=replica.url)


def target_of(config: UpstreamConfig, offer: Offer) -> RemoteTarget:
    """What is known of a model; the configuration knows best."""
    told = config.capabilities
    return RemoteTarget(
        upstream=config.name,
        model=offer.id,
        context_length=config.context_length or offer.context_length,
        capabilities=offer.capabilities if told is None else told,
        fallbacks=config.fallbacks,
        roundhouse=offer.roundhouse,
    )


def files_of(name: str, target: RemoteTarget) -> ModelFiles:
    """A model without files."""
    return ModelFiles(
        path=Path(BACKEND, target.upstream, name),
        backend=BACKEND,
        format="remote",
        architecture="",
        size_bytes=0,
        context_length=target.context_length or 0,
        cache_bytes_per_token=0,
        modalities=modalities(target),
        remote=target,
    )
