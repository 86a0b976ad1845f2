"""The origin of a downloaded model: a small file in its folder, from which it has its names of the
hub.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

FILE = ".hub.json"
MAX_BYTES = 64 * 1024  # a folder may hold any file of that name

Names: TypeAlias = tuple[str, ...]


class HubOrigin(msgspec.Struct, frozen=True):
    """`names`: what it was downloaded as, and what it is called in full: `owner/name:Q4_K_M`."""

    repository: str  # "owner/name"
    names: Names

    def is_called(self, name: str) -> bool:
        """Whether that is a name of it, in any case."""
        return name.lower() in {self.repository.lower(), *map(str.lower, self.names)}


def origin_of(folder: Path) -> HubOrigin | None:
    """None: it was not downloaded, or the file is no such file. Blocks."""
    try:
        with (folder / FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=HubOrigin)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_origin(folder: Path, origin: HubOrigin) -> None:
    """Blocks."""
    (folder / FILE).write_bytes(msgspec.json.encode(origin))


def downloads(root: Path) -> Iterator[tuple[Path, HubOrigin]]:
    """The folders in `root` that hold a download, by name. Blocks."""
    try:
        folders = sorted(root.iterdir())
    except OSError:
        return
    for folder in folders:
        if (origin := origin_of(folder)) is not None:
            yield folder, origin


def hub_names(origins: Mapping[str, HubOrigin]) -> Mapping[str, Names]:
    """By model, its names of the hub. A repository's own name is that of the model that was
    downloaded by it, else of the first one of that repository.
    """
    taken = {name for origin in origins.values() for name in origin.names}
    names: dict[str, Names] = {}
    for model, origin in origins.items():
        bare = () if origin.repository in taken else (origin.repository,)
        taken.update(bare)
        names[model] = (*origin.names, *bare)
    return names
