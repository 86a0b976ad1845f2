"""The toy's options, and what they are called elsewhere. No engine."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from backends.catalog import LoadFacts, Translation, renamed
from config.engines import EngineOptions
from config.values import PathText


class ToyOptions(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampled from a table."""

    row_bytes: Annotated[int, Meta(ge=1)] = 64
    table: PathText | None = None  # another one in place of the model's own


INSTALLATION = None
LOAD_OPTIONS: Mapping[str, Translation] = {"cache_size": renamed("row_bytes")}


def facts(options: EngineOptions) -> LoadFacts:
    assert isinstance(options, ToyOptions)
    return LoadFacts(cache_tokens=options.row_bytes)
