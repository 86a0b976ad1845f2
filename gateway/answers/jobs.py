"""From what a request asks for to the jobs that an engine gets."""

from collections.abc import Mapping, Sequence

import msgspec

from backends.protocol import Generation, ModelInfo, Sampling
from gateway.errors import InvalidRequest
from gateway.registry import Lease
from gateway.request import GenerationParams


def jobs_of(
    prompts: Sequence[tuple[int, ...]], asked: GenerationParams, lease: Lease, request: int
) -> list[Generation]:
    """One for each choice. What is said nearer to the request wins: engine, model, preset, request.

    `request`: its number, by which its jobs take turns in line. Raises InvalidRequest.
    """
    info = lease.local.info
    if asked.after_samplers and not info.tells_after_samplers:
        text = f"post_sampling_probs: {info.backend} tells the model's own probabilities alone."
        raise InvalidRequest(text, param="post_sampling_probs")
    defaults = info.generation_defaults or Sampling()
    sampling = _biased(asked.sampling.over(lease.entry.sampling.over(defaults)), asked, lease)
    return [
        Generation(
            prompt=prompt,
            sampling=_varied(sampling, variant),
            max_tokens=asked.max_tokens,
            min_tokens=asked.min_tokens,
            stop=asked.stop,
            logprobs=asked.logprobs,
            request=request,
            slot=asked.slot if info.keeps_slots else None,
            tells_progress=asked.tells_progress and info.tells_progress,
            after_samplers=asked.after_samplers,
        )
        for prompt in prompts
        for variant in range(asked.n)
    ]


def unmet(asked: GenerationParams, info: ModelInfo) -> Mapping[str, str]:
    """What is asked for besides sampling and this engine doesn't do, by the clients' names: why."""
    wishes = (
        ("id_slot", asked.slot is not None and not info.keeps_slots),
        ("return_progress", asked.tells_progress and not info.tells_progress),
    )
    return {name: f"{info.backend} does not have it" for name, is_unmet in wishes if is_unmet}


def _biased(sampling: Sampling, asked: GenerationParams, lease: Lease) -> Sampling:
    """With the biases of texts as those of all their tokens."""
    texts = asked.sampling.text_biases
    if not texts:
        return sampling
    container = lease.local
    added = tuple(
        (token, bias) for text, bias in texts for token in container.tokenize(text, special=False)
    )
    return msgspec.structs.replace(sampling, logit_bias=sampling.logit_bias + added)


def _varied(sampling: Sampling, variant: int) -> Sampling:
    """Several choices with one seed would all be the same: each counts on from it."""
    if sampling.seed is None or not variant:
        return sampling
    return msgspec.structs.replace(sampling, seed=sampling.seed + variant)
