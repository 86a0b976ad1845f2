"""Who draws a job's tokens: exllamav3's own sampler, where that is greedy or takes a temperature
alone, else `backends.exllama.drawing` in its place.
"""

from typing import Any

import torch

from backends.exllama.drawing import Drawing
from backends.exllamav3.library import ExLlamaV3Library
from backends.samplers import Sampling


def theirs(sampling: Sampling, library: ExLlamaV3Library) -> Any:
    """A sampler with this temperature and nothing else."""
    steps = library.steps
    if sampling.temperature <= 0:
        return steps.CustomSampler([steps.SS_Argmax()])
    return steps.CustomSampler([steps.SS_Temperature(sampling.temperature), steps.SS_Sample()])


class OurSampler:
    """Has what a job needs of a `Sampler` in exllamav3 1.6.5."""

    # Else the places behind guesses would be drawn for before it is known which guesses came true.
    reqs_past_ids = True
    reqs_torch_seed = False

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing

    def forward(
        self,
        logits: torch.Tensor,
        sequence_ids: torch.Tensor,
        rand_u32: int,
        tokenizer: Any,
        logit_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Called by the job once for every token: `logits` is (1, 1, padded vocabulary)."""
        return torch.tensor([[self._drawing.draw(logits)]])
