"""Random draws for the jobs of a batch that are drawn the same way.

A token is the one whose probability divided by its number from an exponential distribution is
greatest: that draws by the probabilities, and a tiny difference in them (another batch adds its
numbers in another order) changes the choice a hundred times more rarely than walking along their
sum does. The number belongs to seed, place and token (`exponential`). So a seed keeps its text.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import torch

from backends.contract.samplers import FIRST, Sampling, order_of
from backends.engines.sampling.formulas import SCALE, halves, hashed, skewed
from backends.engines.sampling.state import SamplerState, SamplingContext, column
from backends.engines.sampling.truncation import (
    CUTS,
    Candidates,
    Step,
    Temperature,
    cut_with,
    exclude_top,
    wider,
    window,
)

MOST_DECAY = 0.99  # llama.cpp's
_ESTIMATED = 100  # candidates that mirostat 1 estimates the curve from (arXiv:2007.14966)
_FLAT = 1e-6  # an exponent this near to Zipf's own leaves a quotient of two zeros


# Two samplers have feedback from the drawn tokens. What they remember (`memory`) is one number per
# job, (rows, 1), on the device; the batch keeps all as rows of one tensor. `cut` leaves what may be
# drawn, and how likely; `update` is told how likely the drawn tokens were, (rows,): see
# `Candidates.feedback`.


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


Feedback: TypeAlias = Mirostat | AdaptiveP
Picked: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]


class DrawWay(msgspec.Struct, frozen=True):
    """How a job's tokens are drawn; those for whom it is the same are drawn together. It depends on
    the job's own parameters alone.
    """

    order: tuple[str, ...]  # of temperature, truncations and XTC
    window: int | None  # how many candidates are taken first; None: nothing is truncated
    skews: bool
    feedback: str  # "": none


def way(sampling: Sampling, size: int) -> DrawWay:
    """How to draw from a vocabulary of `size` tokens."""
    order = tuple(name for name in order_of(sampling) if name not in FIRST)
    if sampling.mirostat_mode:
        version = f"mirostat {sampling.mirostat_mode}"
        return DrawWay(("temperature",), window(sampling, size), skews=False, feedback=version)
    feedback = "adaptive" if sampling.adaptive_target >= 0 else ""
    return DrawWay(order, window(sampling, size), skews=bool(sampling.skew), feedback=feedback)


class Draw:
    """For `states`, which are the batch's `rows`."""

    def __init__(
        self,
        states: Sequence[SamplerState],
        rows: Sequence[int],
        context: SamplingContext,
        way: DrawWay,
        memory: torch.Tensor | None = None,
    ) -> None:
        """`memory`: of the samplers with feedback; None: their states have it, or nothing yet."""
        self.rows = list(rows)
        self._states = list(states)
        self._context = context
        self._way = way
        self._seeded = [row for row, state in enumerate(states) if state.sampling.seed is not None]
        self._samplings = [state.sampling for state in states]
        temperature = Temperature(self._samplings, context.device)
        self._leads = way.order[:1] == ("temperature",)  # then it is all logits that it changes
        self._temperature = temperature if temperature.changes else None
        self.feedback = self._feedback(memory)
        self._steps = self._steps_after()

    def _steps_after(self) -> list[Step]:
        """All that is done to candidates, in order."""
        steps: list[Step | None] = []
        for name in self._way.order[1:] if self._leads else self._way.order:
            if name == "temperature":
                steps.append(self._cool if self._temperature else None)
            elif name == "xtc":
                steps.append(self._exclusion())
            elif name in CUTS:
                steps.append(cut_with(self._samplings, name, self._context.device))
        if self._way.skews:
            skew = column([one.skew for one in self._samplings], self._context.device)
            steps.append(lambda some: some.reweigh(skewed(torch, some.shares(), skew)))
        if self.feedback is not None:
            steps.append(self.feedback.cut)
        return [step for step in steps if step is not None]

    def pick(self, scores: torch.Tensor) -> Picked:
        """A token for each of `scores` (rows, vocabulary), int64; its complement (~token, below 0)
        where more must stay than the window holds: such a row wants `wider`. And what `feedback`
        gets if that token is taken, (rows,).

        Nothing here waits for the device.
        """
        if not self._steps:
            logits = self._led(scores)
            noise = self._noise(self._context.ids.expand_as(logits))
            return (logits - noise.log_()).argmax(-1), None
        candidates = self.candidates(scores)
        noise = self._noise(candidates.ids)
        place = (candidates.probabilities / noise).argmax(-1, keepdim=True)
        tokens = candidates.ids.gather(-1, place).squeeze(-1)
        feedback = candidates.feedback
        feedback = feedback if feedback is None else feedback.gather(-1, place).squeeze(-1)
        return torch.where(candidates.open, ~tokens, tokens), feedback

    def candidates(self, scores: torch.Tensor) -> Candidates:
        """What is drawn from, of `scores` (rows, vocabulary)."""
        candidates = Candidates(self._led(scores), self._way.window, self._context.ids)
        for step in self._steps:
            step(candidates)
        return candidates

    def _led(self, scores: torch.Tensor) -> torch.Tensor:
        if self._leads and self._temperature is not None:
            return self._temperature.apply(scores)
        return scores

    def wider(self, rows: Sequence[int]) -> "Draw":
        """For those of the batch's `rows` that it picked nothing for: the next window."""
        places = [self.rows.index(row) for row in rows]
        size = self._context.size
        further = msgspec.structs.replace(self._way, window=wider(self._way.window or size, size))
        memory = None if self.feedback is None else self.feedback.memory[places]
        states = [self._states[place] for place in places]
        return Draw(states, rows, self._context, further, memory)

    def _noise(self, ids: torch.Tensor) -> torch.Tensor:
        """Only rows with a seed have numbers of their own."""
        if len(self._seeded) == len(self._states):
            return self._own_noise(ids)
        noise = torch.empty(ids.shape, device=ids.device)
        noise.uniform_(generator=self._context.generator).log_().neg_()
        if self._seeded:
            noise[self._seeded] = self._own_noise(ids[self._seeded])
        return noise

    def _own_noise(self, ids: torch.Tensor) -> torch.Tensor:
        keys = [self._states[row].key for row in self._seeded]
        return exponential(ids, keys, on_host=self._context.on_host)

    def _feedback(self, memory: torch.Tensor | None) -> Feedback | None:
        if not self._way.feedback:
            return None
        kind = AdaptiveP if self._way.feedback == "adaptive" else Mirostat
        made: Feedback = kind(self._samplings, memory, self._context.device)
        if memory is None:  # the states' own become its rows, so that they follow it
            for state, row in zip(self._states, made.memory, strict=True):
                if state.feedback is not None:
                    row.copy_(state.feedback)
                state.feedback = row
        return made

    def _cool(self, candidates: Candidates) -> None:
        assert self._temperature is not None
        logits = self._temperature.apply(candidates.shares().log())
        candidates.reweigh(logits.softmax(-1))

    def _exclusion(self) -> Step | None:
        """XTC; only jobs that use it spend a random number."""
        chances = [sampling.xtc_probability for sampling in self._samplings]
        if not any(chances):
            return None
        threshold = column(
            [sampling.xtc_threshold for sampling in self._samplings], self._context.device
        )

        def exclude(candidates: Candidates) -> None:
            happens = [
                chance > 0 and state.number() < chance
                for state, chance in zip(self._states, chances, strict=True)
            ]
            there = torch.tensor(happens, device=self._context.device)[:, None]
            exclude_top(candidates, threshold, there)

        return exclude


