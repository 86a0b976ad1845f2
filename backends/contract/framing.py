"""The frames on the socket between the gateway and a worker, each with one message.

    4 bytes  length of what follows, little-endian
    1 byte   0: a message in MessagePack; 1: an `Enclosed` message, with large buffers beside it
    n bytes

The messages are those of `backends.contract.messages`, and a few of the worker itself: the load
comes first, then the messages of a container, and a heartbeat all the time. A socket between two
processes of one machine and a TCP connection carry the same; only where a large buffer lies
differs.

Pictures, saved slots and pieces of kept conversations are too large for a message: on Linux they
lie in anonymous memory (memfd_create(2)), which the other process opens as `/proc/PID/fd/N`. It
vanishes with its owner, however that ends. The reader knows the process, and takes nothing else
from it but such memory, which can't shrink; from another machine it takes no file at all. Knows no
socket and no engine.
"""

import mmap
import os
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from backends.contract.catalog import ModelFiles, Placement
from backends.contract.errors import NotAble
from backends.contract.messages import (
    Answered,
    Begin,
    Command,
    Event,
    Failure,
    KeptAnswered,
    KeptAsked,
    KeptBytes,
    OfferedBytes,
    RestoreSlot,
    SlotStates,
)
from backends.contract.protocol import MemoryNeed, ModelInfo, Progress, SavedSlot

HEADER = struct.Struct("<IB")
PLAIN, ENCLOSED = 0, 1
LARGE = 256 * 1024  # bytes of a buffer, from which on it lies beside its message
LARGEST = 2**31  # bytes of a frame; a peer that announces more is not one of ours
LONGEST = LARGEST - 2**20  # bytes of the buffers that a frame may hold themselves
MEMFD = sys.platform == "linux"
MEMORY = "roundhouse"  # what the anonymous memory is called
if MEMFD:
    import fcntl

Buffer: TypeAlias = bytes | bytearray | mmap.mmap


class LoadModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first command. Answered with `Loading`, any number of times, and `Loaded` or `Refused`.
    `options`: the engine's, encoded. `placement`: of a listener's machine, on which of its devices
    the model is to lie; None: where there is room.
    """

    files: ModelFiles
    options: msgspec.Raw
    placement: Placement | None = None


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
    """The model is there. `held`: bytes that the worker has by now, per device; what can't be
    measured is left out. `vocabulary`: from another machine.
    """

    info: ModelInfo
    held: dict[str, int] = {}
    vocabulary: VocabularyFiles | None = None


class Recognised(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model's files, by their headers."""

    files: ModelFiles


class Fitted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model as options make it, the memory it will take and the ways in which it can lie; bytes
    of that machine's devices, and how many of them are free.
    """

    files: ModelFiles
    need: MemoryNeed
    placements: tuple[Placement, ...]
    total: dict[str, int] = {}
    free: dict[str, int] = {}


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The load failed."""

    failure: Failure


