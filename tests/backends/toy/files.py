"""Tables of which byte follows which, on disk: JSON files named `*.toy.json`. No engine."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backends.catalog import CPU, Cards, ModelFiles, Placement
from backends.errors import LoadFailed
from backends.protocol import MemoryNeed
from config.engines import EngineOptions

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
