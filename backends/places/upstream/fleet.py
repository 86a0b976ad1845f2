"""The upstreams of one server and their models by our names: health, draining, and changes of the
configuration.
"""

import ssl
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Self

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup
from msgspec.structs import replace

from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, UpstreamError
from backends.contract.protocol import Report
from backends.contract.remote import MOST_HOPS, RemoteStanding, RemoteTarget
from backends.machine.supervision import Supervisor
from backends.places.upstream.lists import NOTHING_KEPT, KeptLists
from backends.places.upstream.loading import bring, send_away
from backends.places.upstream.replicas import Replica
from backends.places.upstream.upstream import Upstream, UpstreamModel, client_of, modalities
from config.errors import ConfigError
from config.upstreams import UpstreamConfig

log = structlog.get_logger(__name__)

BACKEND = "upstream"


class Roster(msgspec.Struct, frozen=True):
    """Upstreams by name, in the configuration's order. Their servers' lists change. `server`: this
    server's id, by which Roundhouses that list each other know what is their own. `kept`: the
    servers' last lists.
    """

    upstreams: Mapping[str, Upstream] = {}
    server: str = ""
    kept: KeptLists = NOTHING_KEPT

    @property
    def is_known(self) -> bool:
        """The names of all models are: of each upstream by the configuration, or by a list."""
        return all(
            upstream.config.models != "all" or upstream.lists.offers is not None
            for upstream in self.upstreams.values()
        )

    def models(self) -> Mapping[str, ModelFiles]:
        """What is offered now, by our names; of equal names the first counts."""
        found: dict[str, ModelFiles] = {}
        for name, files in self.offers():
            found.setdefault(name, files)
        return found

    def offers(self) -> Iterator[tuple[str, ModelFiles]]:
        """Our names and their models: those that the configuration names, then what was discovered
        last. Of what was discovered in several ways the shortest counts.
        """
        upstreams = sorted(self.upstreams.values(), key=lambda one: one.config.models == "all")
        offered = [
            (upstream.config.models != "all", name, upstream.target(theirs))
            for upstream in upstreams
            for name, theirs in _names(upstream).items()
        ]
        hops: dict[tuple[str, str], int] = {}
        for _, _, target in offered:
            if (origin := target.origin) is not None:
                place = (origin.server, origin.model)
                hops[place] = min(origin.hops, hops.get(place, MOST_HOPS - 1))
        for is_named, name, target in offered:
            if is_named or (origin := target.origin) is None:
                yield name, files_of(name, target)
            elif hops.get((origin.server, origin.model)) == origin.hops:
                del hops[origin.server, origin.model]  # of equal ways the first
                if origin.server != self.server:
                    yield name, files_of(name, target)


def _names(upstream: Upstream) -> Mapping[str, str]:
    """Ours to theirs."""
    config = upstream.config
    if config.models == "all":
        return {config.prefix + name: name for name in upstream.lists.offers or ()}
    return config.models


def roster_of(configs: tuple[UpstreamConfig, ...], before: Roster) -> Roster:
    """An upstream that is configured as `before` is the same. Reads certificates and kept lists,
    which blocks. Raises ConfigError for certificates that can't be read.
    """
    upstreams = {one.name: _upstream(one, before) for one in configs}
    return replace(before, upstreams=upstreams)


def first_roster(kept: KeptLists = NOTHING_KEPT) -> Roster:
    """Without upstreams yet, with an id of its own."""
    return Roster(server=uuid.uuid4().hex, kept=kept)


def _upstream(config: UpstreamConfig, roster: Roster) -> Upstream:
    before = roster.upstreams.get(config.name)
    if before is not None and before.config == config:
        return before
    try:
        upstream = Upstream(config, client_of(config, roster.server), roster.kept)
    except (OSError, ssl.SSLError) as error:
        problem = f"certificates can't be read: {error}"
        raise ConfigError(f"upstream {config.name!r}", "$.ca_file", problem) from None
    if before is not None:
        upstream.follow(before)
    upstream.lists.recall()
    return upstream


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


AGAIN = 2.0  # seconds between two requests for a server's list that a caller waits for
STANDINGS = 2.0  # seconds between two requests for a Roundhouse's, whose models come and go


