"""Files of models on a node: found where they lie, or copied whole."""

import hashlib
from pathlib import Path

import pytest

from backends.places.cluster.supervisor import Copies, mark_of

PLACE = "model-1/model.gguf"


def sent(copies: Copies, mark: str, data: bytes, size: int = 1000) -> str:
    for offset in range(0, len(data), size):
        copies.write(PLACE, mark, offset, data[offset : offset + size])
    return copies.finish(PLACE, mark, hashlib.sha256(data).hexdigest())


def test_a_file_is_found_at_its_path_or_as_a_copy_and_known_by_what_is_in_it(
    tmp_path: Path,
) -> None:
    data = bytes(range(256)) * 1000
    here = tmp_path / "model.gguf"
    here.write_bytes(data)
    mark, copies = mark_of(here), Copies(tmp_path / "copies")

    assert copies.find(str(here), PLACE, mark) == str(here), "a shared path"
    here.write_bytes(data[:-1] + b"!")
    assert copies.find(str(here), PLACE, mark) is None, "another file of that size"

    copy = sent(copies, mark, data)
    assert Path(copy).read_bytes() == data
    assert copies.find(str(here), PLACE, mark) == copy


def test_a_copy_that_did_not_arrive_as_it_was_sent_is_none(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.write(PLACE, "mark", 0, b"what came")
    with pytest.raises(ValueError, match="did not arrive"):
        copies.finish(PLACE, "mark", hashlib.sha256(b"what was sent").hexdigest())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("place", ["../model.gguf", "/etc/model.gguf", "a/../../b"])
def test_a_copy_stays_in_its_folder(tmp_path: Path, place: str) -> None:
    with pytest.raises(ValueError, match="no place"):
        Copies(tmp_path).write(place, "mark", 0, b"")
