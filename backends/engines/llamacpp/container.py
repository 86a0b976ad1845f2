"""Loads a GGUF file: see `backends.contract.catalog.ContainerModule`."""

from pathlib import Path

import msgspec

from backends.contract.catalog import ModelFiles, command
from backends.contract.encoder import EncoderContainer
from backends.contract.errors import BackendMissing, LoadFailed
from backends.contract.protocol import ModelContainer, ModelInfo, Report, Tokenizer
from backends.engines.driver import DrivenContainer
from backends.engines.encoder_driver import DrivenEncoder
from backends.engines.engine_thread import run_loading_weights
from backends.engines.tokenizing import VocabularyTokenizer
from config.engines import LlamaCppOptions

try:
    from backends.engines.llamacpp import encoder, libraries, loading, trial
    from backends.engines.llamacpp.engine import LlamaCppEngine
except (ImportError, OSError, RuntimeError) as error:  # not installed, or built for another machine
    raise BackendMissing(
        f"llama-cpp-python can't be imported ({error}). Install it: {command('llamacpp')}"
    ) from error


async def load(files: ModelFiles, options: LlamaCppOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, llama.cpp stops at its next tensor."""
    libraries.check(files, options)
    is_open = libraries.is_open(files, options)
    library = libraries.chosen(files, options)
    if library.may_end and options.host is None and options.library == "auto":
        # It was to run in this process, so without what may end it, whatever is known by now.
        options = msgspec.structs.replace(options, library="llama.cpp")
        library = libraries.chosen(files, options)
    # A trial has fewer requests at once, and is of the same library.
    options = msgspec.structs.replace(options, library="ik" if library.may_end else "llama.cpp")
    await trial.check(files, options)
    if is_open:
        await trial.race(files, options)
    load = loading.load
    if library.may_end:
        from backends.engines.llamacpp import ik  # noqa: PLC0415 - installed seldom

        load = ik.load
    engine = await run_loading_weights(
        lambda *given: LlamaCppEngine(load(*given)), files, options, report
    )
    if libraries.has_several(library):
        engine.info = msgspec.structs.replace(engine.info, library=str(library))
    return DrivenContainer(engine, engine.keeper)


async def load_encoder(
    files: ModelFiles, options: LlamaCppOptions, report: Report
) -> EncoderContainer:
    """As `load`."""
    await trial.check(files, options)
    engine = await run_loading_weights(
        lambda *given: encoder.LlamaCppEncoder(encoder.load(*given)), files, options, report
    )
    return DrivenEncoder(engine)


def preload() -> None:
    """See `ContainerModule.preload`: all of it is imported here."""


def tokenizer(info: ModelInfo) -> Tokenizer:
    """See `ContainerModule.tokenizer`: llama.cpp's own, of the same file."""
    if info.tokenizer_path is None:
        raise LoadFailed("the model has no vocabulary file")
    return VocabularyTokenizer(loading.load_vocabulary(Path(info.tokenizer_path)))
