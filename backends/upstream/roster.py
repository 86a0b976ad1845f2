"""The upstreams of one configuration, and their models by our names."""

import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec

from backends.catalog import ModelFiles
from backends.remote import RemoteTarget
from backends.upstream.upstream import Upstream, client_of, modalities
from config.errors import ConfigError
from config.upstreams import UpstreamConfig

BACKEND = "upstream"


class Roster(msgspec.Struct, frozen=True):
    """Upstreams by name, in the configuration's order. Their servers' lists change."""

    upstreams: Mapping[str, Upstream] = {}

    def models(self) -> Mapping[str, ModelFiles]:
        """What is offered now, by our names: the named ones, and what was discovered last."""
        found: dict[str, ModelFiles] = {}
        for upstream in self.upstreams.values():
            for ours, theirs in _names(upstream).items():
                found.setdefault(ours, files_of(ours, upstream.target(theirs)))
        return found


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
    return Roster({one.name: _upstream(one, known.get(one.name)) for one in configs})


def _upstream(config: UpstreamConfig, before: Upstream | None) -> Upstream:
    if before is not None and before.config == config:
        return before
    try:
        upstream = Upstream(config, client_of(config))
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