class Fleet:
    """A context: when it ends, all connections are closed. `roster`: the upstreams."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._watch: _Watch | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for upstream in self.roster.upstreams.values():
            await upstream.client.aclose()

    def apply(self, roster: Roster) -> None:
        """From now on these are the upstreams. Answers under way end with what they began with; of
        an upstream that is gone the connections are closed when its last answer has ended.
        """
        self.roster = roster
        if self._watch is not None:
            self._watch.follow(roster.upstreams.values())

    async def refresh(self, again: float = AGAIN) -> None:
        """Ask all servers what they have, but none more often than each `again` seconds. A server
        that was silent when it was last asked is not waited for: `watch` probes it.
        """
        async with anyio.create_task_group() as tasks:
            for upstream in self.roster.upstreams.values():
                tasks.start_soon(self._refresh, upstream, again)

    async def watch(
        self,
        supervisor: Supervisor,
        changed: Callable[[], object],
        moved: Callable[[str], object] = lambda _: None,
    ) -> None:
        """For ever: probe failed replicas, request model lists; `changed` is called where there are
        others, `moved` with our name of each whose standing changed.
        """
        async with anyio.create_task_group() as tasks:
            self._watch = _Watch(self, supervisor, tasks, changed, moved)
            self._watch.follow(self.roster.upstreams.values())
            await anyio.sleep_forever()

    def standing(self, target: RemoteTarget) -> RemoteStanding | None:
        """How a model does at the Roundhouses that may run it; None where none reports it."""
        upstream = self.roster.upstreams.get(target.upstream)
        return upstream.standing(target.model) if upstream is not None else None

    def standings(self, upstream: Upstream) -> Mapping[str, RemoteStanding]:
        """Of an upstream's models, by our names."""
        own = (
            (name, files.remote)
            for name, files in self.roster.models().items()
            if files.remote is not None and files.remote.upstream == upstream.config.name
        )
        found = ((name, self.standing(target)) for name, target in own)
        return {name: standing for name, standing in found if standing is not None}

    async def load(self, target: RemoteTarget, report: Report) -> UpstreamModel:
        """The model, once one of its servers answered a probe; of a Roundhouse, once it is loaded
        there. Raises LoadFailed.
        """
        try:
            upstream = self._found(target.upstream)
        except UpstreamError as error:
            raise LoadFailed(str(error)) from None
        with upstream.in_use():
            if target.roundhouse and _is_next(target):
                await bring(upstream, target.model, report)
                await self._refresh(upstream)
            else:
                await upstream.lists.alive()
        return UpstreamModel(lambda: self._found(target.upstream), target.model)

    async def unload(self, target: RemoteTarget, *, force: bool) -> bool:
        """Unload a Roundhouse's model wherever it is, as an administrator asked; whether it was
        loaded. Raises UpstreamError.
        """
        if not target.roundhouse:
            return False
        upstream = self._found(target.upstream)
        with upstream.in_use():
            try:
                return await send_away(upstream, target.model, force=force)
            finally:
                await self._refresh(upstream)

    def replicas(self) -> Mapping[str, tuple[Replica, ...]]:
        """Every upstream's servers, to be read."""
        return {name: one.balance.replicas for name, one in self.roster.upstreams.items()}

    def drain(self, upstream: str, url: str, *, draining: bool) -> bool:
        """From now on the server at `url` gets no new requests, or gets them again; whether there
        is such a one.
        """
        for replica in self.replicas().get(upstream, ()):
            if replica.url == url.rstrip("/"):
                replica.draining = draining
                return True
        return False

    def _found(self, name: str) -> Upstream:
        if (upstream := self.roster.upstreams.get(name)) is not None:
            return upstream
        text = f"Upstream {name!r} was removed."
        raise UpstreamError(text, status=503, code="upstream_unavailable")

    async def _refresh(self, upstream: Upstream, again: float = 0.0) -> None:
        """Request the lists of those that answer."""
        async with anyio.create_task_group() as tasks:
            for replica in upstream.balance.replicas:
                if not replica.silent:
                    tasks.start_soon(upstream.lists.refresh, replica, again)


def _is_next(target: RemoteTarget) -> bool:
    """Whether the model runs at the server that is asked. What is farther is loaded by the requests
    for it, which say where they came through: two loads could wait for each other.
    """
    return target.origin is None or target.origin.hops == 1


class _Watch(msgspec.Struct, eq=False):
    """Tasks that probe servers, for each upstream of its own."""

    _fleet: Fleet
    _supervisor: Supervisor
    _tasks: TaskGroup
    _changed: Callable[[], object]
    _moved: Callable[[str], object]
    _scopes: dict[Upstream, anyio.CancelScope] = {}
    _standings: dict[Upstream, Mapping[str, RemoteStanding]] = {}

    def follow(self, upstreams: Collection[Upstream]) -> None:
        """These are watched from now on, and no others, whose connections end with their last
        answers.
        """
        for upstream in self._scopes.keys() - upstreams:
            self._scopes.pop(upstream).cancel()
            self._standings.pop(upstream, None)
        attempt, watch = self._supervisor.attempt, self._watch_one
        for upstream in upstreams:
            if upstream not in self._scopes:
                scope = self._scopes[upstream] = anyio.CancelScope()
                self._tasks.start_soon(attempt, BACKEND, watch, upstream, scope)

    async def _watch_one(self, upstream: Upstream, scope: anyio.CancelScope) -> None:
        """Each server by itself: one that is silent keeps no other from being seen."""
        with scope:
            async with anyio.create_task_group() as tasks:
                for replica in upstream.balance.replicas:
                    for work in (self._refresh, self._revive):
                        tasks.start_soon(self._supervisor.keep, BACKEND, work, upstream, replica)
        await upstream.retire()

    async def _refresh(self, upstream: Upstream, replica: Replica) -> None:
        refresh = upstream.config.refresh
        while True:
            await self._update(upstream, replica, min(AGAIN, refresh))
            await anyio.sleep(min(refresh, STANDINGS) if replica.standings else refresh)

    async def _revive(self, upstream: Upstream, replica: Replica) -> None:
        while True:
            await anyio.sleep(upstream.config.probe_interval)
            if (was_resting := replica.state == "resting") or replica.silent:
                await self._update(upstream, replica)
                if was_resting and replica.state != "resting":
                    name = upstream.config.name
                    log.info("an upstream's server is back", upstream=name, url=replica.url)

    async def _update(self, upstream: Upstream, replica: Replica, again: float = 0.0) -> None:
        """And report what has changed."""
        offers = upstream.lists.offers
        await upstream.lists.refresh(replica, again)
        if upstream.lists.offers is not offers:
            self._changed()
        before, after = self._standings.get(upstream, {}), self._fleet.standings(upstream)
        self._standings[upstream] = after
        for model in before.keys() | after.keys():
            if before.get(model) != after.get(model):
                self._moved(model)
