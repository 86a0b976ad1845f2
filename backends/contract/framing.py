"""The frames on the socket between the gateway and a worker, each with one message.

    4 bytes  length of what follows, little-endian
    n bytes  a message in MessagePack

The messages are those of `backends.contract.messages`, and a few of the worker itself: the load
comes first, then the messages of a container, and a heartbeat all the time. A socket between two
processes of one machine and a TCP connection carry the same; only where a large buffer lies
differs.

Pictures, saved slots and pieces of kept conversations are too large for a message: on Linux they
lie in anonymous memory (memfd_create(2)), and in the message stand their size and the descriptor
`N` as which the other process opens them, `/proc/PID/fd/N`. It vanishes with its owner, however
that ends. The reader knows the process, and takes nothing else
from it but such memory, which can't shrink; from another machine it takes no file at all. Knows no
socket and no engine.
"""

import mmap
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from backends.contract.catalog import ModelFiles
from backends.contract.errors import NotAble
from backends.contract.messages import Answered, Command, Event, Failure
from backends.contract.protocol import MemoryNeed, ModelInfo, Pixels, Progress

HEADER = struct.Struct("<I")
LARGE = 256 * 1024  # bytes of a buffer, from which on it lies beside its message
LARGEST = 2**31  # bytes of a frame; a peer that announces more is not one of ours
LONGEST = LARGEST - 2**20  # bytes of the buffers that a frame may hold themselves
MEMFD = sys.platform == "linux"
MEMORY = "roundhouse"  # what the anonymous memory is called
if MEMFD:
    import fcntl


class LoadModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first command. Answered with `Loading`, any number of times, and `Loaded` or `Refused`.
    `options`: the engine's, encoded.
    """

    files: ModelFiles
    options: msgspec.Raw


class Recognise(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To a listener: answered with `Recognised` or `Refused`. `path` is one of its machine;
    `backend` None: the first that knows the files.
    """

    path: str
    backend: str | None = None


