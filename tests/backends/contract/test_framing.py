"""What goes into frames comes out of them, however they are cut. Large buffers lie beside them."""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, NotAble
from backends.contract.framing import (
    ENCLOSED,
    HEADER,
    LARGE,
    LARGEST,
    LONGEST,
    MEMORY,
    Blob,
    Enclosed,
    Frames,
    Loading,
    LoadModel,
    Message,
    Ping,
    Refused,
    Shelf,
    decode_command,
    decode_event,
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
    SlotStates,
)
from backends.contract.protocol import Generation, Image, Piece, Progress, SavedSlot, SlotState

HERE = os.getpid()
PICTURES = (Image(300, 400, bytes(range(240)) * 1500), Image(1, 1, b"abc"))
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
COMMANDS: Sequence[Message] = (
    LoadModel(FILES, msgspec.Raw(msgspec.msgpack.encode({"a": 1}))),
    Ping(),
    Begin(1, Generation(prompt=(1, 2), images=PICTURES)),
    Begin(2, Generation(prompt=(1, 2), images=PICTURES[1:])),
    RestoreSlot(3, 0, bytes(LARGE)),
    RestoreSlot(4, 0, b"few"),
    KeptAnswered(6, KeptBytes(bytes(LARGE))),
    KeptAnswered(7, KeptBytes(b"few")),
    Leave(5),
)
EVENTS: Sequence[Message] = (
    Loading(Progress("weights", 1, 2)),
    Refused(Failure.of(LoadFailed("no"))),
    Outcomes(((1, Piece("a", (1,))), (2, Piece("b", (2,))))),
    Answered(1, SavedSlot(3, bytearray(b"x") * LARGE)),
    Answered(2, SavedSlot(3, bytearray(b"few"))),
    KeptAsked(9, OfferedBytes(3, 1, 70, bytes(LARGE))),
    KeptAsked(10, OfferedBytes(3, 1, 70, b"few")),
)


def read(frames: Frames, data: bytes, size: int) -> list[Any]:
    """All messages, where `size` bytes come at a time."""
    cuts = range(0, len(data), size)
    return [message for at in cuts for message in frames.feed(data[at : at + size])]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_messages_come_as_they_went(shared: bool, size: int) -> None:
    for decode, each in ((decode_command, COMMANDS), (decode_event, EVENTS)):
        shelf, received = Shelf(shared=shared), list[int]()
        messages = each if shared or size > 1 else each[:2]  # half a megabyte, byte by byte
        data = b"".join(map(shelf.frame, messages))
        frames = Frames(decode, lambda: received.append(1), peer=HERE)  # noqa: B023 - called in this turn
        for before, after in zip(messages, read(frames, data, size), strict=True):
            assert shown(before) == shown(after)
        for _ in received:
            shelf.received()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def shown(message: Message) -> Message:
    """Large buffers may be mapped, and Raw is compared by what it holds."""
    match message:
        case KeptAnswered(number, KeptBytes(data)):
            return KeptAnswered(number, KeptBytes(data[:]))
        case KeptAsked(number, OfferedBytes(data=data) as piece):
            return KeptAsked(number, msgspec.structs.replace(piece, data=data[:]))
        case Answered(answer=SavedSlot(tokens, data)):
            return Answered(message.number, SavedSlot(tokens, bytearray(data[:])))
        case LoadModel(files, options):
            return LoadModel(files, msgspec.Raw(bytes(options)))
    return message


def test_pictures_are_shared_and_closed_when_they_are_read() -> None:
    shelf = Shelf(shared=True)
    before = open_files()
    frame = shelf.frame(COMMANDS[2])
    assert len(frame) < 3000
    assert open_files() == before + len(PICTURES)
    frames = Frames(decode_command, shelf.received, peer=HERE)
    assert frames.feed(frame) == [COMMANDS[2]]
    assert open_files() == before
    shelf.received()  # nothing is left to close
    shelf.frame(COMMANDS[2])
    shelf.clear()
    assert open_files() == before


def named(blob: Blob) -> bytes:
    """A frame whose buffer lies there."""
    bare = msgspec.msgpack.encode(RestoreSlot(1, 0, b""))
    payload = msgspec.msgpack.encode(Enclosed(bare, (blob,)))
    return HEADER.pack(len(payload), ENCLOSED) + payload


def test_a_peer_of_another_machine_names_no_file_of_this_one() -> None:
    frame = Shelf(shared=True).frame(RestoreSlot(1, 0, bytes(LARGE)))
    with pytest.raises(ValueError, match="another machine"):
        Frames(decode_command, lambda: None).feed(frame)


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
        for file in (*files, -1, 10**6):
            with pytest.raises((ValueError, OSError)):
                Frames(decode_command, lambda: None, peer=HERE).feed(named(Blob(LARGE, file)))
        assert open_files() == before
    finally:
        for file in files:
            os.close(file)


@given(
    st.binary(max_size=200)
    | st.builds(
        lambda kind, data: HEADER.pack(len(data), kind) + data, st.integers(0, 255), st.binary()
    )
    | st.builds(named, st.builds(Blob, st.integers(-1, LARGEST), st.none() | st.integers(-9, 99)))
)
def test_whatever_comes_is_a_message_or_refused(data: bytes) -> None:
    for decode in (decode_command, decode_event):
        for peer in (None, HERE):
            with suppress(ValueError, OSError, LookupError, OverflowError):
                Frames(decode, lambda: None, peer=peer).feed(data)


def test_a_frame_longer_than_any_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        Frames(decode_event, lambda: None).feed(HEADER.pack(LARGEST + 1, 0))


def test_pictures_of_jobs_that_run_are_not_shown_with_their_slots() -> None:
    states = SlotStates((SlotState(id=0, job=Generation(prompt=(1,), images=PICTURES)),))
    frame = Shelf(shared=True).frame(Answered(1, states))
    assert len(frame) < 3000


def test_what_is_too_large_for_a_network_is_said() -> None:
    large, shelf = mmap.mmap(-1, LONGEST + 1), Shelf(shared=False)
    with pytest.raises(NotAble, match="2 GiB"):
        shelf.frame(RestoreSlot(1, 0, cast(bytes, large)))
    framed = shelf.frame(Answered(7, SavedSlot(3, cast(bytearray, large))))
    (answered,) = Frames(decode_event, lambda: None).feed(framed)
    assert answered.number == 7
    assert isinstance(answered.answer.error(), NotAble)
    large.close()
