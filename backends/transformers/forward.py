"""One pass of the model over neighbouring rows of the grid, and the trial that shows whether it may
be done so.

A pass feeds each row some tokens (padded at the end to the longest) and returns the logits after
each row's last one. Whether a model can be run like this is not looked up by its name but tried:
the same tokens must give the same logits as the model's own plain forward. Where the pass was
recorded beforehand (`traced`), what was recorded runs in place of the model's Python.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import structlog
import torch

from backends.transformers.grid import Grid
from backends.transformers.memory import ran_out

log = structlog.get_logger(__name__)

# -------------------------------------------------------------------------------------------- masks
# The attention masks of a pass over several sequences of different lengths.
#
# A pass has `rows` sequences with `queries` new tokens each. Cell k of a row holds its token k, so
# a token at position p attends to the cells 0…p, or the last `window` of them in a sliding layer.
# transformers takes ready-made masks of four dimensions as they are
# (`masking_utils._preprocess_mask_arguments`); models with several kinds of layers take one per
# kind, in a dict.


FULL, SLIDING = "full_attention", "sliding_attention"


class LayerPattern(msgspec.Struct, frozen=True):
    """The kinds of layers a model has, and the form in which it takes their masks."""

    windows: Mapping[str, int | None]  # kind of layer -> its window in tokens; None: all
    in_dict: bool
    additive: bool  # eager attention adds the mask to its scores; the others take booleans

    def form(self, made: Sequence[torch.Tensor]) -> Any:
        """`masks` as the model takes them."""
        return dict(zip(self.windows, made, strict=True)) if self.in_dict else made[0]


def patterns(config: Any) -> list[LayerPattern]:
    """What the configuration may mean, likeliest first; empty for kinds of layers that can't be
    batched here.
    """
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    kinds = set(getattr(text, "layer_types", None) or ())
    if not kinds <= {FULL, SLIDING}:
        return []
    if getattr(text, "attention_chunk_size", None) and not kinds:
        return []
    additive = text._attn_implementation == "eager"  # noqa: SLF001 - where transformers keeps its choice
    single = SLIDING if kinds == {SLIDING} or (not kinds and window) else FULL
    plain = LayerPattern(
        {single: window if single == SLIDING else None}, in_dict=False, additive=additive
    )
    if not kinds:
        return [plain]
    windows = {kind: window if kind == SLIDING else None for kind in kinds}
    several = LayerPattern(windows, in_dict=True, additive=additive)
    return [several, plain] if len(kinds) == 1 else [several]


def masks(
    pattern: LayerPattern, positions: torch.Tensor, cells: torch.Tensor, dtype: torch.dtype
) -> list[torch.Tensor]:
    """For new tokens at `positions` (rows, queries) over `cells` (0, 1, …): one for each kind of
    layer, (rows, 1, queries, cells).
    """
    at = positions[:, None, :, None]
    made = []
    for window in pattern.windows.values():
        seen = cells <= at
        if window is not None:
            seen &= cells > at - window
        made.append(_added(seen, dtype) if pattern.additive else seen)
    return made


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


class Recorded(Protocol):
    """Passes that run without Python, see `traced`."""

    def run(
        self,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        kept: Sequence[int],
        cells: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """The logits (rows, kept, vocabulary) after the `kept` places (or after all, where the
        model picks none) of `tokens`, equally many in each row, from the positions `starts` on;
        they become the first rows of the grid's `cells`.
        """
        ...


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
        self._picks_logits = picks_logits(model)

    def run(
        self, first: int, tokens: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> torch.Tensor:
        """Feed row `first + r` its `tokens[r]` from position `starts[r]` on; logits (rows,
        vocabulary), float32.
        """
        counts = [len(row) for row in tokens]
        return self._last(self._pass(first, tokens, starts, _ends(counts)), counts)

    def score(self, row: int, tokens: Sequence[int], start: int) -> torch.Tensor:
        """Feed one row; the logits after each of its `tokens`: (tokens, vocabulary), float32."""
        return self._pass(row, [tokens], [start], range(len(tokens)))[0].float()

    def _pass(
        self,
        first: int,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        kept: Sequence[int],
    ) -> torch.Tensor:
        """Logits (rows, kept, vocabulary) after the `kept` places, or after all, see `_last`."""
        width = max(map(len, tokens))
        if min(map(len, tokens)) < width:
            tokens = [[*row, *[0] * (width - len(row))] for row in tokens]
        if self._recorded is not None and (cells := self._grid.cells):
            cells = [rows[first:] for rows in cells] if first else cells
            try:
                return self._recorded.run(tokens, starts, kept, cells)
            except RuntimeError as error:
                if ran_out(error):
                    raise
                log.warning("recorded passes fail; the model runs as it is", error=str(error))
                self._recorded = None
        return self._own(first, tokens, starts, kept)

    def _own(
        self,
        first: int,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        kept: Sequence[int],
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
        picked = only if self._picks_logits else None
        return logits_of(self._model, self._grid, self._pattern, ids, positions, made, picked)

    def _last(self, logits: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        if logits.shape[1] == 1:
            return logits[:, 0].float()
        kept = _ends(counts) if self._picks_logits else range(max(counts))
        places = [kept.index(count - 1) for count in counts]
        return logits[torch.arange(len(counts)), places].float()


def picks_logits(model: Any) -> bool:
    """Whether its forward takes the places after which logits are needed."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def logits_of(
    model: Any,
    grid: Grid,
    pattern: LayerPattern,
    ids: torch.Tensor,
    positions: torch.Tensor,
    made: Sequence[torch.Tensor],
    kept: torch.Tensor | int | None,
) -> torch.Tensor:
    """One call of the model: (rows, kept, vocabulary). `kept`: places, or so many of the last;
    None where the model doesn't pick.
    """
    logits: torch.Tensor = model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=pattern.form(made),
        past_key_values=grid.cache,
        use_cache=True,
        **({} if kept is None else {"logits_to_keep": kept}),
    ).logits
    return logits


def _ends(counts: Sequence[int]) -> list[int]:
    """The places of a pass at which one of its rows ends."""
    return sorted({count - 1 for count in counts})


def batching_pattern(model: Any, layers: int) -> LayerPattern | None:
    """The masks with which the grid gives what the model's plain forward gives; None: it can't be
    batched.
    """
    return next((p for p in patterns(model.config) if stands_trial(model, layers, p)), None)


def stands_trial(
    model: Any, layers: int, pattern: LayerPattern, recorded: Recorded | None = None
) -> bool:
    """Whether passes over the grid give the logits of the model's plain forward."""
    with torch.inference_mode():
        plain = [_plain_logits(model, row) for row in TRIAL]
        try:
            return _agrees(model, layers, pattern, plain, recorded)
        except _UNFIT:
            return False


def _plain_logits(model: Any, row: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = model(
        input_ids=torch.tensor([row], device=model.device), use_cache=False
    ).logits
    return logits[0, -1].float()


def _agrees(
    model: Any,
    layers: int,
    pattern: LayerPattern,
    plain: Sequence[torch.Tensor],
    recorded: Recorded | None,
) -> bool:
    """Rows of different lengths, read in parts, together and alone, by several tokens and by one,
    as in use.
    """
    grid = Grid(layers)
    grid.reshape(rows=len(TRIAL), capacity=16)
    forward = Forward(model, grid, pattern, recorded)
    long, short = TRIAL
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
