"""What grammars allow, as one tensor for the rows of a batch."""

from collections.abc import Sequence

import numpy as np
import torch

from backends.constraints.matcher import Mask
from backends.sampling.state import SamplerState, SamplingContext

_NEVER = float("-inf")


def masked(
    scores: torch.Tensor, states: Sequence[SamplerState], context: SamplingContext
) -> torch.Tensor:
    """`scores` (jobs, vocabulary) with minus infinity where a job's mask forbids a token; as they
    are where no job has one. Waits for masks. Raises what `Mask.allowed` does.
    """
    masks = [state.mask for state in states]
    if all(mask is None for mask in masks):
        return scores
    return scores.masked_fill(~_allowed(masks, context), _NEVER)


def _allowed(masks: Sequence[Mask | None], context: SamplingContext) -> torch.Tensor:
    """(jobs, vocabulary), bool. To a card go bits, which are unpacked there."""
    bits = np.full((len(masks), -(-context.size // 8)), 0xFF, np.uint8)
    for row, mask in zip(bits, masks, strict=True):
        if mask is not None:
            row[:] = np.frombuffer(mask.allowed(), np.uint8)
    if context.on_host:
        single = np.unpackbits(bits, axis=-1, count=context.size, bitorder="little")
        return torch.from_numpy(single).view(torch.bool)
    packed = torch.from_numpy(bits).to(context.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=context.device)
    single = (packed[:, :, None] >> shifts) & 1
    return single.flatten(1)[:, : context.size].bool()
