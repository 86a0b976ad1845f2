"""The machine of exllamav3's stand-in. exllamav2 itself keeps these promises in tests/cardless."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from backends.contract.protocol import ModelContainer
from config.engines import DraftOptions
from tests.backends.engines.exllama.machine import Machine, answers
from tests.backends.engines.exllamav3 import conftest as third
from tests.backends.engines.exllamav3 import standin as third_standin

Load = Callable[..., Coroutine[Any, Any, ModelContainer]]


class Kind(msgspec.Struct, frozen=True):
    """A backend."""

    name: str
    machine: Callable[..., Any]
    load: Load  # machine, options, files
    files: Callable[..., Any]
    options: Any  # config.engines.ExLlamaOptions

    def guessing(self) -> Any:
        return msgspec.structs.replace(
            self.options, ngram_speculation=True, draft=DraftOptions(tokens=3)
        )

    def with_options(self, **changes: Any) -> Any:
        return msgspec.structs.replace(self.options, **changes)


THIRD = Kind("exllamav3", third_standin.Machine, third.load, third.files, third.OPTIONS)


@pytest.fixture(params=[THIRD], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def machine(kind: Kind) -> Machine:
    made: Machine = kind.machine(answers())
    return made
