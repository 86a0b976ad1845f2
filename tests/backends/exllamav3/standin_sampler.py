"""The stand-in's sampler: see `standin`. Of the steps, those that the tests' answers need do
something; the others only hold what they were given.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N801
# Their signatures are written down as they are: without types.

from dataclasses import dataclass

import torch

from tests.backends.exllama.standin_generator import pick

NEVER = float("-inf")


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


class SS_TopK(SS_Base):
    def __init__(self, top_k: int) -> None:
        self.top_k = top_k


class SS_TopP(SS_Base):
    def __init__(self, top_p: float) -> None:
        self.top_p = top_p


class SS_MinP(SS_Base):
    def __init__(self, min_p: float) -> None:
        self.min_p = min_p


class SS_BanTokens(SS_Base):
    def __init__(self, token_ids) -> None:
        self.token_ids = token_ids

    def run(self, state) -> None:
        state.logits[self.token_ids] = NEVER


class SS_LogitBias(SS_Base):
    def __init__(self, logit_bias) -> None:
        self.logit_bias = logit_bias

    def run(self, state) -> None:
        for token, amount in self.logit_bias.items():
            state.logits[token] += amount


class SS_XTC(SS_Base):
    def __init__(
        self, probability: float, threshold: float, protected_token_ids=None, tokenizer=None
    ) -> None:
        self.probability, self.threshold = probability, threshold
        self.protected_token_ids = protected_token_ids


class SS_RepP(SS_Base):
    def __init__(
        self, rep_p: float = 1.0, sustain_range: int = int(10e7), decay_range: int = 0
    ) -> None:
        self.rep_p, self.sustain_range, self.decay_range = rep_p, sustain_range, decay_range

    def reqs_past_ids(self):
        return self.rep_p != 1.0


class SS_PresFreqP(SS_Base):
    def __init__(
        self,
        pres_p: float = 0.0,
        freq_p: float = 0.0,
        sustain_range: int = int(10e7),
        decay_range: int = 0,
    ) -> None:
        self.pres_p, self.freq_p = pres_p, freq_p
        self.sustain_range, self.decay_range = sustain_range, decay_range

    def run(self, state) -> None:
        for token in state.past_ids[max(0, len(state.past_ids) - self.sustain_range) :]:
            state.logits[token] -= self.freq_p

    def reqs_past_ids(self):
        return bool(self.pres_p or self.freq_p)


class SS_DRY(SS_Base):
    def __init__(
        self,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_range: int = 0,
        dry_sequence_breakers=None,
        tokenizer=None,
    ) -> None:
        self.dry_multiplier, self.dry_base = dry_multiplier, dry_base
        self.dry_allowed_length, self.dry_range = dry_allowed_length, dry_range
        self.dry_sequence_breakers = dry_sequence_breakers


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
