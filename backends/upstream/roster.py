"""The upstreams of one configuration, and their models by our names."""

import ssl
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from backends.catalog import ModelFiles
from backends.remote import MOST_HOPS, RemoteTarget
from backends.upstream.upstream import Upstream, client_of, modalities
from config.errors import ConfigError
from config.upstreams import UpstreamConfig

BACKEND = "upstream"


class Roster(msgspec.Struct, frozen=True):
    """Upstreams by name, in the configuration's order. Their servers' lists change. `server`: this
    server's id, by which Roundhouses that list each other know what is their own.
    """

    upstreams: Mapping[str, Upstream] = {}
    server: str = ""

    def models(self) -> Mapping[str, ModelFiles]:
        """What is offered now, by our names: the named ones, and what was discovered last. Of what
        was discovered in several ways the shortest counts; of equal names the first.
        """
        found: dict[str, ModelFiles] = {}
        for name, target in self._by_the_shortest_way():
            found.setdefault(name, files_of(name, target))
        return found

    def _by_the_shortest_way(self) -> Iterator[tuple[str, RemoteTarget]]:
        """Names and targets, in the configuration's order."""
        offered = [
            (upstream.config.models != "all", name, upstream.target(theirs))
            for upstream in self.upstreams.values()
            for name, theirs in _names(upstream).items()
        ]
        hops: dict[tuple[str, str], int] = {}
        for _, _, target in offered:
            if (origin := target.origin) is not None:
                place = (origin.server, origin.model)
                hops[place] = min(origin.hops, hops.get(place, MOST_HOPS - 1))
        for is_named, name, target in offered:
            if is_named or (origin := target.origin) is None:
                yield name, target
            elif hops.get((origin.server, origin.model)) == origin.hops:
                del hops[origin.server, origin.model]  # of equal ways the first
                if origin.server != self.server:
                    yield name, target


def _names(upstream: Upstream) -> Mapping[str, str]:
    """Ours to theirs."""
    config = upstream.config
    if config.models == "all":
        return {config.prefix + name: name for name in upstream.lists.offers or ()}
    return config.models


def roster_of(configs: tuple[UpstreamConfig, ...], before: Roster | None = None) -> Roster:
    """An upstream that is configured as `before` is the same. Reads certificates, which blocks.
    Raises ConfigError for certificates that can't be read.
    """
    known = before.upstreams if before else {}
    server = before.server if before else uuid.uuid4().hex
    upstreams = {one.name: _upstream(one, known.get(one.name), server) for one in configs}
    return Roster(upstreams, server)


def _upstream(config: UpstreamConfig, before: Upstream | None, server: str) -> Upstream:
    if before is not None and before.config == config:
        return before
    try:
        upstream = Upstream(config, client_of(config, server))
    except (OSError, ssl.SSLError) as error:
        problem = f"certificates can't be read: {error}"
        raise ConfigError(f"upstream {config.name!r}", "$.ca_file", problem) from None
    if before is not None:
        upstream.follow(before)
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
