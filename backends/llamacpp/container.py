"""Loads a GGUF file: see `backends.catalog.ContainerModule`."""

import asyncio
from collections.abc import Callable

from backends.catalog import ModelFiles
from backends.driver import DrivenContainer
from backends.errors import BackendMissing
from backends.installing import command
from backends.offloop import run_abandonable
from backends.protocol import ModelContainer, Progress, Report
from config.engines import EngineOptions, LlamaCppOptions

try:
    from backends.llamacpp import loading
    from backends.llamacpp.engine import LlamaCppEngine
except (ImportError, OSError, RuntimeError) as error:  # not installed, or built for another machine
    raise BackendMissing(
        f"llama-cpp-python can't be used here ({error}). Install it: {command('llamacpp')}"
    ) from error


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, llama.cpp stops at its next tensor."""
    assert isinstance(options, LlamaCppOptions)
    loop = asyncio.get_running_loop()

    def work(wanted: Callable[[], bool]) -> loading.LlamaModel:
        def progress(done: float) -> bool:
            step = Progress("weights", int(files.size_bytes * done), files.size_bytes)
            loop.call_soon_threadsafe(report, step)
            return wanted()

        return loading.load(files, options, progress)

    loaded = await run_abandonable(work, loading.LlamaModel.free)
    engine = LlamaCppEngine(loaded)
    return DrivenContainer(engine, engine.keeper)
