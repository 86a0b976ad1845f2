"""The stand-ins' machines: every promise here is both backends'."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from backends.protocol import ModelContainer
from tests.backends.exllama.world import World, answers
from tests.backends.exllamav2 import conftest as second
from tests.backends.exllamav2 import standin as second_standin
from tests.backends.exllamav3 import conftest as third
from tests.backends.exllamav3 import standin as third_standin

Load = Callable[..., Coroutine[Any, Any, ModelContainer]]


class Kind(msgspec.Struct, frozen=True):
    """One of the two backends."""

    name: str
    world: Callable[..., Any]
    load: Load  # world, options, files
    files: Callable[..., Any]
    options: Any  # config.engines.ExLlamaOptions

    def guessing(self) -> Any:
        return msgspec.structs.replace(self.options, ngram_speculation=True, draft_tokens=3)

    def with_options(self, **changes: Any) -> Any:
        return msgspec.structs.replace(self.options, **changes)


SECOND = Kind("exllamav2", second_standin.World, second.load, second.files, second.OPTIONS)
THIRD = Kind("exllamav3", third_standin.World, third.load, third.files, third.OPTIONS)


@pytest.fixture(params=[SECOND, THIRD], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def world(kind: Kind) -> World:
    made: World = kind.world(answers())
    return made
