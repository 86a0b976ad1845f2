"""Uploads: a GGUF file, piece by piece into the folder for downloads.

It appears under its name when it is whole and an engine recognises it, and not before.
"""

import os
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from anyio import to_thread

from backends.catalog import Catalog
from backends.errors import BackendError
from gateway.errors import InvalidRequest, QueueFull, TooLarge
from gateway.hub.hub import STAGING_DIR, Hub
from gateway.paths import within

SUFFIX, MAGIC = ".gguf", b"GGUF"
MOST_AT_ONCE = 2
KEPT_FREE = 1 << 30  # bytes of the disk that no upload takes
SILENCE = 60.0  # seconds without a byte before an upload counts as broken
PIECE = 1 << 20  # bytes written at a time
RETRY = 30.0  # seconds after which one more may be tried


class Uploads:
    """One per server."""

    def __init__(self, hub: Hub, catalog: Catalog) -> None:
        self._hub = hub
        self._catalog = catalog
        self._running = 0

    async def take(self, name: str, length: int, pieces: AsyncIterator[bytes]) -> Path:
        """The file, `length` bytes long; where it lies.

        Raises InvalidRequest (a bad name, one that is taken, no such model), TooLarge where the
        disk has no room, QueueFull. On any error nothing is left of it.
        """
        target = self._target(name)
        self._require_room(length)
        if self._running >= MOST_AT_ONCE:
            raise QueueFull(f"{MOST_AT_ONCE} uploads run already", retry_after=RETRY)
        self._running += 1
        part = self._hub.root() / STAGING_DIR / f"upload-{uuid.uuid4().hex}{SUFFIX}"
        try:
            await anyio.Path(part.parent).mkdir(parents=True, exist_ok=True)
            await _written(part, length, pieces)
            await to_thread.run_sync(self._require_model, part)
            await to_thread.run_sync(_placed, part, target)
        finally:
            self._running -= 1
            part.unlink(missing_ok=True)
        return target

    def _target(self, name: str) -> Path:
        if "/" in name or not name.endswith(SUFFIX):
            raise InvalidRequest(f"name: a file name that ends in {SUFFIX} is wanted", param="name")
        target = within(self._hub.root(), name, "name")
        if target.exists():
            raise InvalidRequest(f"name: {name} is there already", param="name")
        return target

    def _require_room(self, length: int) -> None:
        root = self._hub.root()
        root.mkdir(parents=True, exist_ok=True)
        if length > shutil.disk_usage(root).free - KEPT_FREE:
            raise TooLarge("The disk has no room for this file.", param="content-length")

    def _require_model(self, part: Path) -> None:
        try:
            self._catalog.recognise(part)
        except (BackendError, ValueError) as error:
            problem = str(error).replace(str(part), "the file")
            raise InvalidRequest(f"This is no model: {problem}") from error


async def _written(part: Path, length: int, pieces: AsyncIterator[bytes]) -> None:
    """Raises InvalidRequest for what is no GGUF file, or has another length."""
    done, held = 0, b""
    async with await anyio.open_file(part, "xb") as disk:
        async for piece in _hurried(pieces):
            held += piece
            done += len(piece)
            if done > length:
                break
            if done >= len(MAGIC) and done - len(held) == 0 and not held.startswith(MAGIC):
                raise InvalidRequest(f"This is no GGUF file: it begins with {held[:4]!r}.")
            if len(held) >= PIECE:
                await disk.write(held)
                held = b""
        await disk.write(held)
    if done != length:
        raise InvalidRequest(f"{length} bytes were announced, and others came.")


async def _hurried(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Raises InvalidRequest where nothing comes for a while."""
    while True:
        try:
            with anyio.fail_after(SILENCE):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise InvalidRequest(f"Nothing came for {SILENCE:g} s.") from None
        yield piece


def _placed(part: Path, target: Path) -> None:
    """Under its name, unless that was taken meanwhile: a link never replaces a file."""
    try:
        os.link(part, target)
    except FileExistsError as error:
        raise InvalidRequest(f"name: {target.name} is there already", param="name") from error
    except OSError:  # a file system without links
        part.rename(target)
