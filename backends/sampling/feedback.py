"""Samplers with feedback from the drawn tokens: mirostat and adaptive-p, for rows that all use the
same.

What they remember is one number per job, on the device; the batch keeps all as rows of one tensor.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from backends.samplers import Sampling
from backends.sampling.penalties import column
from backends.sampling.truncation import Candidates

MOST_DECAY = 0.99  # llama.cpp's
_ESTIMATED = 100  # candidates that mirostat 1 estimates the curve from (arXiv:2007.14966)
_FLAT = 1e-6  # an exponent this near to Zipf's own leaves a quotient of two zeros


class Feedback(Protocol):
    """One of the samplers below, with the memory of its rows."""

    memory: torch.Tensor  # (rows, 1)

    def cut(self, candidates: Candidates) -> None:
        """Leave what may be drawn, and how likely."""
        ...

    def update(self, probabilities: torch.Tensor) -> None:
        """How likely the drawn tokens were, (rows,): see `Candidates.feedback`."""
        ...


class Mirostat:
    """Keeps the answer's surprise near `tau` bits per token, as llama.cpp's two versions do.

    Memory: mu, the greatest surprise that is let through.
    """

    def __init__(
        self, samplings: Sequence[Sampling], memory: torch.Tensor | None, device: torch.device
    ) -> None:
        self._version = samplings[0].mirostat_mode
        self._tau = column([sampling.mirostat_tau for sampling in samplings], device)
        self._eta = column([sampling.mirostat_eta for sampling in samplings], device)
        self.memory = 2 * self._tau if memory is None else memory

    def cut(self, candidates: Candidates) -> None:
        if self._version == 2:
            within = candidates.shares() >= torch.exp2(-self.memory)
            within[:, 0] = True
            candidates.keep(within)
        else:
            ranks = torch.arange(candidates.ids.shape[-1], device=candidates.ids.device)
            candidates.keep(ranks < self._count(candidates))
        candidates.feedback = candidates.shares()

    def _count(self, candidates: Candidates) -> torch.Tensor:
        """How many candidates to keep, from the slope of the logarithms (arXiv:2007.14966)."""
        shares = candidates.shares()[:, : _ESTIMATED + 1].clamp(min=torch.finfo().tiny)
        number = torch.arange(1, shares.shape[-1], device=shares.device)[:_ESTIMATED]
        steps = ((number + 1) / number).log()
        falls = (shares[:, :-1] / shares[:, 1:]).log()
        slope = (steps * falls).sum(-1, keepdim=True) / (steps**2).sum()
        excess = slope - 1
        excess = torch.where(excess.abs() < _FLAT, _FLAT, excess)
        reach = excess * torch.exp2(self.memory) / (1 - candidates.size ** (-excess))
        return (reach ** (1 / slope)).nan_to_num(nan=1.0).floor().clamp(min=1)

    def update(self, probabilities: torch.Tensor) -> None:
        surprise = -probabilities.log2()[:, None]
        self.memory -= self._eta * (surprise - self._tau)


class AdaptiveP:
    """Prefers tokens about as likely as a target that moves so that the average of what was drawn
    stays at the one asked for (llama.cpp's adaptive-p, #17927).

    Memory: the average so far, as the weighted sum of the probabilities: it begins as if the target
    had always been met, so that the weights sum to 1 / (1 - decay) at all times.
    """

    width, peak, sharpness = 0.3, 5.0, 10.0

    def __init__(
        self, samplings: Sequence[Sampling], memory: torch.Tensor | None, device: torch.device
    ) -> None:
        self._target = column([sampling.adaptive_target for sampling in samplings], device)
        decays = [min(sampling.adaptive_decay, MOST_DECAY) for sampling in samplings]
        self._decay = column(decays, device)
        self.memory = self._target / (1 - self._decay) if memory is None else memory

    def cut(self, candidates: Candidates) -> None:
        shares = candidates.shares()
        candidates.feedback = shares
        target = (2 * self._target - self.memory * (1 - self._decay)).clamp(0, 1)
        far = (shares - target).abs() / self.width
        logits = self.peak - self.sharpness * far**2 / (1 + far)
        candidates.reweigh(logits.masked_fill(shares <= 0, -math.inf).softmax(-1))

    def update(self, probabilities: torch.Tensor) -> None:
        self.memory *= self._decay
        self.memory += probabilities[:, None]
