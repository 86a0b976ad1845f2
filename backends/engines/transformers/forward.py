"""One pass of the model over neighbouring rows of the grid, and the trial that shows whether it may
be done so.

A pass feeds each row some tokens and returns the logits after each row's last one: padded at the
end to the longest, or equally many where layers keep states. Whether a model can be run like this
is not looked up by its name but tried: the same tokens must give the same logits as the model's own
plain forward. Where the pass was recorded beforehand (`traced`), what was recorded runs in place of
the model's Python.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import structlog
import torch

from backends.engines.transformers.grid import Grid, KeptByLayer
from backends.engines.transformers.memory import ran_out

log = structlog.get_logger(__name__)

Rows: TypeAlias = Sequence[Sequence[int]]  # the tokens of each row

# The attention masks of a pass over several sequences of different lengths.
#
# A pass has `rows` sequences with `queries` new tokens each. Cell k of a row holds its token k, so
# a token at position p attends to the cells 0…p, or the last `window` of them in a sliding layer.
# transformers takes ready-made masks of four dimensions as they are
# (`masking_utils._preprocess_mask_arguments`); models with several kinds of layers take one per
# kind, in a dict.


FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
ATTENDING = frozenset({FULL, SLIDING, CHUNKED})
# Layers that keep states, whose masks are of padding: a pass over states has none. "hybrid" attends
# fully, too (cache_utils.py, DYNAMIC_LAYER_TYPE_MAPPING).
LINEAR, CONVOLVED, HYBRID = "linear_attention", "conv", "hybrid"
IDLE = frozenset({"moe", "mlp"})


class Sight(msgspec.Struct, frozen=True):
    """How far back a token sees: all, or the last `window` tokens, or those of its own `chunk`."""

    window: int | None = None
    chunk: int | None = None

    def of(self, at: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Whether tokens at the positions `at` see `cells`."""
        seen = cells <= at
        if self.window is not None:
            seen &= cells > at - self.window
        if self.chunk is not None:
            seen &= cells // self.chunk == at // self.chunk
        return seen


class LayerPattern(msgspec.Struct, frozen=True):
    """The kinds of layers a model has, and the form in which it takes their masks."""

    layers: tuple[KeptByLayer, ...]
    sights: Mapping[str, Sight]  # by kind of attention
    in_dict: bool
    additive: bool  # eager attention adds the mask to its scores; the others take booleans
    unmasked: tuple[str, ...] = ()  # the other kinds
    # Its layers go on from a state by one token alone: in the first Mamba's the scan of several
    # begins with zeros (modeling_mamba.py, mamba_selective_scan).
    stepwise: bool = False

    def form(self, made: Sequence[torch.Tensor]) -> Any:
        """`masks` as the model takes them."""
        if self.in_dict:
            return dict(zip(self.sights, made, strict=True)) | dict.fromkeys(self.unmasked)
        return made[0] if made else None


def patterns(config: Any) -> list[LayerPattern]:
    """What the configuration may mean, likeliest first; empty for kinds of layers that can't be
    batched here.
    """
    text = config.get_text_config()
    kinds = tuple(getattr(text, "layer_types", None) or ())
    window, chunk = (getattr(text, name, None) for name in _REACHES)
    sights = {FULL: Sight(), SLIDING: Sight(window=window), CHUNKED: Sight(chunk=chunk)}
    states = getattr(text, "number_of_conv_states", 1)
    additive = text._attn_implementation == "eager"  # noqa: SLF001 - where transformers keeps its choice
    if not kinds:
        if chunk:
            return []
        kept = (KeptByLayer(),) * text.num_hidden_layers
        single = SLIDING if window else FULL
        return [LayerPattern(kept, {single: sights[single]}, in_dict=False, additive=additive)]
    if not ATTENDING.union(IDLE, (LINEAR, CONVOLVED, HYBRID)).issuperset(kinds):
        return []
    kept = tuple(_kept(kind, states) for kind in kinds)
    masked = {FULL if kind == HYBRID else kind for kind in kinds} & ATTENDING
    others = {LINEAR if kind == HYBRID else kind for kind in kinds} - ATTENDING
    seen = {kind: sights[kind] for kind in sorted(masked)}
    several = LayerPattern(
        kept, seen, in_dict=True, additive=additive, unmasked=tuple(sorted(others))
    )
    plain = LayerPattern(kept, seen, in_dict=False, additive=additive)
    found = [several, plain] if len(seen) < 2 else [several]
    if not any(layer.states for layer in kept):
        return found
    return [*found, *(msgspec.structs.replace(one, stepwise=True) for one in found)]


