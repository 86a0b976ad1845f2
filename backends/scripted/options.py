"""What the scripted engine's options are called elsewhere: it has none of others' options."""

from collections.abc import Mapping

from backends.catalog import LoadFacts, Translation
from config.engines import EngineOptions

INSTALLATION = None
LOAD_OPTIONS: Mapping[str, Translation] = {}


def facts(options: EngineOptions) -> LoadFacts:  # noqa: ARG001 - the contract's shape
    """See `OptionsModule.facts`."""
    return LoadFacts()
