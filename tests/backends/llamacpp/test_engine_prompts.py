"""Which prompts are computed in one step."""

import pytest

import bundled
from backends import catalog
from backends.engine import Token
from backends.llamacpp import loading
from backends.llamacpp.engine import LlamaCppEngine
from backends.protocol import Generation
from config.engines import LlamaCppOptions
from tests.backends.contract import GREEDY

OPTIONS = LlamaCppOptions(max_concurrent=3, context_length=128, threads=1)


@pytest.mark.parametrize(("answers", "together"), [(0.05, {1, 2, 3}), (0.0, {1})])
def test_who_came_first_waits_for_no_prompts_that_cost_more_than_their_steps(
    answers: float, together: set[int]
) -> None:
    """`answers`: seconds of a step of answers. Where it is long, prompts cost little beside it."""
    files = catalog.recognise(bundled.GGUF)
    assert files is not None
    engine = LlamaCppEngine(loading.load(files, OPTIONS, lambda _: True))
    engine.decode_seconds = answers
    try:
        for key in (1, 2, 3):
            prompt = tuple(range(20 * key, 20 * key + 20))
            engine.admit(key, Generation(prompt=prompt, sampling=GREEDY), None)
        begun = [{result.key for result in engine.step() if isinstance(result, Token)}]
        assert begun[0] == together
        while begun[-1] != {1, 2, 3}:
            begun.append({result.key for result in engine.step() if isinstance(result, Token)})
        assert begun == [{*range(1, last + 1)} for last in range(len(together), 4)]
    finally:
        engine.close()