# Random numbers that are a function of a job's seed, the place in its answer and the token: a
# token's number is the same whatever else is in the batch, however many candidates are taken and in
# which order they come, and however often the place is drawn anew. There is no generator to keep or
# to seed: a hash of all three (`formulas.hashed`) costs a few operations for all rows together.

WIDE = 4_096  # candidates; more are hashed row by row, which stay in the processor's cache


def exponential(ids: torch.Tensor, keys: Sequence[int], *, on_host: bool) -> torch.Tensor:
    """A number of the exponential distribution for each of `ids` (rows, candidates), int64, by its
    row's 64-bit key. Above 0 and finite.

    `on_host`: `ids` are in the CPU's memory, where numpy's operations start sooner than torch's.
    """
    bits = _host_bits(ids, keys) if on_host else _device_bits(ids, keys)
    return bits.add_(0.5).mul_(-SCALE).log1p_().neg_()


def _device_bits(ids: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    low, high = (
        torch.tensor([halves(key) for key in keys], dtype=torch.int32)
        .to(ids.device, non_blocking=True)
        .T[..., None]
    )
    bits: torch.Tensor = hashed(ids.int(), low, high)
    return bits.float()


def _host_bits(ids: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    words = np.array([halves(key) for key in keys], np.int32)
    tokens = ids.numpy().astype(np.int32)
    if tokens.shape[-1] <= WIDE:
        bits = hashed(tokens, words[:, :1], words[:, 1:]).astype(np.float32)
    else:
        bits = np.empty(tokens.shape, np.float32)
        for row, (low, high) in enumerate(words):
            bits[row] = hashed(tokens[row], low, high)
    return torch.from_numpy(bits)
