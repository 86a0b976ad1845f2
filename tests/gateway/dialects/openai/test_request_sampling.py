"""Sampling parameters: what was named, and what its spellings mean."""

from backends.contract.samplers import Sampling
from gateway.dialects.parameters import SamplingWire
from tests.gateway.dialects.openai.bodies import chat


def test_a_wish_goes_over_the_configured_default() -> None:
    sampling = chat(temperature=0.2, seed=-1).request.answering.sampling
    merged = sampling.over(Sampling(temperature=0.9, top_k=40, seed=5))
    assert (merged.temperature, merged.top_k, merged.seed) == (0.2, 40, None)


def test_every_sampler_of_the_protocol_can_be_asked_for() -> None:
    wire = set(SamplingWire.__struct_fields__) - {"dynatemp_range", "dynamic_temperature"}
    assert wire == set(Sampling.__struct_fields__)
