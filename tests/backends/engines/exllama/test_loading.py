"""What loads of both backends tell meanwhile, and that nothing stays behind."""

import sys
from importlib.util import find_spec
from pathlib import Path

import anyio
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

import bundled
from backends.contract import catalog
from backends.contract.errors import BackendMissing, LoadFailed, OutOfMemory
from backends.contract.protocol import Progress
from config.engines import DraftOptions
from tests.backends.engines.exllama.conftest import Kind
from tests.backends.engines.exllama.folders import folder
from tests.backends.engines.exllama.machine import Machine

pytestmark = pytest.mark.anyio


async def test_what_is_loaded_is_described(kind: Kind, machine: Machine) -> None:
    container = await kind.load(machine)
    info = container.info
    assert (info.backend, info.format, info.architecture) == (kind.name, "safetensors", "llama")
    assert (info.context_length, info.max_concurrent, info.vocab_size) == (512, 4, 768)
    assert info.special.eos == "<|im_end|>"
    assert info.modalities == ("text",)
    await container.aclose()


async def test_progress_is_reported_module_by_module(kind: Kind, machine: Machine) -> None:
    steps: list[Progress] = []
    guessing = kind.with_options(draft=DraftOptions(model=str(bundled.SAFETENSORS)))
    container = await kind.load(machine, guessing, report=steps.append)
    assert steps[:5] == [Progress("draft", done, 4) for done in range(5)]
    assert steps[5:10] == [Progress("model", done, 4) for done in range(5)]
    await container.aclose()


async def test_a_load_that_nobody_wants_stops_at_its_next_module(
    kind: Kind, machine: Machine
) -> None:
    steps: list[Progress] = []
    async with anyio.create_task_group() as tasks:

        def report(progress: Progress) -> None:
            steps.append(progress)
            tasks.cancel_scope.cancel()

        tasks.start_soon(lambda: kind.load(machine, report=report))
    assert steps
    assert machine.loaded == []


@pytest.mark.parametrize(
    ("error", "error_kind", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory, "not enough memory"),
        (RuntimeError("Insufficient VRAM in split for model"), OutOfMemory, "Insufficient VRAM"),
        (
            AssertionError("Insufficient space in device allocation"),
            OutOfMemory,
            "not enough memory",
        ),
        (ValueError("could not find model.norm"), LoadFailed, "could not find model.norm"),
    ],
)
async def test_a_failed_load_says_why_and_leaves_nothing(
    error: Exception, error_kind: type[Exception], words: str, kind: Kind, machine: Machine
) -> None:
    machine.fail_load = error
    with pytest.raises(error_kind, match=words) as caught:
        await kind.load(machine)
    assert type(caught.value) is error_kind
    assert machine.loaded == []


async def test_a_folder_without_a_tokenizer_is_refused(
    kind: Kind, machine: Machine, tmp_path: Path
) -> None:
    bare = folder(tmp_path)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(LoadFailed):
        await kind.load(machine, model=kind.files(bare))
    assert machine.loaded == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA card")
async def test_without_a_card_the_reason_and_the_way_out_are_reported(kind: Kind) -> None:
    container = catalog.BACKENDS[kind.name].container
    words = rf"{kind.name} needs a CUDA card.*GGUF or as plain safetensors"
    with pytest.raises(BackendMissing, match=words):
        await container.load(kind.files(), kind.options, lambda _: None)


def test_our_modules_do_not_import_the_library(kind: Kind) -> None:
    if find_spec(kind.name) is None:
        pytest.skip(f"{kind.name}'s source is not installed")
    assert f"backends.engines.{kind.name}.container" in sys.modules
    assert torch.cuda.is_available() or kind.name not in sys.modules
