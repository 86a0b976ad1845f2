"""Recognises a script: a YAML-free, JSON file named `*.script.json` (see `Script`). Of the options'
names elsewhere it has none.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from backends.catalog import CPU, Cards, LoadFacts, ModelFiles, Placement, Translation
from backends.protocol import MemoryNeed, Modality
from config.engines import EngineOptions

SUFFIX = re.compile(r"\.script\.json$")
COMPANIONS: tuple[str, ...] = ()


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said when the prompt contains `when`. After `fail_after` tokens it breaks. `{images}`
    describes the pictures.
    """

    say: str
    when: str = ""
    fail_after: int | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. The first line whose `when` is in the prompt is said; tokens are single bytes."""

    lines: tuple[Line, ...]
    context_length: int = 4096
    chat_template: str | None = None
    size_bytes: int = 0  # the size it claims
    modalities: tuple[Modality, ...] = ("text",)


def recognise(path: Path) -> ModelFiles | None:
    """The script at `path`; None for anything else. Raises msgspec.ValidationError for a broken
    script.
    """
    if not SUFFIX.search(path.name) or not path.is_file():
        return None
    script = read(path)
    return ModelFiles(
        path=path,
        backend="scripted",
        format="script",
        architecture="script",
        size_bytes=script.size_bytes or path.stat().st_size,
        context_length=script.context_length,
        cache_bytes_per_token=0,
        modalities=script.modalities,
        chat_template=script.chat_template,
        parts=(path,),
    )


def read(path: Path) -> Script:
    """The script in the file."""
    return msgspec.json.decode(path.read_bytes(), type=Script)


def fitted(files: ModelFiles, options: EngineOptions) -> ModelFiles:
    """No option changes what the model can do."""
    return files


def placements(
    files: ModelFiles | None,
    options: EngineOptions,
    cards: Cards,
) -> Sequence[Placement]:
    """See `FilesModule`."""
    return ({CPU: 1.0},)


def placed(options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
    """See `FilesModule`."""
    return options


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    """A script takes the memory that it claims."""
    return MemoryNeed(weights=files.size_bytes, cache=0, engine=0)


INSTALLATION = None
LOAD_OPTIONS: Mapping[str, Translation] = {}


def facts(options: EngineOptions) -> LoadFacts:
    """See `FilesModule.facts`."""
    return LoadFacts()
