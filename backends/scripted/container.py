"""Loads a script: see `backends.catalog.ContainerModule`."""

import anyio

from backends.catalog import ModelFiles
from backends.driver import DrivenContainer
from backends.protocol import ModelContainer, ModelInfo, Progress, Report, Tokenizer
from backends.scripted.engine import ByteTokenizer, ScriptedEngine
from backends.scripted.files import read
from config.engines import EngineOptions, ScriptedOptions

PARTS = 10


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Takes `load_seconds`, in ten parts."""
    assert isinstance(options, ScriptedOptions)
    for part in range(PARTS):
        report(Progress("weights", files.size_bytes * part // PARTS, files.size_bytes))
        await anyio.sleep(options.load_seconds / PARTS)
    report(Progress("weights", files.size_bytes, files.size_bytes))
    return DrivenContainer(ScriptedEngine(files, read(files.path), options))


def tokenizer(info: ModelInfo) -> Tokenizer:  # noqa: ARG001 - the contract's shape
    """See `ContainerModule.tokenizer`: the same for all scripts."""
    return ByteTokenizer()
