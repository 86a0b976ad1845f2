"""The identity of a kept beginning, all that must be the same for it to hold: weights, adapters,
options, engine.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec
import structlog

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelInfo
from config.engines import EngineOptions

log = structlog.get_logger(__name__)

BEGINNING = 1 << 20  # bytes: a file's header, with the name and shape of every tensor
FORMAT = 2  # of what engines take out
SAMPLES, SAMPLE = 64, 4_096  # places in a file that are compared, and bytes of each
# Of what an engine computes these change nothing. Whatever else may be set is taken to.
HARMLESS = frozenset(
    (
        *("ttl", "threads", "threads_batch", "mmap", "mlock", "trial", "snapshot_memory", "warmup"),
        "host",  # the same program computes it; of another machine: see `ModelInfo.identity`
    )
)


def identity(files: ModelFiles, options: EngineOptions, info: ModelInfo) -> str:
    """A digest. Reads files in some milliseconds; raises OSError."""
    digest = blake2b(digest_size=16)
    for path in sorted({*files.parts, *([files.projector] if files.projector else ())}):
        digest.update(fingerprint(path))
    chosen = {
        name: value for name, value in msgspec.to_builtins(options).items() if name not in HARMLESS
    }
    for path in _paths(chosen):
        digest.update(fingerprint(path))
    facts = (FORMAT, info.backend, info.build, info.context_length, info.max_concurrent, chosen)
    digest.update(msgspec.msgpack.encode(facts, order="deterministic"))
    return digest.hexdigest()


def identity_if_there(files: ModelFiles, options: EngineOptions, info: ModelInfo) -> str:
    """As `identity`; "": a file can't be read any more, so that nothing can be kept."""
    try:
        return identity(files, options, info)
    except OSError as error:
        log.warning("conversations are not kept", model=files.path.name, reason=str(error))
        return ""


def fingerprint(path: Path) -> bytes:
    """Of a file's content, as far as it can be told in a moment: its size and time, its beginning,
    and samples all over it. All of 20 GB would take as long as computing many a conversation.
    """
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        there = os.fstat(file.fileno())
        digest.update(f"{there.st_size} {there.st_mtime_ns} ".encode())
        digest.update(file.read(BEGINNING))
        step = max(SAMPLE, there.st_size // SAMPLES)
        for start in range(BEGINNING, there.st_size, step):
            file.seek(start)
            digest.update(file.read(SAMPLE))
    return digest.digest()


def _paths(value: object) -> Iterator[Path]:
    """The files that options name, adapters say."""
    values: Iterable[object] = ()
    if isinstance(value, str) and os.sep in value:
        path = Path(value)
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from sorted(one for one in path.iterdir() if one.is_file())
    elif isinstance(value, Mapping):
        values = value.values()
    elif isinstance(value, list | tuple):
        values = value
    for one in values:
        yield from _paths(one)
