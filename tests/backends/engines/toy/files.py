"""Tables of which byte follows which, on disk: JSON files named `*.toy.json`; the toy's options,
and what they are called elsewhere. No engine.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from backends.contract.catalog import (
    CPU,
    Cards,
    LoadFacts,
    ModelFiles,
    Placement,
    Translation,
    as_it_is,
    renamed,
)
from backends.contract.errors import LoadFailed
from backends.contract.protocol import MemoryNeed
from config.engines import EngineOptions
from config.values import PathText

SUFFIX = re.compile(r"\.toy\.json$")
COMPANIONS: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`after`: by letter, what may come next and how often it did; a letter that has no row, or an
    empty one, is the last.
    """

    after: dict[str, dict[str, float]]
    context_length: int = 512
    chat_template: str | None = None


def recognise(path: Path) -> ModelFiles | None:
    if not SUFFIX.search(path.name) or not path.is_file():
        return None
    table = read(path)
    return ModelFiles(
        path=path,
        backend="toy",
        format="table",
        architecture="bigram",
        size_bytes=path.stat().st_size,
        context_length=table.context_length,
        cache_bytes_per_token=0,
        chat_template=table.chat_template,
        parts=(path,),
    )


def read(path: Path) -> Table:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Table)
    except msgspec.DecodeError as error:
        raise LoadFailed(f"{path} is no table: {error}") from error


def fitted(files: ModelFiles, options: EngineOptions) -> ModelFiles:
    return files


def placements(
    files: ModelFiles | None, options: EngineOptions, cards: Cards
) -> Sequence[Placement]:
    return ({CPU: 1.0},)


def placed(options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
    return options


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    return MemoryNeed(weights=files.size_bytes, cache=0, engine=0)


class ToyOptions(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampled from a table."""

    row_bytes: Annotated[int, Meta(ge=1)] = 64
    table: PathText | None = None  # another one in place of the model's own


INSTALLATION = None
LOAD_OPTIONS: Mapping[str, Translation] = {"cache_size": renamed("row_bytes")}


fit = as_it_is


def facts(options: EngineOptions) -> LoadFacts:
    assert isinstance(options, ToyOptions)
    return LoadFacts(cache_tokens=options.row_bytes)


def vocabulary(path: Path) -> Mapping[str, bytes]:
    return {}
