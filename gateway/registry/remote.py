"""Which models of other servers there are, by our names."""

from collections.abc import Iterator
from pathlib import Path

from backends.catalog import ModelFiles
from backends.upstream.roster import Roster
from config.errors import Source
from config.settings import Config
from config.upstreams import UpstreamConfig


class UpstreamModels:
    """What the upstreams of a configuration offer, besides what their servers tell.

    Raises ConfigError for a template that can't be read.
    """

    def __init__(self, config: Config, roster: Roster) -> None:
        self._roster = roster
        self._configs = {one.name: one for one in config.upstreams}
        self._templates = {name: _template(one) for name, one in self._configs.items()}

    def named(self) -> Iterator[tuple[str, ModelFiles]]:
        """What the configuration names."""
        return (one for one in self._all() if self.config(one[1]).models != "all")

    def discovered(self) -> Iterator[tuple[str, ModelFiles]]:
        """What was found in lists of models."""
        return (one for one in self._all() if self.config(one[1]).models == "all")

    def config(self, files: ModelFiles) -> UpstreamConfig:
        """Of the upstream that has this model."""
        assert files.remote is not None, "it is another server's"
        return self._configs[files.remote.upstream]

    def template(self, files: ModelFiles) -> str | None:
        """The chat template's text, where prompts are made here."""
        return self._templates[self.config(files).name]

    def _all(self) -> Iterator[tuple[str, ModelFiles]]:
        return iter(self._roster.models().items())


def _template(upstream: UpstreamConfig) -> str | None:
    if upstream.template is None:
        return None
    try:
        return Path(upstream.template).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        source = Source(f"upstream {upstream.name!r}")
        raise source.error("$.template", f"can't be read: {error}") from None
