"""What goes into frames comes out of them, however they are cut. Large buffers lie beside them."""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.contract.beginnings import SavedSlot
from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, NotAble
from backends.contract.framing import (
    HEADER,
    LARGE,
    LARGEST,
    LONGEST,
    MEMORY,
    Frames,
    Loading,
    LoadModel,
    Message,
    Ping,
    Refused,
    Shelf,
    WorkerCommand,
    WorkerEvent,
)
from backends.contract.messages import (
    Answered,
    Begin,
    Failure,
    KeptAnswered,
    KeptAsked,
    KeptBytes,
    Leave,
    OfferedBytes,
    Outcomes,
    RestoreSlot,
)
from backends.contract.protocol import Generation, Image, Piece, Pixels, Progress

HERE = os.getpid()
PICTURES = (Image(300, 400, Pixels(bytes(range(240)) * 1500)), Image(1, 1, Pixels(b"abc")))
FILES = ModelFiles(
    path=Path("/models/a.gguf"),
    backend="llamacpp",
    format="gguf",
    architecture="llama",
    size_bytes=1,
    context_length=2,
    cache_bytes_per_token=3,
    parts=(Path("/models/a.gguf"),),
    projector=Path("/models/b.gguf"),
)
MUCH, FEW = np.zeros(LARGE, np.uint8), np.frombuffer(b"few", np.uint8)
COMMANDS: Sequence[Message] = (
    LoadModel(FILES, msgspec.Raw(msgspec.msgpack.encode({"a": 1}))),
    Ping(),
    Begin(1, Generation(prompt=(1, 2), images=PICTURES)),
    Begin(2, Generation(prompt=(1, 2), images=PICTURES[1:])),
    RestoreSlot(3, 0, MUCH),
    RestoreSlot(4, 0, FEW),
    KeptAnswered(6, KeptBytes(MUCH)),
    KeptAnswered(7, KeptBytes(FEW)),
    Leave(5),
)
EVENTS: Sequence[Message] = (
    Loading(Progress("weights", 1, 2)),
    Refused(Failure.of(LoadFailed("no"))),
    Outcomes(((1, Piece("a", (1,))), (2, Piece("b", (2,))))),
    Answered(1, SavedSlot(3, MUCH + 7)),
    Answered(2, SavedSlot(3, FEW)),
    KeptAsked(9, OfferedBytes(3, MUCH)),
    KeptAsked(10, OfferedBytes(3, FEW)),
)


def read(frames: Frames, data: bytes, size: int) -> list[Any]:
    """All messages, where `size` bytes come at a time."""
    cuts = range(0, len(data), size)
    return [message for at in cuts for message in frames.feed(data[at : at + size])]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_messages_come_as_they_went(shared: bool, size: int) -> None:
    for kind, each in ((WorkerCommand, COMMANDS), (WorkerEvent, EVENTS)):
        shelf, received = Shelf(shared=shared), list[int]()
        messages = each if shared or size > 1 else each[:2]  # half a megabyte, byte by byte
        data = b"".join(map(shelf.frame, messages))
        frames = Frames(kind, lambda: received.append(1), peer=HERE)  # noqa: B023 - called in this turn
        for before, after in zip(messages, read(frames, data, size), strict=True):
            assert type(before) is type(after)
            assert in_one(before) == in_one(after)
        for _ in received:
            shelf.received()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def in_one(message: Message) -> bytes:
    """All of it: large buffers may be mapped, and arrays compare by their parts."""
    return Shelf(shared=False).frame(message)


def test_pictures_are_shared_and_closed_when_they_are_read() -> None:
    shelf = Shelf(shared=True)
    before = open_files()
    frame = shelf.frame(COMMANDS[2])
    assert len(frame) < 3000
    assert open_files() == before + 1  # the other one is small
    frames = Frames(WorkerCommand, shelf.received, peer=HERE)
    assert frames.feed(frame) == [COMMANDS[2]]
    assert open_files() == before
    shelf.received()  # nothing is left to close
    shelf.frame(COMMANDS[2])
    shelf.clear()
    assert open_files() == before


def named(size: Any, file: Any) -> bytes:
    """A frame whose buffer lies there."""
    payload = msgspec.msgpack.encode(["RestoreSlot", 1, 0, [size, file]])
    return HEADER.pack(len(payload)) + payload


def test_a_peer_of_another_machine_names_no_file_of_this_one() -> None:
    frame = Shelf(shared=True).frame(RestoreSlot(1, 0, MUCH))
    with pytest.raises(ValueError, match="another machine"):
        Frames(WorkerCommand, lambda: None).feed(frame)


def test_a_peer_of_this_machine_names_none_but_memory_that_stays(tmp_path: Path) -> None:
    """A FIFO isn't waited for, and nothing that is opened stays open."""
    secret, fifo = tmp_path / "secret", tmp_path / "fifo"
    secret.write_bytes(bytes(LARGE))
    os.mkfifo(fifo)
    files = [
        os.open(secret, os.O_RDONLY),
        os.open(fifo, os.O_RDONLY | os.O_NONBLOCK),
        os.memfd_create("other", os.MFD_ALLOW_SEALING),
        os.memfd_create(MEMORY, os.MFD_ALLOW_SEALING),  # it may shrink under its reader
    ]
    try:
        before = open_files()
        for file in (*files, -1, 10**6, f"../../..{secret}", None):
            with pytest.raises((ValueError, OSError)):
                Frames(WorkerCommand, lambda: None, peer=HERE).feed(named(LARGE, file))
        assert open_files() == before
    finally:
        for file in files:
            os.close(file)


@given(
    st.binary(max_size=200)
    | st.builds(lambda data: HEADER.pack(len(data)) + data, st.binary())
    | st.builds(named, st.integers(-1, LARGEST), st.none() | st.integers(-9, 99))
)
def test_whatever_comes_is_a_message_or_refused(data: bytes) -> None:
    for kind in (WorkerCommand, WorkerEvent):
        for peer in (None, HERE):
            with suppress(ValueError, OSError, LookupError, OverflowError):
                Frames(kind, lambda: None, peer=peer).feed(data)


def test_a_frame_longer_than_any_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        Frames(WorkerEvent, lambda: None).feed(HEADER.pack(LARGEST + 1))


def test_what_is_too_large_for_a_network_is_said() -> None:
    large = np.frombuffer(mmap.mmap(-1, LONGEST + 1), np.uint8)
    shelf = Shelf(shared=False)
    with pytest.raises(NotAble, match="2 GiB"):
        shelf.frame(RestoreSlot(1, 0, large))
    framed = shelf.frame(Answered(7, SavedSlot(3, large)))
    (answered,) = Frames(WorkerEvent, lambda: None).feed(framed)
    assert answered.number == 7
    assert isinstance(answered.answer.error(), NotAble)
