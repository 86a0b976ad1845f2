"""Models that commands serve: what is known of one before it runs, which is what the configuration
says. See `backends.contract.catalog.FilesModule`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from backends.contract.catalog import (
    CPU,
    Cards,
    LoadFacts,
    ModelFiles,
    Placement,
    Translation,
    as_it_is,
    divided,
)
from backends.contract.errors import LoadFailed
from backends.contract.protocol import MemoryNeed
from backends.contract.remote import RemoteTarget
from backends.places.upstream.upstream import modalities
from config.commands import COMMAND
from config.engines import CommandOptions, EngineOptions

SUFFIX = None
COMPANIONS: tuple[str, ...] = ()
INSTALLATION = None
LOAD_OPTIONS: Mapping[str, Translation] = {}


def recognise(path: Path) -> None:
    """No file says that a command is to serve it: the configuration does, see `named`."""


def named(name: str, path: Path | None) -> ModelFiles:
    """The model called `name`, whose command reads what lies at `path`, if anything. Raises
    LoadFailed where nothing does.
    """
    if path is not None and not path.exists():
        raise LoadFailed(f"file or folder not found: {path}")
    return ModelFiles(
        path=path or Path(COMMAND, name),
        backend=COMMAND,
        format="remote",
        architecture="",
        size_bytes=_size(path) if path else 0,
        context_length=0,
        cache_bytes_per_token=0,
        parts=(path,) if path else (),
        remote=RemoteTarget(upstream=name, model=name, runs_here=True),
    )


def _size(path: Path) -> int:
    """Bytes of a file, or of all directly in a folder."""
    paths = path.iterdir() if path.is_dir() else (path,)
    return sum(one.stat().st_size for one in paths if one.is_file())


def fitted(files: ModelFiles, options: EngineOptions) -> ModelFiles:
    """With what the configuration says of its server."""
    assert isinstance(options, CommandOptions)
    assert files.remote is not None, "its own server answers"
    target = replace(
        files.remote,
        context_length=options.context_length,
        capabilities=options.capabilities,
        fallbacks=options.fallbacks,
        fetches_images=not options.fetch_images,
    )
    return replace(
        files,
        context_length=options.context_length or 0,
        modalities=modalities(target),
        parked_bytes=options.parked_memory if options.sleep is not None else None,
        remote=target,
    )


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    """What the configuration promises; without a word there, its files' bytes."""
    assert isinstance(options, CommandOptions)
    memory = options.memory
    if isinstance(memory, int):
        return MemoryNeed(weights=0, cache=0, engine=memory)
    if memory:
        return MemoryNeed(weights=0, cache=0, engine=sum(memory.values()))
    return MemoryNeed(weights=files.size_bytes, cache=0, engine=0)


def placements(
    files: ModelFiles | None, options: EngineOptions, cards: Cards
) -> Sequence[Placement]:
    """As the configuration says; else on all cards, as most servers do by themselves, or where
    there is none in main memory.
    """
    assert isinstance(options, CommandOptions)
    per_device = {} if isinstance(options.memory, int) else options.memory
    if any(per_device.values()):
        parts = divided([*per_device.values()], per_device)
        # What computes on other nodes of a cluster is begun here.
        return ({CPU: 0.0, **parts} if any("/" in device for device in parts) else parts,)
    if per_device or not cards:
        return ({CPU: 1.0},)
    return (divided([*cards.values()], cards),)


def placed(options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
    """The command itself says where the model lies; here, what it was promised there."""
    assert isinstance(options, CommandOptions)
    if not isinstance(options.memory, int):
        return options
    memory = {device: round(options.memory * part) for device, part in placement.items()}
    return replace(options, memory=memory)


fit = as_it_is


def facts(options: EngineOptions) -> LoadFacts:
    """Its server knows."""
    return LoadFacts()


def vocabulary(path: Path) -> Mapping[str, bytes]:
    """See `FilesModule.vocabulary`: its server has it."""
    return {}
