"""What is computed again of a conversation: hardly anything, whatever kind of memory the model has.
Over HTTP, as chat frontends go on: the same again, the last message edited, the next turn.
"""

from collections.abc import Iterator

import pytest

pytest.importorskip("backends.engines.llamacpp.library")

from tests.backends import gguf_grown
from tests.backends.engines.llamacpp import cache_kinds
from tests.backends.pairs import kinds_of, quick
from tests.backends.turns import (
    TRIED,
    Talker,
    conversation,
    four_conversations_take_turns,
    hardly_anything_is_computed_again,
)
from tests.served import Served, served

KINDS = (
    *("qwen35", "granitehybrid", "nemotron_h", "lfm2", "mamba"),
    *("gemma3", "gpt-oss", "qwen3"),
)
EACH = quick(KINDS, "lfm2", "gemma3", "qwen3")
MORE = {"gemma3": {"attention.sliding_window": 16}}
LETTERS = list(range(1 + ord("a"), 1 + ord("g")))


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """With the kinds that are asked for."""
    folder = tmp_path_factory.mktemp("grown")
    models = []
    for kind in kinds_of(request):
        path = folder / f"{kind}.gguf"
        if kind == "mamba":
            cache_kinds.write(kind, path)
        else:
            gguf_grown.write(kind, path, MORE.get(kind))
        options = {"context_length": 8_192, "threads": 1}
        models.append({"name": kind, "path": str(path), "options": options})
    with served(folder, {"models": models}) as running:
        yield running


@pytest.mark.parametrize("length", TRIED)
@pytest.mark.parametrize("kind", EACH)
def test_hardly_anything_is_computed_again(server: Served, kind: str, length: int) -> None:
    talk = conversation(length, name=str(length))
    talker = Talker(server, LETTERS)
    hardly_anything_is_computed_again(talker, kind, talk)
    _, whole, _ = talker.cached(kind, talk, 1)
    assert abs(whole - length) < length / 10


@pytest.mark.parametrize("kind", EACH)
def test_four_conversations_take_turns(server: Served, kind: str) -> None:
    four_conversations_take_turns(Talker(server, LETTERS), kind)
