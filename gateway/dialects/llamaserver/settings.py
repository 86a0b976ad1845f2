"""`generation_settings`: how an answer is generated, by llama-server's names. What this server has
no such setting for is left out.
"""

import math
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import Generation, Sampling
from backends.sampling.order import order_of

ANY_SEED = 2**32 - 1  # llama.cpp's LLAMA_DEFAULT_SEED
OFF = -1.0  # of top_n_sigma


class BiasWire(msgspec.Struct, frozen=True):
    """What is added to a token's logit. Null: it is banned, because JSON has no infinity."""

    token: int
    bias: float | None


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one answer. The last ones are a running request's own: they are sent to its
    client alone.
    """

    seed: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    samplers: Sequence[str]
    ignore_eos: bool
    n_probs: int
    post_sampling_probs: bool
    n_predict: int
    max_tokens: int
    min_tokens: int
    n_ctx: int
    stream: bool | UnsetType = UNSET
    model: str | UnsetType = UNSET
    stop: Sequence[str] | UnsetType = UNSET
    logit_bias: Sequence[BiasWire] | UnsetType = UNSET
    grammar: str | UnsetType = UNSET


def settings(job: Generation, *, context_length: int) -> GenerationSettings:
    """What `job` says of itself but texts: those are its client's alone."""
    sampling = job.sampling
    limit = -1 if job.max_tokens is None else job.max_tokens
    middle, spread = _temperatures(sampling)
    return GenerationSettings(
        seed=ANY_SEED if sampling.seed is None else sampling.seed,
        temperature=middle,
        dynatemp_range=spread,
        dynatemp_exponent=sampling.temp_exponent,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        top_n_sigma=sampling.top_n_sigma or OFF,
        xtc_probability=sampling.xtc_probability,
        xtc_threshold=sampling.xtc_threshold,
        typical_p=sampling.typical_p,
        repeat_last_n=sampling.penalty_range,
        repeat_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        dry_multiplier=sampling.dry_multiplier,
        dry_base=sampling.dry_base,
        dry_allowed_length=sampling.dry_allowed_length,
        dry_penalty_last_n=sampling.dry_range,
        dry_sequence_breakers=sampling.dry_sequence_breakers,
        mirostat=sampling.mirostat_mode,
        mirostat_tau=sampling.mirostat_tau,
        mirostat_eta=sampling.mirostat_eta,
        adaptive_target=sampling.adaptive_target,
        adaptive_decay=sampling.adaptive_decay,
        samplers=order_of(sampling),
        ignore_eos=sampling.ban_eos,
        n_probs=job.logprobs or 0,
        post_sampling_probs=job.after_samplers,
        n_predict=limit,
        max_tokens=limit,
        min_tokens=job.min_tokens,
        n_ctx=context_length,
    )


def own_settings(
    job: Generation, *, context_length: int, model: str, stream: bool
) -> GenerationSettings:
    """All of it, for the client whose job it is."""
    return msgspec.structs.replace(
        settings(job, context_length=context_length),
        model=model,
        stream=stream,
        stop=job.stop,
        logit_bias=[BiasWire(token, _finite(bias)) for token, bias in job.sampling.logit_bias],
        grammar=job.constraint.grammar if job.constraint else "",
    )


def _temperatures(sampling: Sampling) -> tuple[float, float]:
    """The middle, and how far it goes to either side."""
    low, high = sampling.min_temp, sampling.max_temp
    if low == high:
        return sampling.temperature, 0.0
    return (low + high) / 2, (high - low) / 2


def _finite(bias: float) -> float | None:
    return bias if math.isfinite(bias) else None
