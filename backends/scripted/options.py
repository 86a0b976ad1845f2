"""The scripted engine's options by other servers' names: it has none of theirs."""

from collections.abc import Mapping

from backends.catalog import LoadFacts, Translation
from config.engines import EngineOptions

INSTALLATION = None
LOAD_OPTIONS: Mapping[str, Translation] = {}


def facts(options: EngineOptions) -> LoadFacts:  # noqa: ARG001 - the contract's shape
    """See `OptionsModule.facts`."""
    return LoadFacts()
