"""The toy engine, but that some prompts end its process as native code does, and some files while
they are loaded.
"""

import ctypes
import os
import signal
import sys

import anyio

from backends.contract.catalog import ModelFiles
from backends.contract.errors import OutOfMemory
from backends.contract.protocol import Generation, ModelContainer, Progress, Report
from backends.engines.constraints import Mask
from backends.engines.driver import DrivenContainer
from config.engines import EngineOptions
from tests.backends.engines.toy.container import preload, tokenizer
from tests.backends.engines.toy.engine import TableEngine
from tests.backends.engines.toy.files import ToyOptions, read

__all__ = ["load", "preload", "tokenizer"]


class FrailEngine(TableEngine):
    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        match bytes(job.prompt[-6:]):
            case b"poke()":
                ctypes.string_at(0)
            case b"fail()":
                sys.stderr.write("native.c:1: GGML_ASSERT(n > 0) failed\n")
                sys.stderr.flush()
                os.abort()
        return super().admit(key, job, mask)


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    assert isinstance(options, ToyOptions)
    report(Progress("weights", 1, 2))
    match files.path.name.partition(".")[0]:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "full":
            raise OutOfMemory("not enough memory for it")
        case "wrong":
            raise RuntimeError("nobody thought of that")
        case "endless":
            await anyio.sleep_forever()
    return DrivenContainer(FrailEngine(files, read(files.path), options))
