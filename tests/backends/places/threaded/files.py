"""The toy's tables, for another engine; see `container`."""

from pathlib import Path

from msgspec.structs import replace

from backends.contract.catalog import ModelFiles
from tests.backends.engines.toy import files as toy
from tests.backends.engines.toy.files import (
    COMPANIONS,
    INSTALLATION,
    LOAD_OPTIONS,
    SUFFIX,
    estimate,
    facts,
    fitted,
    placed,
    placements,
    vocabulary,
)

__all__ = [
    "COMPANIONS",
    "INSTALLATION",
    "LOAD_OPTIONS",
    "SUFFIX",
    "estimate",
    "facts",
    "fitted",
    "placed",
    "placements",
    "recognise",
    "vocabulary",
]


def recognise(path: Path) -> ModelFiles | None:
    files = toy.recognise(path)
    return None if files is None else replace(files, backend="threaded")
