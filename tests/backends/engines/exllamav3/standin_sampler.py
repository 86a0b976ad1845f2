"""The stand-in's sampler: see `standin`. Of the steps, those that the tests' answers need do
something; the others only hold what they were given.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N801
# Their signatures are written down as they are: without types.

from dataclasses import dataclass

import torch

from tests.backends.engines.exllama.standin_generator import pick


@dataclass
class State:
    logits: torch.Tensor  # of the shape (vocabulary,)
    past_ids: list[int]
    chance: float
    sample: int = -1


class SS_Base:
    def run(self, state) -> None:
        """Nothing, unless a step says otherwise."""

    def reqs_past_ids(self):
        return False


class SS_Argmax(SS_Base):
    def run(self, state) -> None:
        state.sample = int(state.logits.argmax())


class SS_Sample(SS_Base):
    def run(self, state) -> None:
        state.sample = pick(state.logits, 1.0, state.chance)


class SS_Temperature(SS_Base):
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def run(self, state) -> None:
        state.logits /= self.temperature


class CustomSampler:
    def __init__(self, steps) -> None:
        self.steps = steps
        self.reqs_past_ids = any(step.reqs_past_ids() for step in steps)

    def forward(
        self,
        logits,
        sequence_ids=None,
        rand_u32=None,
        tokenizer=None,
        logit_mask=None,
        return_state: bool = False,
    ):
        wanted = logits if logit_mask is None else logits + logit_mask
        past = sequence_ids[0].tolist() if sequence_ids is not None else []
        state = State(wanted[0, 0].float().clone(), past, rand_u32 / 2**32)
        for step in self.steps:
            step.run(state)
        return torch.tensor([[state.sample]])
