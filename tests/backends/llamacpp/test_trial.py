"""Files of architectures that nobody has searched are tried in a process of their own: it may end,
this one goes on.
"""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backends.catalog import ModelFiles, recognise
from backends.errors import LoadFailed
from backends.llamacpp import container, trial
from tests.backends import gguf_grown
from tests.backends.gguf_search import OPTIONS

pytestmark = pytest.mark.anyio

EXPERTS = gguf_grown.EXPERTS | {"expert_gating_func": 1}
SECTIONS = {"rope.dimension_sections": [2, 3, 3, 0]}
# ggml never gets on over a head of which nothing is turned
ENDLESS: tuple[str, dict[str, Any]] = ("minimax-m2", EXPERTS | {"rope.dimension_count": 0})


def grown(architecture: str, numbers: dict[str, Any], folder: Path) -> ModelFiles:
    return recognise(gguf_grown.write(architecture, folder / "model.gguf", numbers))


def tries(path: Path) -> list[str]:
    """The processes that try it now."""
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True)
    return [
        line for line in listed.stdout.splitlines() if trial.__name__ in line and str(path) in line
    ]


@pytest.mark.parametrize(
    ("architecture", "numbers"), [("minimax-m2", EXPERTS), ("paddleocr", SECTIONS)]
)
async def test_what_survives_is_loaded(
    architecture: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    model = await container.load(grown(architecture, numbers, tmp_path), OPTIONS, lambda _: None)
    await model.aclose()


@pytest.mark.parametrize(
    ("architecture", "numbers", "words"),
    [
        ("paddleocr", {}, r"status -6 \(ops\.cpp:.*sections"),
        ("laguna", gguf_grown.EXPERTS, r"status -6 \(laguna\.cpp"),
        ("afmoe", gguf_grown.EXPERTS, "status -11"),
    ],
)
async def test_what_ends_the_process_that_tries_it_is_refused(
    architecture: str, numbers: dict[str, Any], words: str, tmp_path: Path
) -> None:
    files = grown(architecture, numbers, tmp_path)
    with pytest.raises(LoadFailed, match=f"process that tried it ended with {words}"):
        await container.load(files, OPTIONS, lambda _: None)


async def test_what_never_ends_is_refused(tmp_path: Path) -> None:
    files = grown(*ENDLESS, tmp_path)
    with pytest.raises(LoadFailed, match="not done in time"):
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


async def test_an_error_is_the_loads_own(tmp_path: Path) -> None:
    files = grown("gptj", {}, tmp_path)
    with pytest.raises(LoadFailed, match="unsupported model architecture"):
        await container.load(files, OPTIONS, lambda _: None)
