"""Measurements survive a restart, and no file can stop the server."""

from pathlib import Path

import msgspec
import pytest

from backends.catalog import ModelFiles
from config.engines import ScriptedOptions
from gateway.registry.record import History, Measurement

OPTIONS = ScriptedOptions()
MEASURED = Measurement(size=55, load_seconds=1.5)


def files(size: int = 40) -> ModelFiles:
    return ModelFiles(
        path=Path("/models/a"),
        backend="scripted",
        format="script",
        architecture="script",
        size_bytes=size,
        context_length=64,
        cache_bytes_per_token=0,
    )


def test_what_was_saved_is_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new" / "measurements.json"
    history = History(path)
    history.put(files(), OPTIONS, MEASURED)
    history.save()
    assert History(path).get(files(), OPTIONS) == MEASURED
    assert list(path.parent.iterdir()) == [path]


def test_other_options_and_other_files_are_other_loads() -> None:
    history = History(None)
    history.put(files(), OPTIONS, MEASURED)
    assert history.get(files(), ScriptedOptions(context_length=32)) is None
    assert history.get(files(size=41), OPTIONS) is None


def test_a_size_that_could_not_be_measured_leaves_the_earlier_one() -> None:
    history = History(None)
    history.put(files(), OPTIONS, MEASURED)
    history.put(files(), OPTIONS, Measurement(size=None, load_seconds=9.0))
    assert history.get(files(), OPTIONS) == Measurement(size=55, load_seconds=9.0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": {"size": "large"}}', b"\xff\x00"])
def test_a_file_that_makes_no_sense_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "measurements.json"
    path.write_bytes(content)
    history = History(path)
    assert history.get(files(), OPTIONS) is None
    history.put(files(), OPTIONS, MEASURED)
    history.save()
    assert msgspec.json.decode(path.read_bytes())


def test_a_place_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    history = History(tmp_path / "file" / "measurements.json")
    history.put(files(), OPTIONS, MEASURED)
    history.save()
    assert history.get(files(), OPTIONS) == MEASURED