class Fit(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To a listener: answered with `Fitted` or `Refused`. As `LoadModel`, but nothing is loaded."""

    files: ModelFiles
    options: msgspec.Raw


class Ping(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answered with `Pong`, at once."""


class Received(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The buffers beside the oldest message that had any, and wasn't answered so, are read."""


class Loading(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How far the load is."""

    progress: Progress


class VocabularyFiles(msgspec.Struct, frozen=True):
    """What a tokenizer is made of where the model's files are not: files by their names, as
    `catalog.FilesModule.vocabulary` says. `name`: the one that stands for them; None: their folder.
    """

    files: dict[str, bytes]
    name: str | None = None


class Loaded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model is there, and what its worker holds by now. `vocabulary`: from another machine."""

    info: ModelInfo
    vocabulary: VocabularyFiles | None = None


class Recognised(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model's files, by their headers."""

    files: ModelFiles


class Fitted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model as options make it, the memory it will take, and bytes of the devices there."""

    files: ModelFiles
    need: MemoryNeed
    total: dict[str, int]


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The load failed."""

    failure: Failure


class Pong(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker's event loop runs."""


WorkerCommand: TypeAlias = Command | LoadModel | Ping | Received | Recognise | Fit
WorkerEvent: TypeAlias = Event | Loading | Loaded | Refused | Pong | Received | Recognised | Fitted


Message: TypeAlias = WorkerCommand | WorkerEvent


class Shelf:
    """Buffers that were sent beside messages, kept until the other end has read them.

    `shared`: both ends are processes of this machine.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared and MEMFD
        self._kept: list[list[int]] = []  # file descriptors, by message
        self._files: list[int] = []  # of the message that is encoded
        self._size = 0  # bytes of buffers that stand in it
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._builtin).encode

    def frame(self, message: Message) -> bytes:
        """The bytes of `message`. Raises NotAble where it is too large for a network; an answer is
        replaced by that error.
        """
        self._files, self._size = [], 0
        try:
            payload = self._encode(message)
        except NotAble as error:
            if not isinstance(message, Answered):
                raise
            payload = self._encode(Answered(message.number, Failure.of(error)))
        if self._files:
            self._kept.append(self._files)
        return HEADER.pack(len(payload)) + payload

    def _builtin(self, value: object) -> object:
        """MessagePack knows no paths and no arrays."""
        if isinstance(value, Path):
            return str(value)
        if not isinstance(value, np.ndarray | Pixels):
            raise NotImplementedError(f"{type(value)} can't be sent")
        value = np.frombuffer(value, np.uint8)
        if self._shared and value.nbytes >= LARGE:
            self._files.append(_written(value.data))
            return value.nbytes, self._files[-1]
        self._size += value.nbytes
        if self._size > LONGEST:
            raise NotAble("A slot of more than 2 GiB can't be saved or restored over a network.")
        return value.data

    def received(self) -> None:
        """The other end has read those of the oldest message."""
        for file in self._kept.pop(0) if self._kept else ():
            os.close(file)

    def clear(self) -> None:
        """Nobody reads them any more."""
        while self._kept:
            self.received()


def _written(left: memoryview) -> int:
    """The descriptor of anonymous memory that holds it."""
    file = os.memfd_create(MEMORY, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    while left:
        left = left[os.write(file, left) :]
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file


class Frames:
    """Bytes as they come, to messages. `received` is called for each message with buffers beside
    it, once they are read.
    """

    def __init__(self, kind: Any, received: Callable[[], None], *, peer: int | None = None) -> None:
        """`kind`: of the messages; `peer`: the process of this machine that sends; None: it is on
        another one.
        """
        self.most = LARGEST  # bytes of a frame that may come now
        self._decode = msgspec.msgpack.Decoder(kind, dec_hook=self._from_builtin).decode
        self._received = received
        self._peer = peer
        self._rest = bytearray()
        self._was_beside = False  # a buffer of the message that is decoded

    def close(self) -> None:
        """Nothing more comes: whoever is called, and has these frames, is let go."""
        self._received = lambda: None

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are whole now. Raises ValueError for bytes that are no frames."""
        self._rest += data
        whole, view = 0, memoryview(self._rest)
        messages = []
        while len(view) - whole >= HEADER.size:
            (length,) = HEADER.unpack_from(view, whole)
            end = whole + HEADER.size + length
            if length > self.most:
                raise ValueError(f"a frame of {length:,} bytes, {self.most:,} at most")
            if end > len(view):
                break
            messages.append(self._message(view[whole + HEADER.size : end]))
            whole = end
        if whole:  # else more of one long frame has come
            self._rest = self._rest[whole:]  # another: parts of messages may be views
        return messages

    def _message(self, payload: memoryview) -> Any:
        self._was_beside = False
        message = self._decode(payload)
        if self._was_beside:
            self._received()
        return message

    def _from_builtin(self, kind: type, value: Any) -> Any:
        if kind is Path:
            return Path(value)
        if not isinstance(value, bytes):
            size, file = msgspec.convert(value, tuple[int, int])
            self._was_beside = True
            value = _mapped(size, file, self._peer)
        return Pixels(value) if kind is Pixels else np.frombuffer(value, np.uint8)


def _mapped(size: int, file: int, peer: int | None) -> mmap.mmap:
    """What lies in the file stays there, mapped, and is copied by whoever needs it as bytes. Raises
    ValueError for any other file of the peer's, OSError for none.
    """
    if peer is None or not MEMFD:
        raise ValueError("a buffer that lies on another machine")
    named = os.open(f"/proc/{peer}/fd/{file}", os.O_PATH | os.O_CLOEXEC)  # waits for nothing
    try:
        ours = f"/proc/self/fd/{named}"
        if not str(Path(ours).readlink()).startswith(f"/memfd:{MEMORY}"):
            raise ValueError("a buffer in a file that is no anonymous memory")
        there = os.open(ours, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(named)
    try:
        if not fcntl.fcntl(there, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("a buffer in memory that may shrink")
        return mmap.mmap(there, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(there)


# From a launcher to the gateway: the process of a worker, and its status as `subprocess` counts
# (less than 0 is the number of a signal), or that it `RUNS`.
REPORT = struct.Struct("<ii")
RUNS = -(2**31)
