"""Files of architectures that nobody has searched are tried in a process of their own: it may end,
this one goes on.
"""

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import llama_cpp as api

from backends.catalog import ModelFiles, recognise
from backends.errors import LoadFailed
from backends.llamacpp import container, logged, trial
from backends.llamacpp.architectures import TRIED
from tests.backends import gguf_grown, gguf_raw
from tests.backends.gguf_raw import STRING, Entry, RawFile
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
        ("plm", {}, r"status -6 \(ggml\.c"),  # which splits no cache by sequences
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


# Of these, and of none else, files are tried.
NOT_SEARCHED = frozenset(
    """
    afmoe arwkv7 bailingmoe3 chameleon deepseek32 deepseek4 dflash dots1 dots3note eagle3
    gemma4-assistant glm-dsa glm5-next gptj graniteswitch hy_v4 jina-bert-v2 kimi-k3 kimi-linear
    laguna minimax-01 minimax-m2 minimax-m3 paddleocr plm qwen4exp rwkv6 rwkv6qwen2 rwkv7
    smallthinker t5 t5encoder wavtokenizer-dec
    """.split()  # noqa: SIM905 - as a list it is a column
)
PROJECTORS = "clip"  # no model; llama.cpp would end
PARAMETERS = api.llama_model_default_params()


def test_the_installed_llama_cpp_has_the_architectures_that_the_tables_are_of(
    tmp_path: Path,
) -> None:
    """Fails where another version has more or fewer. A new one may stand in `NOT_SEARCHED`; those
    of the tables may have changed too: `make test-long` searches some of them.
    """
    expected = TRIED | NOT_SEARCHED
    texts = texts_in(Path(api.__file__).parent / "lib" / "libllama.so") | expected
    known = {one for one in texts - {PROJECTORS} if is_architecture(one, tmp_path / "model.gguf")}
    assert known == expected


def texts_in(library: Path) -> set[str]:
    """That may be names, but for those that are the end of another: linkers store both once."""
    found = re.findall(rb"(?<=\0)[a-z][a-z0-9_.-]{1,28}(?=\0)", library.read_bytes())
    return {text.decode() for text in found}


def is_architecture(name: str, path: Path) -> bool:
    gguf_raw.write(RawFile({"general.architecture": Entry(STRING, name.encode())}, ()), path)
    logged.listen()
    assert not api.llama_model_load_from_file(str(path).encode(), PARAMETERS)
    return "unknown model architecture" not in logged.last_errors()
