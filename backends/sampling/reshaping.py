"""What changes a distribution as a whole: temperature, dynamic temperature, smoothing. All rows at
once.

Logits have shape (jobs, candidates); a candidate that is out has minus infinity. A column has shape
(jobs, 1).
"""

from collections.abc import Sequence

import torch

from backends.protocol import Sampling
from backends.sampling.state import SamplerState


class Temperature:
    """The temperature of every row, dynamic where its bounds differ; neutral where `active` is
    False.
    """

    def __init__(
        self, states: Sequence[SamplerState], active: Sequence[bool], device: torch.device
    ) -> None:
        wishes = [state.sampling for state in states]
        self._device = device
        dynamic = [
            on and wish.min_temp != wish.max_temp for wish, on in zip(wishes, active, strict=True)
        ]
        smooth = [on and wish.smoothing_factor > 0 for wish, on in zip(wishes, active, strict=True)]
        fixed = [
            wish.temperature if on and not moves else 1.0
            for wish, on, moves in zip(wishes, active, dynamic, strict=True)
        ]
        self._fixed = self._column(fixed) if any(value != 1.0 for value in fixed) else None
        self._dynamic = self._bounds(wishes, dynamic) if any(dynamic) else None
        self._smooth = self._curves(wishes, smooth) if any(smooth) else None

    @property
    def changes(self) -> bool:
        return not (self._fixed is None and self._dynamic is None and self._smooth is None)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """New logits, or the same where there is nothing to change."""
        if self._smooth is not None:
            logits = _smoothed(logits, *self._smooth)
        if self._dynamic is not None:
            logits = logits / _dynamic(logits, *self._dynamic)
        return logits if self._fixed is None else logits / self._fixed

    def _column(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)[:, None]

    def _bounds(self, wishes: Sequence[Sampling], on: Sequence[bool]) -> Sequence[torch.Tensor]:
        pairs = list(zip(wishes, on, strict=True))
        return (
            self._column([wish.min_temp if moves else 1.0 for wish, moves in pairs]),
            self._column([wish.max_temp if moves else 1.0 for wish, moves in pairs]),
            self._column([wish.temp_exponent for wish in wishes]),
        )

    def _curves(self, wishes: Sequence[Sampling], on: Sequence[bool]) -> Sequence[torch.Tensor]:
        factors = [
            wish.smoothing_factor if bends else 0.0 for wish, bends in zip(wishes, on, strict=True)
        ]
        return self._column(factors), self._column([wish.smoothing_curve for wish in wishes])


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


def _smoothed(logits: torch.Tensor, factor: torch.Tensor, curve: torch.Tensor) -> torch.Tensor:
    """Quadratic sampling with a cubic part (kalomaze's smoothing factor and curve); factor 0 leaves
    a row alone.
    """
    peak = logits.amax(-1, keepdim=True)
    below = logits - peak
    quadratic, cubic = factor * (3 - curve) / 2, factor * (curve - 1) / 2
    bent = peak - quadratic * below**2 + cubic * below**3
    return torch.where((factor > 0) & below.isfinite(), bent, logits)