_REACHES = ("sliding_window", "attention_chunk_size")


def _kept(kind: str, states: int) -> KeptByLayer:
    if kind in (LINEAR, CONVOLVED):
        return KeptByLayer(cells=False, states=states)
    return KeptByLayer(states=states if kind == HYBRID else 0)


def masks(
    pattern: LayerPattern, positions: torch.Tensor, cells: torch.Tensor, dtype: torch.dtype
) -> list[torch.Tensor]:
    """For new tokens at `positions` (rows, queries) over `cells` (0, 1, …): one for each kind of
    layer, (rows, 1, queries, cells).
    """
    at = positions[:, None, :, None]
    seen = [sight.of(at, cells) for sight in pattern.sights.values()]
    return [_added(one, dtype) for one in seen] if pattern.additive else seen


def _added(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
        ~seen, torch.finfo(dtype).min
    )


TOLERANCE = {torch.float32: 2e-3, torch.float64: 2e-3}  # of the logits' standard deviation
# Half precision: the same numbers added in another order. Quantized: how a number is rounded may
# depend on its neighbours in the pass, as in LLM.int8 (measured: 0.03, through the model's own
# cache 0.02).
COARSE = 0.15
# A forward that doesn't take what the grid gives raises one of these.
_UNFIT = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, NotImplementedError)
TRIAL = ((3, 4, 5, 6, 7, 8), (9, 5, 4, 6))  # token ids; every vocabulary has them


# Passes that run without Python, see `traced`: of tokens, the positions that rows start at, places
# and the grid's cells. They give the logits (rows, places, vocabulary) after those places (or after
# all, where the model picks none) of the tokens, equally many in each row, which become the first
# rows of the cells.
Recorded: TypeAlias = Callable[
    [Rows, Sequence[int], Sequence[int], Sequence[torch.Tensor]], torch.Tensor
]


