"""What is read of a file is what was written, or nothing."""

import os
import random
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from backends.contract.beginnings import PIECE, Taken, packed
from backends.places.kept.files import (
    ABANDONED,
    PINNED,
    Folder,
    Foreign,
    Head,
    Seal,
    Unusable,
    name,
    peek,
    read,
    salt_in,
    write,
)
from config.values import alike


class Made(NamedTuple):
    head: Head
    taken: Taken


def stored(size: int = 100_000, seed: int = 0) -> Made:
    dice = np.random.default_rng(seed)
    whole, part = (dice.integers(0, 256, length, np.uint8) for length in (size, 1_000))
    head = Head(
        identity="engine",
        owner="somebody",
        model="model",
        conversation="mine",
        cells=100,
        cuts_from=100,
        places=(50,),
        sizes=(len(whole), len(part)),
        seconds=1.0,
        made=5.0,
    )
    tokens = [*range(99), -(1 << 55)]
    return Made(head, alike(Taken, head)(tokens=tokens, buffers=(whole, part)))


@pytest.fixture(params=["plain", "sealed"])
def seal(request: pytest.FixtureRequest) -> Seal | None:
    if request.param == "plain":
        return None
    pytest.importorskip("cryptography")
    return Seal("a secret", b"salt")


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_what_was_written_is_read(tmp_path: Path, seal: Seal | None, size: int) -> None:
    made, path = stored(size), tmp_path / "one.kept"
    write(path, *made, seal)
    again = Made(*read(path, seal))
    assert msgspec.structs.replace(again.head, sealed="", nonce=b"") == made.head
    assert list(again.taken.tokens) == made.taken.tokens
    assert np.array_equal(again.taken.whole, made.taken.whole)
    assert np.array_equal(again.taken.buffers[1], made.taken.buffers[1])
    assert peek(path, seal) == (again.head, packed(made.taken.tokens))
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_changed_bit_and_no_missing_byte_goes_unnoticed(
    tmp_path: Path, seal: Seal | None
) -> None:
    path, rng = tmp_path / "one.kept", random.Random(0)
    write(path, *stored(2_000), seal)
    data = path.read_bytes()
    for place in [*range(200), *rng.sample(range(len(data)), 300)]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(Unusable):
            read(path, seal)
    for length in [*range(100), *rng.sample(range(len(data)), 100)]:
        path.write_bytes(data[:length])
        with pytest.raises(Unusable):
            read(path, seal)
        with pytest.raises(Unusable):
            peek(path, seal)


def test_sealed_files_hold_nothing_that_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    made, path = stored(), tmp_path / "one.kept"
    write(path, *made, Seal("a secret", b"salt"))
    data = path.read_bytes()
    assert packed(made.taken.tokens)[:64] not in data
    assert bytes(made.taken.whole[:64]) not in data
    with pytest.raises(Unusable, match="another key"):
        read(path, Seal("another", b"salt"))
    with pytest.raises(Foreign):
        read(path)


def test_a_folder_lists_what_is_whole_removes_what_is_torn_and_leaves_what_is_foreign(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path / "kept")
    assert list(folder.open()) == []
    path = folder.write(*stored())
    torn = folder.write(*stored(seed=1)).with_name("b" * 40 + ".kept")
    torn.write_bytes(path.read_bytes()[:-1])
    later = torn.with_name("c" * 40 + ".kept")
    later.write_bytes(path.read_bytes().replace(b"RHKEPT\r\n\x01", b"RHKEPT\r\n\x02"))
    unfinished = path.with_name(path.name + ".17.4")
    unfinished.write_bytes(b"RHKEPT")
    abandoned = path.with_name(path.name + ".18.5")
    abandoned.write_bytes(b"RHKEPT")
    os.utime(abandoned, (0, ABANDONED))
    ((found, head, tokens),) = folder.open()
    assert (found, head, tokens) == (path, stored().head, packed(stored().taken.tokens))
    assert sorted(path.parent.iterdir()) == sorted([path, later, unfinished])


def test_a_file_is_called_by_what_it_holds() -> None:
    made = stored()
    tokens = packed(made.taken.tokens)
    assert name(made.head, tokens) == name(made.head, tokens)
    other = msgspec.structs.replace(made.head, owner="another")
    assert name(made.head, tokens) != name(other, tokens)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "one.kept").mkdir()  # it can't be replaced by a file
    (tmp_path / "one.kept" / "in the way").touch()
    with pytest.raises(OSError):  # noqa: PT011 - which depends on the system
        write(tmp_path / "one.kept", *stored())
    assert [path.name for path in tmp_path.iterdir()] == ["one.kept"]


def test_a_folder_that_takes_nothing_more_takes_no_pin(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "kept")
    assert list(folder.open()) == []
    path = folder.write(*stored())
    path.with_suffix(PINNED).mkdir()  # in the way
    folder.pin(path, pinned=False)
    path.with_suffix(PINNED).rmdir()
    folder.pin(path, pinned=True)
    assert folder.is_pinned(path)
    folder.remove(path)
    assert list(path.parent.iterdir()) == []


def test_a_folder_has_one_salt_and_each_its_own(tmp_path: Path) -> None:
    """The same secret makes other keys elsewhere."""
    pytest.importorskip("cryptography")
    one, other = salt_in(tmp_path / "one"), salt_in(tmp_path / "other")
    assert salt_in(tmp_path / "one") == one != other
    assert len(one) == 16
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["salt"]
    assert (tmp_path / "one" / "salt").stat().st_mode & 0o077 == 0
    write(path := tmp_path / "one" / "a.kept", *stored(), Seal("a secret", one))
    with pytest.raises(Unusable):
        read(path, Seal("a secret", other))
