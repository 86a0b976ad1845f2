"""Who may look at whom: the attention masks of a pass over several sequences of different lengths.

A pass has `rows` sequences with `queries` new tokens each. Cell k of a row holds its token k, so a
token at position p sees the cells 0…p, or the last `window` of them in a sliding layer.
transformers takes ready-made masks of four dimensions as they are
(`masking_utils._preprocess_mask_arguments`); models with several kinds of layers take one per kind,
in a dict.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

FULL, SLIDING = "full_attention", "sliding_attention"


class Pattern(msgspec.Struct, frozen=True):
    """The kinds of layers a model has, and the form in which it takes their masks."""

    windows: Mapping[
        str, int | None
    ]  # kind of layer -> its window in tokens; None: sees everything
    in_dict: bool
    additive: bool  # eager attention adds the mask to its scores; the others take booleans


def patterns(config: Any) -> list[Pattern]:
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
    plain = Pattern(
        {single: window if single == SLIDING else None}, in_dict=False, additive=additive
    )
    if not kinds:
        return [plain]
    windows = {kind: window if kind == SLIDING else None for kind in kinds}
    several = Pattern(windows, in_dict=True, additive=additive)
    return [several, plain] if len(kinds) == 1 else [several]


def masks(pattern: Pattern, positions: torch.Tensor, length: int, dtype: torch.dtype) -> Any:
    """For new tokens at `positions` (rows, queries) over `length` cells: a mask, or one per kind of
    layer.
    """
    cells = torch.arange(length, device=positions.device)
    at = positions[:, None, :, None]
    made = {}
    for kind, window in pattern.windows.items():
        seen = cells <= at
        if window is not None:
            seen &= cells > at - window
        made[kind] = _added(seen, dtype) if pattern.additive else seen
    return made if pattern.in_dict else next(iter(made.values()))


def _added(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
        ~seen, torch.finfo(dtype).min
    )
