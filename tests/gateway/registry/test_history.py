"""Measurements survive a restart, and no file can stop the server."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import MemoryNeed
from config.engines import ScriptedOptions
from gateway.registry.history import History, Measurement

GIB = 2**30
OPTIONS = ScriptedOptions()
MEASURED = Measurement(size=55, load_seconds=1.5)
NEED = MemoryNeed(weights=4 * GIB, cache=GIB, engine=GIB)

needs = st.builds(
    MemoryNeed,
    weights=st.integers(0, 10**12),
    cache=st.integers(0, 10**12),
    engine=st.integers(0, 10**12),
)


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


@pytest.mark.parametrize(
    "content",
    [
        b'{"version": 1, "loads": {}}',
        b'{"version": 3, "loads": {}}',
        b'{"/models/a#0123": {"size": 55, "load_seconds": 1.5}}',
        b'{"version": 2, "loads": {"a": {"size": 5',
        b'{"version": 2, "models": []}',
        b'{"version": 2, "bandwidths": {"cpu 0": 0}}',
        b'{"version": 2, "bandwidths": {"cpu 0": 1e999}}',
        b'{"version": 2, "loads": {"a": {"size": -1}}}',
        b'{"version": 2, "loads": {"a": {"size": 99999999999999999999999}}}',
        b'{"version": 2, "loads": {"a": {"size": 1, "pace": 0}}}',
        b'{"version": 2, "loads": {"a": {"size": 1, "load_seconds": -1}}}',
        b'{"version": 2, "loads": {"a": {"size": 1, "devices": {"cuda:0": -1}}}}',
        b'{"version": 2, "loads": {"a": {"size": 1, "b": '
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}}}",
    ],
)
def test_a_torn_or_foreign_file_is_ignored_and_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "measurements.json"
    path.write_bytes(content)
    with capture_logs() as lines:
        history = History(path)
    assert [line["event"] for line in lines] == ["measurements begun anew"]
    assert history.get(files(), OPTIONS) is None


def test_a_model_is_known_by_its_files_wherever_they_lie(tmp_path: Path) -> None:
    names = ("first.gguf", "second.gguf", "other.gguf")
    paths = [tmp_path / name for name in names]
    for path, head in zip(paths, (b"head", b"head", b"heap"), strict=True):
        path.write_bytes(head + bytes(100))
    first, second, other = (
        msgspec.structs.replace(files(), path=path, parts=(path,)) for path in paths
    )
    history = History(None)
    history.put(first, OPTIONS, MEASURED)
    assert history.get(second, OPTIONS) == MEASURED
    assert history.get(other, OPTIONS) is None
    assert history.forget_sizes(second)
    assert history.get(first, OPTIONS) == Measurement(size=None, load_seconds=1.5)


def test_what_was_measured_on_one_card_is_not_known_of_another(tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    history = History(path)
    history.begin({"cuda:0": 24 * GIB})
    history.put(files(), OPTIONS, MEASURED)
    history.note_reads({"cuda:0": 4.0 * GIB}, 100.0)
    history.save()
    again = History(path)
    again.begin({"cuda:0": 24 * GIB})
    assert again.get(files(), OPTIONS) == MEASURED
    assert again.bandwidths == {"cuda:0": 400 * GIB}
    other = History(path)
    other.begin({"cuda:0": 12 * GIB})
    assert other.get(files(), OPTIONS) is None
    assert other.bandwidths == {}


def test_a_pace_goes_up_fast_and_down_slowly_since_others_slow_an_answer() -> None:
    history = History(None)
    history.put(files(), OPTIONS, MEASURED)
    paces = [history.note_pace(files(), OPTIONS, pace) for pace in (10.0, 20.0, 5.0)]
    assert paces == [10.0, 15.0, 14.0]
    history.put(files(), OPTIONS, Measurement(size=60, load_seconds=2.0))
    known = history.get(files(), OPTIONS)
    assert known == Measurement(size=60, load_seconds=2.0, pace=14.0)


def test_how_fast_devices_are_read_follows_from_how_fast_models_write() -> None:
    history = History(None)
    history.begin({"cuda:0": 24 * GIB})
    both = {"cuda:0": 2.0 * GIB, "cpu": 1.0 * GIB}
    history.note_reads(both, 10.0)
    assert history.bandwidths == {}, "one of two is not known"
    history.note_reads({"cuda:0": 4.0 * GIB}, 100.0)
    history.note_reads(both, 1 / (0.005 + 0.02))
    assert history.bandwidths == pytest.approx({"cuda:0": 400 * GIB, "cpu": 50 * GIB})
    history.note_reads({"cpu": 1e6}, 1000.0)
    assert history.bandwidths["cpu"] == pytest.approx(50 * GIB), "small models wait for others"


def test_a_place_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    history = History(tmp_path / "file" / "measurements.json")
    history.put(files(), OPTIONS, MEASURED)
    history.save()
    assert history.get(files(), OPTIONS) == MEASURED


@given(needs, st.integers(0, 10**13))
def test_a_measurement_is_the_new_total_within_half_and_one_and_a_half_of_the_estimate(
    estimate: MemoryNeed, measured: int
) -> None:
    total = Measurement(size=measured).corrected(estimate).total
    least, most = int(estimate.total * 0.5), int(estimate.total * 1.5)
    assert total == min(max(measured, least), most)


def test_what_a_process_of_its_own_has_is_not_bounded() -> None:
    assert Measurement(size=100 * GIB, exact=True).corrected(NEED).total == 100 * GIB
    assert Measurement(size=1, exact=True).corrected(NEED).total == 1


@given(needs, st.integers(0, 10**13))
def test_no_part_of_a_corrected_need_is_negative(estimate: MemoryNeed, measured: int) -> None:
    part = Measurement(size=measured).corrected(estimate)
    assert min(part.weights, part.cache, part.engine) >= 0


def test_without_a_measurement_the_estimate_stands() -> None:
    assert Measurement(size=None).corrected(NEED) == NEED
