"""Samplers that change a distribution as a whole: temperature, dynamic temperature, smoothing. All
rows at once.

Logits have shape (jobs, candidates); a candidate that is out has minus infinity. A column has shape
(jobs, 1).
"""

from collections.abc import Sequence

import torch

from backends.protocol import Sampling
from backends.sampling.formulas import smoothed
from backends.sampling.penalties import column


class Temperature:
    """The temperature of every row, dynamic where its bounds differ, after its smoothing."""

    def __init__(self, wishes: Sequence[Sampling], device: torch.device) -> None:
        self._device = device
        dynamic = [wish.min_temp != wish.max_temp for wish in wishes]
        smooth = any(wish.smoothing_factor > 0 for wish in wishes)
        fixed = [
            1.0 if moves else wish.temperature for wish, moves in zip(wishes, dynamic, strict=True)
        ]
        self._fixed = column(fixed, device) if any(value != 1.0 for value in fixed) else None
        self._dynamic = self._bounds(wishes, dynamic) if any(dynamic) else None
        self._smooth = self._curves(wishes) if smooth else None

    @property
    def changes(self) -> bool:
        return not (self._fixed is None and self._dynamic is None and self._smooth is None)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """New logits, or the same where there is nothing to change."""
        if self._smooth is not None:
            logits = smoothed(torch, logits, *self._smooth)
        if self._dynamic is not None:
            logits = logits / _dynamic(logits, *self._dynamic)
        return logits if self._fixed is None else logits / self._fixed

    def _bounds(self, wishes: Sequence[Sampling], on: Sequence[bool]) -> Sequence[torch.Tensor]:
        pairs = list(zip(wishes, on, strict=True))
        return (
            column([wish.min_temp if moves else 1.0 for wish, moves in pairs], self._device),
            column([wish.max_temp if moves else 1.0 for wish, moves in pairs], self._device),
            column([wish.temp_exponent for wish in wishes], self._device),
        )

    def _curves(self, wishes: Sequence[Sampling]) -> Sequence[torch.Tensor]:
        return (
            column([wish.smoothing_factor for wish in wishes], self._device),
            column([wish.smoothing_curve for wish in wishes], self._device),
        )


def _dynamic(
    logits: torch.Tensor, low: torch.Tensor, high: torch.Tensor, exponent: torch.Tensor
) -> torch.Tensor:
    """Between `low` and `high` by how unsure the model is: entropy over its greatest possible
    value.

    As llama.cpp's `temp_ext` sampler computes it.
    """
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1, keepdim=True)
    most = logits.isfinite().sum(-1, keepdim=True).clamp(min=2).log()
    temperature: torch.Tensor = low + (high - low) * (entropy / most) ** exponent
    return temperature.clamp(min=1e-4)
