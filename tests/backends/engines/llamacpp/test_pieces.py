"""What is taken out in pieces is put back piece by piece, and only as far as it is needed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.contract import catalog
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.pieces import WHOLE, Filling, Stage, States
from config.engines import LlamaCppOptions
from tests.backends.engines.llamacpp import cache_kinds

CELLS, SEQUENCE, EMPTY, STAGE = 100, 0, 1, 3


@pytest.fixture(params=["llama", "gemma3", "lfm2"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[api.llama_context_p]:
    """A sequence of so many cells is in it."""
    path = cache_kinds.write(request.param, tmp_path / "model.gguf")
    options = LlamaCppOptions(max_concurrent=2, cache_tokens=200, context_length=128, threads=1)
    files = catalog.recognise(path)
    assert files is not None
    loaded = loading.load(files, options, lambda _: True)
    tokens = (api.llama_token * CELLS)(*range(97, 97 + CELLS))
    assert api.llama_decode(loaded.context, api.llama_batch_get_one(tokens, CELLS)) == 0
    yield loaded.context
    loaded.free()


def stage_of(states: States, sequence: int | None = STAGE) -> Stage:
    parted = states.size(EMPTY, WHOLE) != states.size(EMPTY, 1)
    recurrent = bool(api.llama_model_is_hybrid(api.llama_get_model(states._context)))  # noqa: SLF001
    return Stage(states, sequence, 4_000, parted=parted, recurrent=recurrent)


def steps(filling: Filling) -> int:
    count = 0
    while not filling.is_over:
        assert filling.put()
        count += 1
    return count


@pytest.mark.parametrize("sequence", [STAGE, None])
def test_what_is_put_back_is_what_was_taken(
    context: api.llama_context_p, sequence: int | None
) -> None:
    states = States(context)
    stage = stage_of(states, sequence)
    before, whole = states.read(SEQUENCE, WHOLE), stage.take(SEQUENCE)
    states.forget(SEQUENCE)
    filling = stage.fill(EMPTY, whole, CELLS)
    assert (steps(filling) > 3) is (sequence is not None)
    assert filling.is_right
    after = states.read(EMPTY, WHOLE)
    assert len(after) == len(before)
    assert states.end(EMPTY) == CELLS
    assert not states.end(STAGE)


def test_pieces_behind_the_end_stay_away(context: api.llama_context_p) -> None:
    stage = stage_of(States(context))
    whole = stage.take(SEQUENCE)
    assert steps(stage.fill(EMPTY, whole, CELLS // 4)) < steps(stage.fill(2, whole, CELLS))


def test_what_has_no_room_is_put_back_later(context: api.llama_context_p) -> None:
    states = States(context)
    stage = stage_of(states)
    whole = stage.take(SEQUENCE)
    assert steps(stage.fill(EMPTY, whole, CELLS))
    full = stage.fill(2, whole, CELLS)
    while full.put():
        assert not full.is_over, "there are 256 cells"
    states.forget(SEQUENCE)
    assert steps(full)
    assert full.is_right