class Pong(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker's event loop runs."""


WorkerCommand: TypeAlias = Command | LoadModel | Ping | Received | Recognise | Fit
WorkerEvent: TypeAlias = Event | Loading | Loaded | Refused | Pong | Received | Recognised | Fitted


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A buffer of `size` bytes. `file`: its sender's descriptor of the anonymous memory that it
    lies in; None: it is `data`.
    """

    size: int
    file: int | None = None
    data: bytes = b""


class Enclosed(msgspec.Struct, frozen=True, array_like=True):
    """A message, and the buffers that belong into it, in their order."""

    message: bytes
    blobs: tuple[Blob, ...]


def _builtin(value: object) -> object:
    """MessagePack knows no paths."""
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value)} can't be sent")


def _from_builtin(kind: type, value: Any) -> Any:
    return kind(value)


_encode = msgspec.msgpack.Encoder(enc_hook=_builtin).encode
_enclosed = msgspec.msgpack.Decoder(Enclosed).decode
decode_command: Callable[[Buffer | memoryview], WorkerCommand] = msgspec.msgpack.Decoder(
    WorkerCommand, dec_hook=_from_builtin
).decode
decode_event: Callable[[Buffer | memoryview], WorkerEvent] = msgspec.msgpack.Decoder(
    WorkerEvent, dec_hook=_from_builtin
).decode


class Shelf:
    """Buffers that were sent beside messages, kept until the other end has read them.

    `shared`: both ends are processes of this machine.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared and MEMFD
        self._kept: list[list[int]] = []  # file descriptors, by message

    def frame(self, message: WorkerCommand | WorkerEvent) -> bytes:
        """The bytes of `message`. Raises NotAble where it is too large for a network; an answer is
        replaced by that error.
        """
        bare, buffers = parted(message)
        if not self._shared and sum(map(len, buffers)) > LONGEST:
            bare, buffers = refused(message), ()
        payload = _encode(bare)
        if not buffers:
            return HEADER.pack(len(payload), PLAIN) + payload
        files: list[int] = []
        blobs = tuple(self._put(buffer, files) for buffer in buffers)
        self._kept.append(files)
        payload = _encode(Enclosed(payload, blobs))
        return HEADER.pack(len(payload), ENCLOSED) + payload

    def _put(self, buffer: Buffer, files: list[int]) -> Blob:
        if not self._shared:
            return Blob(len(buffer), data=bytes(buffer))
        file = os.memfd_create(MEMORY, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        files.append(file)
        left = memoryview(buffer)
        while left:
            left = left[os.write(file, left) :]
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return Blob(len(buffer), file)

    def received(self) -> None:
        """The other end has read those of the oldest message."""
        for file in self._kept.pop(0) if self._kept else ():
            os.close(file)

    def clear(self) -> None:
        """Nobody reads them any more."""
        while self._kept:
            self.received()


class Frames:
    """Bytes as they come, to messages. `received` is called for each message with buffers beside
    it, once they are read.
    """

    def __init__(
        self,
        decode: Callable[[Buffer | memoryview], Any],
        received: Callable[[], None],
        *,
        peer: int | None = None,
    ) -> None:
        """`peer`: the process of this machine that sends; None: it is on another one."""
        self.most = LARGEST  # bytes of a frame that may come now
        self._decode = decode
        self._received = received
        self._peer = peer
        self._rest = bytearray()

    def close(self) -> None:
        """Nothing more comes: whoever is called, and has these frames, is let go."""
        self._received = lambda: None

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are whole now. Raises ValueError for bytes that are no frames."""
        source: bytes | bytearray = data
        if self._rest:
            self._rest += data
            source = self._rest
        whole, view = 0, memoryview(source)
        messages = []
        while len(source) - whole >= HEADER.size:
            length, kind = HEADER.unpack_from(source, whole)
            end = whole + HEADER.size + length
            if length > self.most:
                raise ValueError(f"a frame of {length:,} bytes, {self.most:,} at most")
            if end > len(source):
                break
            messages.append(self._message(kind, view[whole + HEADER.size : end]))
            whole = end
        if source is data or whole:  # else more of one long frame has come
            self._rest = bytearray(view[whole:])
        return messages

    def _message(self, kind: int, payload: memoryview) -> Any:
        if kind == PLAIN:
            return self._decode(payload)
        enclosed = _enclosed(payload)
        buffers = [_read(blob, self._peer) for blob in enclosed.blobs]
        self._received()
        return joined(self._decode(enclosed.message), buffers)


def _read(blob: Blob, peer: int | None) -> Buffer:
    """What lies in the file stays there, mapped, and is copied by whoever needs it as bytes. Raises
    ValueError for any other file of the peer's, OSError for none.
    """
    if blob.file is None:
        return blob.data
    if peer is None or not MEMFD:
        raise ValueError("a buffer that lies on another machine")
    named = os.open(f"/proc/{peer}/fd/{blob.file}", os.O_PATH | os.O_CLOEXEC)  # waits for nothing
    try:
        ours = f"/proc/self/fd/{named}"
        if not str(Path(ours).readlink()).startswith(f"/memfd:{MEMORY}"):
            raise ValueError("a buffer in a file that is no anonymous memory")
        file = os.open(ours, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(named)
    try:
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("a buffer in memory that may shrink")
        return mmap.mmap(file, blob.size, access=mmap.ACCESS_COPY)
    finally:
        os.close(file)


Message: TypeAlias = WorkerCommand | WorkerEvent


def refused(message: Message) -> Message:
    """In place of an answer that is too large. Raises NotAble for anything else."""
    error = NotAble("A slot of more than 2 GiB can't be saved or restored over a network.")
    if isinstance(message, Answered):
        return Answered(message.number, Failure.of(error))
    raise error


def parted(message: Message) -> tuple[Message, Sequence[Buffer]]:
    """`message` without its large buffers, and these."""
    match message:
        case Begin(job=job) if sum(len(image.rgb) for image in job.images) >= LARGE:
            bare = tuple(replace(image, rgb=b"") for image in job.images)
            begin = replace(message, job=replace(job, images=bare))
            return begin, [image.rgb for image in job.images]
        case RestoreSlot(data=data) if len(data) >= LARGE:
            return replace(message, data=b""), [data]
        case Answered(answer=SavedSlot() as saved) if len(saved.data) >= LARGE:
            return replace(message, answer=replace(saved, data=bytearray())), [saved.data]
        case KeptAsked(question=OfferedBytes(data=data) as piece) if len(data) >= LARGE:
            return replace(message, question=replace(piece, data=b"")), [data]
        case KeptAnswered(answer=KeptBytes(data=data)) if len(data) >= LARGE:
            return replace(message, answer=KeptBytes(b"")), [data]
        case Answered(answer=SlotStates(states=states)):
            # Nobody looks at the pictures of a job that runs.
            shown = tuple(
                replace(state, job=replace(state.job, images=())) if state.job else state
                for state in states
            )
            return replace(message, answer=SlotStates(shown)), ()
    return message, ()


def joined(message: Message, buffers: Sequence[Buffer]) -> Message:
    """What `parted` took apart."""
    match message:
        case Begin(job=job):
            images = tuple(
                replace(image, rgb=bytes(rgb))
                for image, rgb in zip(job.images, buffers, strict=True)
            )
            return replace(message, job=replace(job, images=images))
        case RestoreSlot():
            return replace(message, data=bytes(buffers[0]))
        case Answered(answer=SavedSlot() as saved):
            # Gigabytes, perhaps, that are only written to a file: they stay where they are mapped.
            return replace(message, answer=replace(saved, data=cast(bytearray, buffers[0])))
        case KeptAsked(question=OfferedBytes() as piece):
            return replace(message, question=replace(piece, data=cast(bytes, buffers[0])))
        case KeptAnswered(answer=KeptBytes()):
            return replace(message, answer=KeptBytes(cast(bytes, buffers[0])))
    raise ValueError(f"{type(message).__name__} has no buffers")


# From a launcher to the gateway: the process of a worker, and its status as `subprocess` counts (less
# than 0 is the number of a signal), or that it `RUNS`. Process 0: the launcher is ready.
REPORT = struct.Struct("<ii")
RUNS = -(2**31)
