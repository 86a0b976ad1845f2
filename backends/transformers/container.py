"""Loads a Hugging Face folder: see `backends.catalog.ContainerModule`.

torch and transformers take seconds to import, so they are imported on the loading thread, not on
the event loop's.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from backends.catalog import ModelFiles, command
from backends.driver import DrivenContainer, run_abandonable
from backends.encoder_driver import DrivenEncoder
from backends.errors import BackendMissing
from backends.huggingface.vocabulary import tokenizer_of
from backends.protocol import (
    EncoderContainer,
    ModelContainer,
    ModelInfo,
    Progress,
    Report,
    Tokenizer,
)
from config.engines import EngineOptions, TransformersOptions

if TYPE_CHECKING:
    from backends.transformers.encoder import TransformersEncoder
    from backends.transformers.engine import TransformersEngine


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, transformers stops at its next tensor."""
    assert isinstance(options, TransformersOptions)
    chosen, reporting = options, _reporting(files, report)
    made = await run_abandonable(
        lambda wanted: _engine(files, chosen, reporting(wanted)), lambda engine: engine.close()
    )
    return DrivenContainer(made)


async def load_encoder(
    files: ModelFiles, options: EngineOptions, report: Report
) -> EncoderContainer:
    """As `load`."""
    assert isinstance(options, TransformersOptions)
    chosen, reporting = options, _reporting(files, report)
    made = await run_abandonable(
        lambda wanted: _encoder(files, chosen, reporting(wanted)), lambda engine: engine.close()
    )
    return DrivenEncoder(made)


def tokenizer(info: ModelInfo) -> Tokenizer:
    """See `ContainerModule.tokenizer`."""
    return tokenizer_of(info)


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


def _engine(
    files: ModelFiles, options: TransformersOptions, progress: Callable[[float], bool]
) -> "TransformersEngine":
    loading, engine = _module("loading"), _module("engine")
    made: TransformersEngine = engine.TransformersEngine(loading.load(files, options, progress))
    return made


def _encoder(
    files: ModelFiles, options: TransformersOptions, progress: Callable[[float], bool]
) -> "TransformersEncoder":
    encoder = _module("encoder")
    made: TransformersEncoder = encoder.TransformersEncoder(encoder.load(files, options, progress))
    return made


def _module(name: str) -> ModuleType:
    try:
        return import_module(f"backends.transformers.{name}")
    except (ImportError, OSError) as error:  # not installed, or built for another machine
        raise BackendMissing(
            f"transformers can't be imported ({error}). Install it: {command('transformers')}"
        ) from error
