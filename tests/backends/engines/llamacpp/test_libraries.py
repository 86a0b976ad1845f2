"""Which library computes a model is decided by its file, its options and what is installed; the
reason is said.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import bundled
from backends.contract.catalog import ModelFiles
from backends.contract.errors import BackendMissing, LoadFailed
from backends.engines.llamacpp import container, speeds, trial
from backends.engines.llamacpp.layout import Layout, cache_layout
from backends.engines.llamacpp.libraries import IK, LLAMA_CPP, check, choice, chosen, is_open
from backends.engines.llamacpp.recognition import recognise
from backends.machine import ik
from config.engines import DraftOptions, IkOptions, LlamaCppOptions

pytestmark = pytest.mark.anyio
INSTALLED = pytest.mark.skipif(bool(ik.missing()), reason="ik_llama.cpp isn't installed")
MISSING = pytest.mark.skipif(not ik.missing(), reason="ik_llama.cpp is installed")
ALONE = LlamaCppOptions(max_concurrent=1, gpu_layers=0)
IQ4_KS, Q4_1 = 144, 3


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def files() -> ModelFiles:
    found = recognise(bundled.GGUF)
    assert found is not None
    return found


@MISSING
def test_without_it_nobody_is_told_and_what_needs_it_names_its_installation(
    files: ModelFiles,
) -> None:
    assert choice(files, ALONE) is None
    with pytest.raises(BackendMissing, match=r"needs ik_llama\.cpp: .*install.*ik"):
        check(files, msgspec.structs.replace(ALONE, library="ik"))


@INSTALLED
@pytest.mark.parametrize(
    ("measured", "name", "reason"),
    [
        (None, LLAMA_CPP, "isn't known"),
        ("1.6", IK, "1.6 times as fast here"),
        ("1.4", LLAMA_CPP, "1.4 times as fast here"),
        ("0", LLAMA_CPP, "ended its process"),
    ],
)
def test_the_faster_one_computes_as_far_as_it_is_known(
    files: ModelFiles, measured: str | None, name: str, reason: str
) -> None:
    several = LlamaCppOptions(gpu_layers=0)
    if measured is not None:
        trial.remember(speeds.noted(files, several), measured)
    found = chosen(files, several)
    assert (found.name, found.may_end, reason in found.reason) == (name, name == IK, True)
    assert "isn't known" in chosen(files, ALONE).reason  # which is another question


@INSTALLED
async def test_the_first_load_of_a_family_measures_and_the_second_one_knows(
    files: ModelFiles,
) -> None:
    options = msgspec.structs.replace(ALONE, context_length=256, host="worker")
    assert is_open(files, options)
    assert not is_open(msgspec.structs.replace(files, size_bytes=speeds.LARGEST + 1), options)
    for reason in ("isn't known", "as fast here"):
        loaded = await container.load(files, options, lambda _: None)
        assert reason in (loaded.info.library or "")
        assert not is_open(files, options)
        await loaded.aclose()
    times = speeds.remembered(files, options)
    assert times is not None
    assert times > 0


@INSTALLED
@pytest.mark.parametrize(
    ("status", "known"), [(-6, 0.0), (-9, None), (-15, None), (trial.REFUSED, None)]
)
async def test_a_library_that_ends_the_process_is_not_faster(
    files: ModelFiles, status: int, known: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed had no memory; one that is stopped, a gateway that was."""

    async def ended(*_: object) -> tuple[int, bytes, bytes]:
        return status, b"", b""

    monkeypatch.setattr(trial, "in_child", ended)
    await trial.race(files, ALONE)
    assert speeds.remembered(files, ALONE) == known


@INSTALLED
@pytest.mark.parametrize("end", [TimeoutError(), BlockingIOError(), -9])
async def test_what_had_no_time_or_no_memory_to_be_measured_keeps_no_other_load(
    files: ModelFiles, end: Exception | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does its own load fail for that."""

    async def ended(*_: object) -> tuple[int, bytes, bytes]:
        if isinstance(end, Exception):
            raise end
        return end, b"", b""

    monkeypatch.setattr(trial, "in_child", ended)
    assert is_open(files, ALONE)
    await trial.race(files, ALONE)
    assert not is_open(files, ALONE)
    assert speeds.remembered(files, ALONE) is None


@INSTALLED
async def test_what_was_to_run_in_this_process_is_computed_by_what_does_not_end_it(
    files: ModelFiles,
) -> None:
    """Another load may have measured in between."""
    trial.remember(speeds.noted(files, ALONE), "1.6")
    loaded = await container.load(files, ALONE, lambda _: None)
    assert ik.PACKAGE not in loaded.info.build
    await loaded.aclose()


LACKED: list[tuple[str, Any]] = [
    ("adapters", {"one": "adapter.gguf"}),
    ("draft", DraftOptions(model="small")),
    ("mmproj", "projector.gguf"),
    ("cache_type_k", "q8_0"),
    ("flash_attention", "off"),
]


@INSTALLED
@pytest.mark.parametrize(("option", "value"), LACKED, ids=[option for option, _ in LACKED])
def test_what_it_lacks_is_left_to_llama_cpp_and_refused_where_it_is_demanded(
    files: ModelFiles, option: str, value: object
) -> None:
    options = msgspec.structs.replace(ALONE, **{option: value})
    assert chosen(files, options).name == "llama.cpp"
    with pytest.raises(LoadFailed, match="which lacks"):
        check(files, msgspec.structs.replace(options, library="ik"))


@INSTALLED
def test_types_that_it_computes_wrongly_are_left_to_llama_cpp(files: ModelFiles) -> None:
    wrong = msgspec.structs.replace(files, types=(0, Q4_1))
    assert chosen(wrong, ALONE).name == "llama.cpp"


def test_what_it_alone_reads_is_computed_by_it_whatever_is_asked(files: ModelFiles) -> None:
    foreign = msgspec.structs.replace(files, types=(0, IQ4_KS))
    for options in (ALONE, LlamaCppOptions(), LlamaCppOptions(library="llama.cpp")):
        assert chosen(foreign, options).name == IK
        assert chosen(foreign, options).may_end


@pytest.mark.parametrize("option", ["override_tensor", "mla", "fmoe", "rtr", "amb"])
def test_what_only_ik_has_is_refused_where_llama_cpp_computes(
    files: ModelFiles, option: str
) -> None:
    value = {"override_tensor": ("exps=CPU",), "fmoe": False, "rtr": True}.get(option, 1)
    given = LlamaCppOptions(library="llama.cpp", ik=IkOptions(**{option: value}))  # type: ignore[arg-type]
    with pytest.raises(LoadFailed, match=rf"ik\.{option} is ik_llama\.cpp's alone"):
        check(files, given)


def test_one_request_at_a_time_has_all_cells_and_several_share_them(files: ModelFiles) -> None:
    options = LlamaCppOptions(library="ik", max_concurrent=3, context_length=512, cache_tokens=600)
    assert cache_layout(files, options) == Layout(600, 6, split=False)
    alone = msgspec.structs.replace(options, max_concurrent=1, cache_tokens=None)
    assert cache_layout(files, alone) == Layout(512, 1, split=True)


def test_the_pinned_release_is_the_one_that_was_tried() -> None:
    constraints = Path(__file__).parents[4] / "constraints.txt"
    assert f"{ik.PACKAGE}=={ik.TRIED}" in constraints.read_text("utf-8").split()
