"""Loads a Hugging Face folder: see `backends.contract.catalog.ContainerModule`.

torch and transformers take seconds to import, so they are imported on the loading thread, not on
the event loop's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backends.contract.catalog import ModelFiles, command
from backends.contract.encoder import EncoderContainer
from backends.contract.errors import BackendMissing
from backends.contract.protocol import ModelContainer, Report
from backends.engines.driver import DrivenContainer
from backends.engines.encoder_driver import DrivenEncoder
from backends.engines.engine_thread import run_loading_weights
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
    with _installed():
        from backends.engines.transformers import engine, loading  # noqa: F401, PLC0415


tokenizer = tokenizer_of


def _engine(
    files: ModelFiles, options: TransformersOptions, progress: Callable[[float], bool]
) -> "TransformersEngine":
    with _installed():
        from backends.engines.transformers import engine, loading  # noqa: PLC0415
    return engine.TransformersEngine(loading.load(files, options, progress))


def _encoder(
    files: ModelFiles, options: TransformersOptions, progress: Callable[[float], bool]
) -> "TransformersEncoder":
    with _installed():
        from backends.engines.transformers import encoder  # noqa: PLC0415
    return encoder.load(files, options, progress)


@contextmanager
def _installed() -> Iterator[None]:
    """Raises BackendMissing for what can't be imported: not installed, or built for another
    machine.
    """
    try:
        yield
    except (ImportError, OSError) as error:
        raise BackendMissing(
            f"transformers can't be imported ({error}). Install it: {command('transformers')}"
        ) from error
