"""A container over a model that one of the two libraries loads.

torch takes seconds to import and the libraries, the first time, minutes to compile, so all of them
are imported on the loading thread, not on the event loop's. Both libraries compile or load a CUDA
extension when they are imported and fail where there is no card, so they are imported through
`imported` alone. `faults` translates what they raise.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from backends.contract.catalog import ModelFiles, command
from backends.contract.errors import BackendMissing
from backends.contract.protocol import ModelContainer, Progress, Report
from backends.engines.driver import DrivenContainer
from backends.engines.engine_thread import run_loading
from config.engines import ExLlamaOptions

if TYPE_CHECKING:
    from backends.engines.exllama.engine import ExLlamaEngine
    from backends.engines.exllama.loading import ExLlamaModel

L = TypeVar("L")

INSTEAD = "the same model as GGUF or as plain safetensors runs without it"


class ExLlamaLibrary(msgspec.Struct, frozen=True):
    """What both libraries have: classes, and the number of CUDA cards."""

    config: Any
    model: Any
    tokenizer: Any
    lora: Any
    generator: Any
    job: Any
    devices: int


async def driven(
    loading: str,
    library: Callable[[], Any],
    files: ModelFiles,
    options: ExLlamaOptions,
    report: Report,
) -> ModelContainer:
    """The module `loading` loads on a thread of its own, with what `library` gives there, and stops
    when the load is cancelled.
    """

    def load(tell: Callable[[Progress], bool]) -> "ExLlamaEngine":
        package = library()  # before anything that imports torch
        loaded: ExLlamaModel = import_module(loading).load(files, options, package, tell)
        made: ExLlamaEngine = import_module("backends.engines.exllama.engine").ExLlamaEngine(loaded)
        return made

    return DrivenContainer(await run_loading(load, report))


def imported(name: str, collect: Callable[[int], L]) -> L:
    """What `collect` takes from the package `name`; it is given the number of CUDA cards.

    The first import on a machine compiles for minutes. Raises BackendMissing.
    """
    try:
        import torch  # noqa: PLC0415 - seconds, and only when a model is loaded
    except (ImportError, OSError) as error:
        raise BackendMissing(
            f"{name} needs torch, which can't be imported ({error}). Install it: {command(name)}"
        ) from error
    if not torch.cuda.is_available():
        raise BackendMissing(
            f"{name} needs a CUDA card, but torch {torch.__version__} found none; {INSTEAD}"
        )
    try:
        return collect(torch.cuda.device_count())
    except ImportError as error:
        raise BackendMissing(
            f"{name} isn't installed ({error}). Install it: {command(name)}"
        ) from error
    except Exception as error:  # compiling can fail in any way: no nvcc, no compiler, no space
        raise BackendMissing(
            f"{name} can't be used here ({type(error).__name__}: {error}). It compiles its CUDA "
            "extension with nvcc and a C++ compiler, which must fit torch (nvcc newer than 13.0 "
            f"wants NVCC_APPEND_FLAGS='-std=c++20' in the environment); {INSTEAD}"
        ) from error
