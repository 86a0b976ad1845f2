"""Recorded passes give what the model's own give, whatever their sizes; where that can't be,
nothing is recorded. The models are tiny and have random weights.
"""

import gc
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from backends.engines.transformers.forward import (
    Forward,
    LayerPattern,
    Recorded,
    batching_pattern,
    stands_trial,
)
from backends.engines.transformers.grid import Grid
from backends.engines.transformers.traced import UNRECORDED, TracedPasses, traced
from tests.backends.engines.transformers.test_forward import BATCHED, MIXED, model_of
from tests.backends.pairs import quick

LENGTH = 48
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
LONG = {"rope_type": "longrope", "factor": 2.0, "rope_theta": 1e4}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
SCALED = {"original_max_position_embeddings": LENGTH // 2}  # passes lie below and above
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
RECORDED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{kind: (kind, changes) for kind, changes in BATCHED.items()},
    "yarn": ("llama", {"rope_parameters": YARN | SCALED}),
    "longrope": ("llama", {"rope_parameters": LONG | FACTORS | SCALED}),
    "mixtral": ("mixtral", EXPERTS),
    "with a token for padding": ("llama", {"pad_token_id": 2}),
    "gemma4_text": (
        "gemma4_text",
        MIXED | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 120},
    ),
}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}


def recording(
    kind: str, changes: Mapping[str, Any]
) -> tuple[Any, LayerPattern, TracedPasses | None]:
    model = model_of(kind, changes)
    pattern = batching_pattern(model)
    assert pattern is not None
    return model, pattern, traced(model, pattern)


def begun(model: Any, pattern: LayerPattern, recorded: Recorded | None) -> Forward:
    """With three tokens in row 0."""
    grid = Grid(pattern.layers)
    grid.reshape(rows=5, capacity=LENGTH)
    forward = Forward(model, grid, pattern, recorded)
    with torch.inference_mode():
        forward.run(0, [[5, 6, 7]], [0])
    return forward


def passes(rng: random.Random) -> list[tuple[int, list[list[int]], list[int]]]:
    """As `Forward.run` takes them: five rows that grow at random, by chunks and by one token."""
    ends = [0] * 5
    made = []
    while max(ends) < LENGTH - 9:
        first = rng.randrange(5)
        span = range(first, rng.randint(first + 1, 5))
        counts = [rng.randint(1, rng.choice((1, 1, 9))) for _ in span]
        tokens = [[rng.randrange(3, 120) for _ in range(count)] for count in counts]
        made.append((first, tokens, [ends[row] for row in span]))
        for row, count in zip(span, counts, strict=True):
            ends[row] += count
    return made


@pytest.mark.parametrize("kind", quick(RECORDED, "llama", "gemma3_text", "longrope"))
def test_what_was_recorded_gives_what_the_model_gives(kind: str) -> None:
    model, pattern, made = recording(*RECORDED[kind])
    assert made is not None
    own, recorded = begun(model, pattern, None), begun(model, pattern, made)
    with torch.inference_mode():
        for one in passes(random.Random(kind)):
            torch.testing.assert_close(recorded.run(*one), own.run(*one), atol=1e-5, rtol=1e-4)
        scored = [[5, 6, 7], [8]]
        for at, tokens in enumerate(scored):
            torch.testing.assert_close(
                recorded.each(2, [tokens], [3 * at]),
                own.each(2, [tokens], [3 * at]),
                atol=1e-5,
                rtol=1e-4,
            )


def test_what_is_decided_by_numbers_is_not_recorded_and_the_log_says_so() -> None:
    with capture_logs() as lines:
        *_, recorded = recording("llama", DYNAMIC)
    assert recorded is None
    (line,) = lines
    assert (line["event"], line["log_level"]) == (UNRECORDED, "info")
    assert "Python boolean" in line["reason"]


def fails(*_: Any) -> None:
    raise AttributeError("module 'torch._C' has no attribute 'x'\nand so on")


def adds(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output + 0.1


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (fails, "AttributeError: module 'torch._C' has no attribute 'x'"),
        (adds, "they give other numbers"),
    ],
)
def test_the_log_says_why_nothing_is_recorded(does: Callable[..., Any], reason: str) -> None:
    model = model_of("llama", {})
    pattern = batching_pattern(model)
    assert pattern is not None

    def only_traced(*given: Any) -> Any:
        return does(*given) if torch.jit.is_tracing() else None

    model.lm_head.register_forward_hook(only_traced)
    with capture_logs() as lines:
        assert traced(model, pattern) is None
    (line,) = lines
    assert line["log_level"] == "warning"
    assert line["reason"] == reason


class Wrong:
    """What it gives is a little too much."""

    def __init__(self, inner: TracedPasses) -> None:
        self._inner = inner

    def __call__(self, *arguments: Any) -> torch.Tensor:
        return self._inner(*arguments) + 0.1


class Broken:
    def __call__(self, *_: Any) -> torch.Tensor:
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")


class Full:
    def __call__(self, *_: Any) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")


def test_the_trial_finds_out_what_is_wrong() -> None:
    model, pattern, recorded = recording("llama", {})
    assert recorded is not None
    assert stands_trial(model, pattern, recorded)
    assert not stands_trial(model, pattern, Wrong(recorded))


def test_passes_that_break_are_run_as_they_are() -> None:
    model, pattern, _ = recording("llama", {})
    forward = begun(model, pattern, Broken())
    with torch.inference_mode():
        logits = forward.run(0, [[8]], [3])
        torch.testing.assert_close(logits, begun(model, pattern, None).run(0, [[8]], [3]))


def test_memory_that_runs_out_is_no_fault_of_theirs() -> None:
    model, pattern, _ = recording("llama", {})
    with torch.inference_mode(), pytest.raises(RuntimeError, match="allocate"):
        begun(model, pattern, Full()).run(0, [[8]], [3])


def test_a_trace_keeps_its_model_no_longer_than_it_lives() -> None:
    def record() -> tuple[Sequence[weakref.ref[torch.Tensor]], TracedPasses | None]:
        model, _, recorded = recording("llama", {})
        return [weakref.ref(one) for one in model.parameters()], recorded

    weights, recorded = record()
    gc.collect()
    assert recorded is not None
    assert any(one() is not None for one in weights), "they are its constants"
    del recorded
    gc.collect()
    assert [one() for one in weights] == [None] * len(weights)
