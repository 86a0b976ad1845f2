"""The supervisor of a node: it measures the node's devices, keeps a listener for workers, and takes
the files of models that the node lacks. Ray makes an actor of it, in a process of its own; it knows
nothing of Ray itself.

All workers behind its listener end with its process.
"""

import asyncio
import hashlib
import os
import threading
from concurrent.futures import Future
from pathlib import Path

import anyio

from backends.places.cluster.messages import NodeFacts
from backends.places.nodes.listening import (
    ListenerSettings,
    Listening,
    listening,
    memory_here,
    new_token,
)
from config.values import alike, user_folder

SAMPLES, SAMPLE = 16, 64 * 1024  # parts of a file that are read to know it again, and their bytes
FOLDER = "cluster"


class Copies:
    """The files of models on a node: those that it has anyway, and copies in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, path: str, place: str, mark: str) -> str | None:
        """Where the file lies here that bears `mark`: at the same path, or copied earlier."""
        for candidate in (Path(path), self._copy(place)):
            try:
                if mark_of(candidate) == mark:
                    return str(candidate)
            except OSError:
                continue
        return None

    def write(self, place: str, mark: str, offset: int, data: bytes) -> None:
        """A part of a copy. Parts come in order."""
        path = self._part(place, mark)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    def finish(self, place: str, mark: str, digest: str) -> str:
        """The copy is whole: where it lies. Raises ValueError where it isn't what was sent."""
        part, copy = self._part(place, mark), self._copy(place)
        with part.open("rb") as file:
            written = hashlib.file_digest(file, "sha256").hexdigest()
        if written != digest:
            part.unlink()
            raise ValueError(f"{place} did not arrive as it was sent")
        part.replace(copy)
        return str(copy)

    def _copy(self, place: str) -> Path:
        path = Path(place)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{place} is no place below a folder")
        return self._folder / path

    def _part(self, place: str, mark: str) -> Path:
        copy = self._copy(place)
        return copy.with_name(f".{copy.name}.{mark[:16]}.part")


class Supervisor(Copies):
    """One for each node. Its methods are called by the gateway's `control`, some at a time."""

    def __init__(self, host: str, folder: str | None = None, *, tls: bool = False) -> None:
        """`host`: the node's address; `folder`: for copies of files."""
        self._settings = ListenerSettings(host=host, tls=tls)
        super().__init__(Path(folder) if folder else user_folder() / FOLDER)
        self._listening: Future[Listening] = Future()
        # Workers end with the thread that began them, so the listener has one of its own.
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def _listen(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - whoever asks for it gets it
            if not self._listening.done():
                self._listening.set_exception(error)

    async def _serve(self) -> None:
        async with listening(self._settings, new_token()) as there:
            self._listening.set_result(there)
            await anyio.sleep_forever()

    def facts(self) -> NodeFacts:
        """What the gateway needs to know."""
        there = self._listening.result()
        total, free = memory_here()
        return alike(NodeFacts, there)(total=total, free=free)


def mark_of(path: Path) -> str:
    """By what a file is known again: its size, and bytes from all over it. Reading all of tens of
    gigabytes on every start would take longer than a load. Raises OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for number in range(SAMPLES):
            file.seek(number * max(0, size - SAMPLE) // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()
