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

    def __init__(self, samplings: Sequence[Sampling], device: torch.device) -> None:
        self._device = device
        dynamic = [sampling.min_temp != sampling.max_temp for sampling in samplings]
        smooth = any(sampling.smoothing_factor > 0 for sampling in samplings)
        fixed = [
            1.0 if moves else sampling.temperature
            for sampling, moves in zip(samplings, dynamic, strict=True)
        ]
        self._fixed = column(fixed, device) if any(value != 1.0 for value in fixed) else None
        self._dynamic = self._bounds(samplings, dynamic) if any(dynamic) else None
        self._smooth = self._curves(samplings) if smooth else None

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

    def _bounds(self, samplings: Sequence[Sampling], on: Sequence[bool]) -> Sequence[torch.Tensor]:
        pairs = list(zip(samplings, on, strict=True))
        return (
            column(
                [sampling.min_temp if moves else 1.0 for sampling, moves in pairs], self._device
            ),
            column(
                [sampling.max_temp if moves else 1.0 for sampling, moves in pairs], self._device
            ),
            column([sampling.temp_exponent for sampling in samplings], self._device),
        )

    def _curves(self, samplings: Sequence[Sampling]) -> Sequence[torch.Tensor]:
        return (
            column([sampling.smoothing_factor for sampling in samplings], self._device),
            column([sampling.smoothing_curve for sampling in samplings], self._device),
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
