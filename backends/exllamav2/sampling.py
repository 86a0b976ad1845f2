"""Who draws a job's tokens: exllamav2's own sampler, where that is greedy or takes a temperature
alone, else `backends.exllama.drawing` in its place.
"""

from typing import Any, TypeAlias

import torch

from backends.exllama.drawing import Drawing
from backends.exllamav2.library import ExLlamaV2Library
from backends.samplers import Sampling

Sampled: TypeAlias = tuple[torch.Tensor, None, None, None, bool]


def theirs(sampling: Sampling, library: ExLlamaV2Library) -> Any:
    """Settings of its sampler with this temperature, and nothing else of its defaults: an
    `ExLlamaV2Sampler.Settings`.
    """
    greedy = sampling.temperature <= 0
    return library.settings(
        token_repetition_penalty=1.0,
        temperature=1.0 if greedy else sampling.temperature,
        top_k=1 if greedy else 0,
        top_p=1.0,
    )


def draw_with(drawing: Drawing, job: Any) -> None:
    """Let `drawing` draw the tokens of `job`, an `ExLlamaV2DynamicJob`."""

    def receive_logits(logits: torch.Tensor) -> Sampled:
        """As the job's own, which is called once for every token: `logits` is (1, 1, padded
        vocabulary), on the CPU. Alternatives and probabilities aren't wanted of it.
        """
        token = drawing.draw(logits)
        return torch.tensor([[token]]), None, None, None, False

    job.receive_logits = receive_logits
