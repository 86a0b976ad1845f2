"""A file that this machine has not loaded before is tried by a child process first: it may end,
this one goes on.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from backends.contract.catalog import ModelFiles, recognise
from backends.contract.errors import LoadFailed
from backends.engines.llamacpp import container, trial
from backends.engines.llamacpp.library import api
from config.engines import LlamaCppOptions
from tests.backends import gguf_grown, gguf_raw
from tests.backends.engines.llamacpp import random_projector

pytestmark = pytest.mark.anyio

OPTIONS = LlamaCppOptions(max_concurrent=2, context_length=64, batch_size=64)
F16 = 1  # ggml_type
EXPERTS = gguf_grown.EXPERTS | {"expert_gating_func": 1}
SECTIONS = {"rope.dimension_sections": [2, 3, 3, 0]}
# ggml never gets on over a head of which nothing is turned
ENDLESS: tuple[str, dict[str, Any]] = ("minimax-m2", EXPERTS | {"rope.dimension_count": 0})


Remembered: TypeAlias = Callable[[], dict[str, int]]


@pytest.fixture(autouse=True)
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remembered:
    """What survived, with the time it was written: nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "roundhouse" / "tried"
    return lambda: {path.name: path.stat().st_mtime_ns for path in folder.glob("*")}


def grown(architecture: str, numbers: dict[str, Any], folder: Path) -> ModelFiles:
    return recognise(gguf_grown.write(architecture, folder / "model.gguf", numbers))


def tries(path: Path) -> list[str]:
    """The processes that try it now."""
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True)
    return [
        line for line in listed.stdout.splitlines() if trial.CHILD in line and str(path) in line
    ]


@pytest.mark.parametrize(
    ("architecture", "numbers"),
    [("minimax-m2", EXPERTS), pytest.param("paddleocr", SECTIONS, marks=pytest.mark.slow)],
)
async def test_what_survives_is_loaded(
    architecture: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    model = await container.load(grown(architecture, numbers, tmp_path), OPTIONS, lambda _: None)
    await model.aclose()


@pytest.mark.slow
async def test_what_survived_is_remembered_as_it_was(
    tmp_path: Path, remembered: Remembered
) -> None:
    files = grown("llama", {}, tmp_path)
    await trial.check(files, OPTIONS)
    first = remembered()
    await trial.check(files, OPTIONS)
    assert remembered() == first  # nothing was tried
    os.utime(files.path, ns=(0, 0))  # it may be another file by now
    await trial.check(files, OPTIONS)
    assert len(remembered()) == 2


@pytest.mark.slow
async def test_another_library_tries_again(
    tmp_path: Path, remembered: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = grown("llama", {}, tmp_path)
    await trial.check(files, OPTIONS)
    another = tmp_path / "libllama.so"
    another.write_bytes(b"compiled anew")
    monkeypatch.setattr(api._lib, "_name", str(another))  # noqa: SLF001
    await trial.check(files, OPTIONS)
    assert len(remembered()) == 2


@pytest.mark.slow
async def test_encoders_are_tried_whole(
    embed_gguf: Path, rank_gguf: Path, remembered: Remembered
) -> None:
    for count, path in enumerate((embed_gguf, rank_gguf), 1):
        await trial.check(recognise(path), OPTIONS)
        assert len(remembered()) == count


@pytest.mark.slow
async def test_what_takes_other_kernels_is_tried_and_what_takes_more_room_is_not(
    tmp_path: Path, remembered: Remembered
) -> None:
    files = grown("llama", {}, tmp_path)
    for count, options in (
        (1, OPTIONS),
        (1, LlamaCppOptions(context_length=512, max_concurrent=9, gpu_layers=2)),
        (2, LlamaCppOptions(cache_type_k="bf16")),
    ):
        await trial.check(files, options)
        assert len(remembered()) == count


async def test_a_folder_that_takes_no_file_costs_a_trial_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    await trial.check(grown("llama", {}, tmp_path), OPTIONS)


async def test_who_wants_no_trial_gets_none(tmp_path: Path, remembered: Remembered) -> None:
    never = LlamaCppOptions(trial="never")
    await trial.check(grown("plm", {}, tmp_path), never)  # loaded, it would end the process
    assert not remembered()


@pytest.mark.parametrize(
    ("architecture", "numbers", "words"),
    [
        ("paddleocr", {}, r"SIGABRT \(ops\.cpp:.*sections"),
        ("plm", {}, r"SIGABRT \(ggml\.c"),  # which splits no cache by sequences
        ("laguna", gguf_grown.EXPERTS, r"SIGABRT \(laguna\.cpp"),
        pytest.param("afmoe", gguf_grown.EXPERTS, "SIGSEGV$", marks=pytest.mark.slow),
    ],
)
async def test_what_ends_the_process_that_tries_it_is_refused(
    architecture: str, numbers: dict[str, Any], words: str, tmp_path: Path, remembered: Remembered
) -> None:
    files = grown(architecture, numbers, tmp_path)
    with pytest.raises(LoadFailed, match=f"process that tried it was ended by {words}"):
        await container.load(files, OPTIONS, lambda _: None)
    assert not remembered()


@pytest.mark.slow
async def test_a_projector_that_ends_the_process_is_named_with_what_to_do(tmp_path: Path) -> None:
    model = random_projector.write("qwen2vl-sees", tmp_path)
    projector = model.with_name(f"mmproj-{model.name}")
    changed = gguf_raw.read(projector).retyped("mm.0.bias", F16)
    gguf_raw.write(changed, projector)
    with pytest.raises(LoadFailed, match=r"the projector mmproj\S+ can't be loaded.*vision: false"):
        await container.load(recognise(model), OPTIONS, lambda _: None)
    text = await container.load(recognise(model), LlamaCppOptions(vision=False), lambda _: None)
    await text.aclose()


@pytest.mark.slow
async def test_what_never_ends_is_refused(tmp_path: Path) -> None:
    files = grown(*ENDLESS, tmp_path)
    with pytest.raises(LoadFailed, match="timed out"):
        await trial.check(files, OPTIONS, seconds=3)
    assert tries(files.path) == []


async def test_a_load_that_is_abandoned_leaves_no_process(tmp_path: Path) -> None:
    files = grown(*ENDLESS, tmp_path)
    load = asyncio.create_task(container.load(files, OPTIONS, lambda _: None))
    while not tries(files.path):
        await asyncio.sleep(0.01)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    assert tries(files.path) == []


async def test_an_error_is_the_loads_own(tmp_path: Path, remembered: Remembered) -> None:
    files = grown("gptj", {}, tmp_path)
    with pytest.raises(LoadFailed, match="unsupported model architecture"):
        await container.load(files, OPTIONS, lambda _: None)
    assert not remembered(), "not everything was tried"
