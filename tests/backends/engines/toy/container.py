"""Loads a table."""

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelContainer, ModelInfo, Progress, Report, Tokenizer
from backends.engines.driver import DrivenContainer
from backends.engines.scripted import ByteTokenizer
from config.engines import EngineOptions
from tests.backends.engines.toy.engine import TableEngine
from tests.backends.engines.toy.files import ToyOptions, read


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    assert isinstance(options, ToyOptions)
    table = read(files.path)
    report(Progress("weights", files.size_bytes, files.size_bytes))
    return DrivenContainer(TableEngine(files, table, options))


def preload() -> None:
    pass


def tokenizer(info: ModelInfo) -> Tokenizer:
    return ByteTokenizer()
