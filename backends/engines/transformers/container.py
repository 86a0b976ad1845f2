"""Loads a Hugging Face folder: see `backends.contract.catalog.ContainerModule`.

torch and transformers take seconds to import, so they are imported on the loading thread, not on
the event loop's.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from backends.contract.catalog import ModelFiles, command
from backends.contract.encoder import EncoderContainer
from backends.contract.errors import BackendMissing
from backends.contract.protocol import ModelContainer, Report
from backends.engines.driver import DrivenContainer, run_loading_weights
from backends.engines.encoder_driver import DrivenEncoder
from backends.engines.vocabulary import tokenizer_of
from config.engines import TransformersOptions

if TYPE_CHECKING:
    from backends.engines.transformers.encoder import TransformersEncoder
    from backends.engines.transformers.engine import TransformersEngine


async def load(files: ModelFiles, options: TransformersOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, transformers stops at its next tensor."""
    return DrivenContainer(await run_loading_weights(_engine, files, options, report))


async def load_encoder(
    files: ModelFiles, options: TransformersOptions, report: Report
) -> EncoderContainer:
    """As `load`."""
    return DrivenEncoder(await run_loading_weights(_encoder, files, options, report))


def preload() -> None:
    """See `ContainerModule.preload`."""
    for name in ("loading", "engine"):
        _module(name)


tokenizer = tokenizer_of


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
        return import_module(f"backends.engines.transformers.{name}")
    except (ImportError, OSError) as error:  # not installed, or built for another machine
        raise BackendMissing(
            f"transformers can't be imported ({error}). Install it: {command('transformers')}"
        ) from error
