"""Loads a GGUF file: see `backends.catalog.ContainerModule`."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from backends.catalog import ModelFiles, command
from backends.container import VocabularyTokenizer
from backends.driver import DrivenContainer, run_abandonable
from backends.encoder_driver import DrivenEncoder
from backends.errors import BackendMissing, LoadFailed
from backends.protocol import (
    EncoderContainer,
    ModelContainer,
    ModelInfo,
    Progress,
    Report,
    Tokenizer,
)
from config.engines import EngineOptions, LlamaCppOptions

try:
    from backends.llamacpp import encoder, loading, trial
    from backends.llamacpp.engine import LlamaCppEngine
except (ImportError, OSError, RuntimeError) as error:  # not installed, or built for another machine
    raise BackendMissing(
        f"llama-cpp-python can't be imported ({error}). Install it: {command('llamacpp')}"
    ) from error


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, llama.cpp stops at its next tensor."""
    assert isinstance(options, LlamaCppOptions)
    await trial.check(files, options)
    chosen, reporting = options, _reporting(files, report)
    loaded = await run_abandonable(
        lambda wanted: loading.load(files, chosen, reporting(wanted)), loading.LlamaModel.free
    )
    engine = LlamaCppEngine(loaded)
    return DrivenContainer(engine, engine.keeper)


async def load_encoder(
    files: ModelFiles, options: EngineOptions, report: Report
) -> EncoderContainer:
    """As `load`."""
    assert isinstance(options, LlamaCppOptions)
    await trial.check(files, options)
    chosen, reporting = options, _reporting(files, report)
    loaded = await run_abandonable(
        lambda wanted: encoder.load(files, chosen, reporting(wanted)),
        encoder.LlamaEncoderModel.free,
    )
    return DrivenEncoder(encoder.LlamaCppEncoder(loaded))


def tokenizer(info: ModelInfo) -> Tokenizer:
    """See `ContainerModule.tokenizer`: llama.cpp's own, of the same file."""
    if info.tokenizer_path is None:
        raise LoadFailed("the model has no vocabulary file")
    return VocabularyTokenizer(loading.load_vocabulary(Path(info.tokenizer_path)))


def _reporting(
    files: ModelFiles, report: Report
) -> Callable[[Callable[[], bool]], Callable[[float], bool]]:
    """From whether a load is still wanted to the callback that gets its progress."""
    loop = asyncio.get_running_loop()

    def reporting(wanted: Callable[[], bool]) -> Callable[[float], bool]:
        def progress(done: float) -> bool:
            step = Progress("weights", int(files.size_bytes * done), files.size_bytes)
            loop.call_soon_threadsafe(report, step)
            return wanted()

        return progress

    return reporting
