"""Passes without Python: what the forward does, recorded once and run by torch's interpreter.

More than half of a small model's step on a CPU is Python: modules that call modules, and a hundred
small operations' ways into torch (benchmarks/results/transformers.md). TorchScript's tracer records
those operations, without a compiler and in about as long as a pass takes in Python; its interpreter
runs them for whatever sizes come, gives the same numbers, and doesn't hold the GIL meanwhile.

A trace knows nothing of what Python decided on the way. So passes of one token and of several have
one each; where a decision hung on a number the tracer says so and the model is run as it is; and
what was recorded must pass the trial that its forward passed.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
import torch
from torch import _C

from backends.engines.transformers.forward import (
    Forward,
    LayerPattern,
    Rows,
    Takes,
    logits_of,
    masks,
    stands_trial,
)
from backends.engines.transformers.grid import Grid
from backends.engines.transformers.memory import ran_out

log = structlog.get_logger(__name__)

# Where layers are larger a pass computes for so long that its Python is less than a twentieth.
LARGEST_LAYER = 64 << 20  # bytes of weights
# Here a decision hangs on sizes alone, and on whether there is one token or several.
_ABOUT_SIZES = (
    r"torch\.nn\.functional",  # of an embedding that has a token for padding
    r"transformers\.integrations\.sdpa_attention",
    r"transformers\.models\.gemma4\.modeling_gemma4",
)
UNRECORDED = "passes can't be recorded; the model runs as it is, which is slower"
Trace = Callable[..., torch.Tensor]


class TracedPasses:
    """See `forward.Recorded`. Holds the weights, and no copy of them."""

    def __init__(self, single: Trace, wide: Trace) -> None:
        """`single` for passes of one token in each row."""
        self._single = single
        self._wide = wide
        self._first = torch.zeros(1, dtype=torch.long)
        self._places = torch.arange(0)

    def __call__(
        self,
        tokens: Rows,
        starts: Sequence[int],
        kept: Sequence[int],
        cells: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        # Little is left to Python: at every operation of torch's the event loop may take the GIL.
        width = len(tokens[0])
        length = max(starts) + width
        if length > len(self._places):
            self._places = torch.arange(2 * length)
        trace, picked = (
            (self._single, self._first) if width == 1 else (self._wide, torch.tensor(kept))
        )
        # As recorded: the executor's own optimizing is for the sizes that it sees first.
        with torch.jit.optimized_execution(should_optimize=False):
            return trace(
                torch.tensor(tokens), torch.tensor(starts), picked, self._places[:length], *cells
            )


def traced(model: Any, pattern: LayerPattern) -> TracedPasses | None:
    """None where recording gains nothing, or isn't possible, which the log says; then the model is
    run as it is.
    """
    if model.device.type != "cpu" or getattr(model, "is_quantized", False):
        return None
    if sum(weights.nbytes for weights in model.parameters()) > len(pattern.layers) * LARGEST_LAYER:
        return None
    if any(kept.states for kept in pattern.layers):
        return None  # how a layer goes on from one hangs on whether there is one
    model.requires_grad_(requires_grad=False)  # weights are constants of a trace
    try:
        with torch.inference_mode(), _refusing_decisions():
            grid = _begun(model, pattern)
            made = TracedPasses(*(_trace(model, grid, pattern, width) for width in (1, 3)))
    except Exception as error:
        if ran_out(error):
            raise
        _tell(model, error.__cause__ or error)  # torch wraps what is raised below its own functions
        return None
    if stands_trial(model, pattern, made):
        return made
    log.warning(UNRECORDED, architecture=type(model).__name__, reason="they give other numbers")
    return None


def _tell(model: Any, why: BaseException) -> None:
    """A decision is the model's way. All else is a fault: of another torch, perhaps, for functions
    are used here that torch keeps to itself.
    """
    say = log.info if isinstance(why, torch.jit.TracerWarning) else log.warning
    first_line = str(why).strip().partition("\n")[0]
    reason = f"{type(why).__name__}: {first_line}"
    say(UNRECORDED, architecture=type(model).__name__, reason=reason)


@contextmanager
def _refusing_decisions() -> Iterator[None]:
    """The tracer warns where a tensor becomes a number of Python's: here that is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        for module in _ABOUT_SIZES:
            warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=module)
        yield


EXAMPLE = ((3, 4, 5), (6, 7, 8))  # token ids of a pass that is recorded


def _begun(model: Any, pattern: LayerPattern) -> Grid:
    """A grid whose layers have learned their shapes."""
    grid = Grid(pattern.layers)
    grid.reshape(2, 8)
    Forward(model, grid, pattern).run(0, EXAMPLE, [0, 0])
    return grid


def _trace(model: Any, grid: Grid, pattern: LayerPattern, width: int) -> Trace:
    """What a pass of `width` tokens in each row does with the tensors of `TracedPasses`."""
    takes = Takes(model)

    def run(
        ids: torch.Tensor,
        starts: torch.Tensor,
        kept: torch.Tensor,
        places: torch.Tensor,
        *cells: torch.Tensor,
    ) -> torch.Tensor:
        positions = starts[:, None]
        if width > 1:
            positions = positions + places[: ids.shape[1]]
        here = grid.over(cells)
        here.point(0, positions, places.shape[0])
        made = masks(pattern, positions, places, model.dtype)
        picked = kept if width > 1 else 1
        return logits_of(model, takes.form(ids, positions, pattern.form(made), here, picked))

    ids = torch.tensor([row[:width] for row in EXAMPLE])
    starts, kept, places = torch.tensor([3, 4]), torch.tensor([width - 1]), torch.arange(4 + width)
    return _recorded(run, (ids, starts, kept, places, *grid.cells))


def _recorded(run: Trace, example: tuple[torch.Tensor, ...]) -> Trace:
    """What `run` does, for tensors of any sizes. `torch.jit.trace` does the same, and keeps what it
    made for as long as the process lives.
    """
    graph, _ = _C._create_graph_by_tracing(  # noqa: SLF001
        run,
        example,
        lambda _: "",  # names of variables
        False,  # noqa: FBT003 - strict: about containers in results
        False,  # noqa: FBT003 - no operation in place becomes another
        None,
        [],
    )
    _C._jit_pass_peephole(graph, True)  # noqa: FBT003, SLF001 - sizes to tensors and back
    _C._jit_pass_cse(graph)  # noqa: SLF001 - the same sizes, looked up in every layer
    trace: Trace = _C._create_function_from_graph("run", graph)  # noqa: SLF001
    return trace