class Forward:
    """The model, given the grid for its cache."""

    def __init__(
        self, model: Any, grid: Grid, pattern: LayerPattern, recorded: Recorded | None = None
    ) -> None:
        self._model = model
        self._grid = grid
        self._pattern = pattern
        self._recorded = recorded
        self._device = model.device
        self._dtype = model.dtype
        self._takes = Takes(model)
        self.stepwise = pattern.stepwise

    def run(self, first: int, tokens: Rows, starts: Sequence[int]) -> torch.Tensor:
        """Feed row `first + r` its `tokens[r]` from position `starts[r]` on; logits (rows,
        vocabulary), float32.
        """
        counts = [len(row) for row in tokens]
        if self._pattern.stepwise and counts[0] > 1 and any(starts):
            return list(self._steps(first, tokens, starts))[-1]
        return self._last(self._pass(first, tokens, starts, _ends(counts)), counts)

    def each(self, first: int, tokens: Rows, starts: Sequence[int]) -> torch.Tensor:
        """As `run`, of equally many tokens in each row; the logits after each of them: (rows,
        tokens, vocabulary), float32.
        """
        if self._pattern.stepwise and len(tokens[0]) > 1 and any(starts):
            return torch.stack(list(self._steps(first, tokens, starts)), 1)
        return self._pass(first, tokens, starts, range(len(tokens[0]))).float()

    def _steps(self, first: int, tokens: Rows, starts: Sequence[int]) -> Iterator[torch.Tensor]:
        """`run`, one token of each row at a time."""
        for at, column in enumerate(zip(*tokens, strict=True)):
            yield self.run(first, [(token,) for token in column], [start + at for start in starts])

    def _pass(
        self, first: int, tokens: Rows, starts: Sequence[int], kept: Sequence[int]
    ) -> torch.Tensor:
        """Logits (rows, kept, vocabulary) after the `kept` places, or after all, see `_last`."""
        width = max(map(len, tokens))
        if min(map(len, tokens)) < width:
            assert not self._grid.keeps_states  # what fills up would go through them
            tokens = [[*row, *[0] * (width - len(row))] for row in tokens]
        if self._grid.keeps_states and 0 in starts:
            for row, start in enumerate(starts, first):
                if not start:
                    self._grid.begin(row)
        if self._recorded is not None and (cells := self._grid.cells):
            cells = [rows[first:] for rows in cells] if first else cells
            try:
                return self._recorded(tokens, starts, kept, cells)
            except RuntimeError as error:
                if ran_out(error):
                    raise
                log.warning("recorded passes fail; the model runs as it is", error=str(error))
                self._recorded = None
        return self._own(first, tokens, starts, kept)

    def _own(
        self, first: int, tokens: Rows, starts: Sequence[int], kept: Sequence[int]
    ) -> torch.Tensor:
        """The model's own pass."""
        device, width = self._device, len(tokens[0])
        ids = torch.tensor(tokens, device=device)
        positions = torch.tensor(starts, device=device)[:, None]
        if width > 1:
            positions = positions + torch.arange(width, device=device)
        length = max(starts) + width
        made = masks(self._pattern, positions, torch.arange(length, device=device), self._dtype)
        self._grid.point(first, positions, length)
        only = torch.tensor(kept, device=device) if width > 1 else 1
        taken = self._takes.form(ids, positions, self._pattern.form(made), self._grid, only)
        return logits_of(self._model, taken)

    def _last(self, logits: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        if logits.shape[1] == 1:
            return logits[:, 0].float()
        kept = _ends(counts) if self._takes.picked else range(max(counts))
        places = [kept.index(count - 1) for count in counts]
        return logits[torch.arange(len(counts)), places].float()


class Takes:
    """How a model's forward calls what it takes."""

    def __init__(self, model: Any) -> None:
        names = inspect.signature(model.forward).parameters
        self.picked = "logits_to_keep" in names  # the places after which logits are needed
        self._cache = "cache_params" if "cache_params" in names else "past_key_values"

    def form(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        masks: Any,
        grid: Grid,
        kept: torch.Tensor | int,
    ) -> Mapping[str, Any]:
        """`kept`: places, or so many of the last; of no meaning to a model that doesn't pick."""
        taken = {"input_ids": ids, "position_ids": positions, "attention_mask": masks}
        taken |= {self._cache: grid.cache, "use_cache": True}
        return taken | {"logits_to_keep": kept} if self.picked else taken


def logits_of(model: Any, taken: Mapping[str, Any]) -> torch.Tensor:
    """One call of the model: (rows, kept, vocabulary)."""
    logits: torch.Tensor = model(**taken).logits
    return logits


def _ends(counts: Sequence[int]) -> list[int]:
    """The places of a pass at which one of its rows ends."""
    return sorted({count - 1 for count in counts})


def batching_pattern(model: Any) -> LayerPattern | None:
    """The layers and masks with which the grid gives what the model's plain forward gives; None: it
    can't be batched.
    """
    return next((p for p in patterns(model.config) if stands_trial(model, p)), None)


def stands_trial(model: Any, pattern: LayerPattern, recorded: Recorded | None = None) -> bool:
    """Whether passes over the grid give the logits of the model's plain forward."""
    with torch.inference_mode():
        plain = [_plain_logits(model, row) for row in TRIAL]
        try:
            return _agrees(model, pattern, plain, recorded)
        except _UNFIT:
            return False


def _plain_logits(model: Any, row: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = model(
        input_ids=torch.tensor([row], device=model.device), use_cache=False
    ).logits
    return logits[0, -1].float()


def _agrees(
    model: Any, pattern: LayerPattern, plain: Sequence[torch.Tensor], recorded: Recorded | None
) -> bool:
    """Rows of different lengths, read in parts, together and alone, by several tokens and by one,
    as in use.
    """
    grid = Grid(pattern.layers)
    grid.reshape(rows=len(TRIAL), capacity=16)
    forward = Forward(model, grid, pattern, recorded)
    long, short = TRIAL
    if grid.keeps_states:
        forward.run(0, [short, short], [0, 0])  # others were there before
        forward.run(0, [long[:2], short[:2]], [0, 0])
        forward.run(0, [long[2:5]], [2])
    else:
        forward.run(0, [long[:3], short[:1]], [0, 0])
        forward.run(0, [long[3:5], short[1:2]], [3, 1])
    forward.run(1, [short[2:3]], [2])
    logits = forward.run(0, [long[5:], short[3:]], [5, 3])
    apart = max(
        float((ours - theirs).abs().max()) for ours, theirs in zip(logits, plain, strict=True)
    )
    spread = max(float(row.std()) for row in plain)
    quantized = getattr(model, "is_quantized", False)
    return apart <= (COARSE if quantized else TOLERANCE.get(model.dtype, COARSE)) * spread
