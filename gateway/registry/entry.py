"""A model that can be asked for: its files, its options and its names, and whether its files are
there, as they were.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import AdapterScale
from backends.contract.samplers import DEFAULTS, Sampling
from config.engines import EngineOptions
from gateway.registry.folders import Unusable
from gateway.registry.origins import Names
from gateway.terms.errors import ModelUnavailable
from gateway.terms.request import RequestedSampling

FileIdentity: TypeAlias = Mapping[Path, tuple[int, int, int, int]]


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for, loaded or not."""

    name: str
    files: ModelFiles
    options: EngineOptions
    aliases: tuple[str, ...] = ()
    turn: Mapping[str, int] = {}  # what models share that take turns, whatever their memory
    pinned: bool = False
    preload: bool = False
    ttl: float = -1.0  # idle seconds until it is unloaded; -1: never
    sampling: RequestedSampling = RequestedSampling()
    format: str | None = None
    template: str | None = None  # a chat template's text in place of the model's own
    keep_reasoning: Literal["auto"] | bool = "auto"  # of earlier turns, see `ModelConfig`
    system: str | None = None  # the system message of conversations that have none
    template_variables: Mapping[str, Any] = {}  # that requests don't set
    adapters: tuple[AdapterScale, ...] | None = None  # for requests that don't choose
    of: "ModelEntry | None" = None  # a preset: the model that is loaded for it
    replicas: Names = ()  # of a model that is loaded several times: the entries that are loaded
    replica_of: str = ""  # of one of those: the model
    created: int = 0  # Unix time of the files

    @property
    def base(self) -> "ModelEntry":
        """What is loaded when this is asked for: itself, unless it is a preset."""
        return self.of or self

    @property
    def usual_sampling(self) -> Sampling:
        """Of a request that says nothing: the configuration's, else what the makers recommend."""
        return self.sampling.over(self.files.generation_defaults)

    @property
    def sampling_from(self) -> Literal["configuration", "model", "default"] | None:
        """Who chose that; None: it writes nothing, or another server chooses."""
        if self.files.task != "generate" or self.files.elsewhere is not None:
            return None
        if self.sampling.named:
            return "configuration"
        return "default" if self.files.generation_defaults == DEFAULTS else "model"

    def over(self, loaded: "ModelEntry") -> "ModelEntry":
        """This preset of its model as that is `loaded`."""
        return msgspec.structs.replace(
            self, files=loaded.files, options=loaded.options, of=loaded, created=loaded.created
        )


Known: TypeAlias = ModelEntry | Unusable


def check_files(entry: ModelEntry) -> None:
    """Raises ModelUnavailable for a model whose files are gone; a node's are seen to there."""
    for part in entry.files.parts if entry.files.node is None else ():
        if not part.exists():
            text = f"{entry.name} can't be loaded: {part} is gone"
            raise ModelUnavailable(text, param="model")


def identity(files: ModelFiles) -> FileIdentity:
    """Of every file of a model, and of those beside it: device, inode, bytes and time of change in
    ns; what is gone is left out. A file that was written over in place differs, as does one put in
    its place. Nothing of files on another machine.
    """
    facts: dict[Path, tuple[int, int, int, int]] = {}
    if files.node is not None:
        return facts
    own = files.parts or (files.path,)
    for path in (*own, *((files.projector,) if files.projector else ()), *files.beside):
        try:
            status = path.stat()
        except OSError:
            continue
        facts[path] = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return facts
