"""Masks on tensors: on the host and as on a card."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import bundled
from backends.contract.protocol import Generation
from backends.engines.sampling.batch import masked
from backends.engines.sampling.state import SamplerState, SamplingContext
from backends.engines.vocabulary import HfVocabulary

SIZE = 771  # fills no byte


class Allowing:
    """Allows `tokens`."""

    def __init__(self, tokens: set[int]) -> None:
        self._bits = sum(1 << token for token in tokens)

    def allowed(self) -> bytes:
        return self._bits.to_bytes(-(-SIZE // 8), "little")

    def fitting(self, tokens: Sequence[int]) -> int:
        raise NotImplementedError

    def drawn(self, token: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("on_host", [True, False])
def test_only_what_masks_allow_is_left(*, on_host: bool) -> None:
    context = SamplingContext(HfVocabulary(Path(bundled.SAFETENSORS), SIZE), torch.device("cpu"))
    context.on_host = on_host
    rng = random.Random(1)
    allowed = [set(rng.sample(range(SIZE), count)) for count in (1, 8, 400, SIZE)]
    states = [SamplerState(Generation(prompt=(1,)), [1], context) for _ in range(5)]
    for state, tokens in zip(states, allowed, strict=False):
        state.mask = Allowing(tokens)
    scores = torch.randn(5, SIZE)
    left = masked(scores, states, context)
    for row, tokens in enumerate([*allowed, set(range(SIZE))]):
        assert set(left[row].isfinite().nonzero().flatten().tolist()) == tokens
        assert torch.equal(left[row, sorted(tokens)], scores[row, sorted(tokens)])
    assert masked(scores, states[4:], context) is scores
