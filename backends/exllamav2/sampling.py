"""A job's sampling parameters as the settings of exllamav2's sampler.

The sampler's own defaults are not neutral, so every field is set here. Its order: penalties, bans,
biases and DRY; temperature; the truncations; then dynamic temperature, or temperature where it
comes last; XTC; skew. Frequency and presence penalties are not its: see `logit_hooks`.
"""

from collections import deque
from typing import Any

import torch

from backends.errors import InvalidJob
from backends.exllama.jobs import barred, check_tokens
from backends.exllamav2.library import ExLlamaV2Library
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Generation, Sampling

# What exllamav2 0.3.2 has. It lacks smoothing_curve, top_n_sigma, adaptive-p, and any other order.
SUPPORTED = frozenset(
    {
        "seed",
        "temperature",
        "temperature_last",
        "min_temp",
        "max_temp",
        "temp_exponent",
        "smoothing_factor",
        "top_k",
        "top_p",
        "min_p",
        "top_a",
        "tfs",
        "typical_p",
        "skew",
        "xtc_probability",
        "xtc_threshold",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "penalty_range",
        "repetition_decay",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_range",
        "dry_sequence_breakers",
        "mirostat_mode",
        "mirostat_tau",
        "mirostat_eta",
        "logit_bias",
        "banned_tokens",
        "allowed_tokens",
        "banned_strings",
        "ban_eos",
    }
)
# A ban rewinds, which fails where a step holds draft tokens (dynamic.py, iterate_gen: one that was
# rewound counts as accepted).
SUPPORTED_WITH_GUESSES = SUPPORTED - {"banned_strings"}
COLDEST = 0.01  # below this exllamav2's dynamic temperature divides by nearly nothing
LONGEST_REPEAT = 20  # tokens that DRY matches at once: exllamav2's own default
SMALLEST_SHARE = 1e-6  # a top_p of 0 means the best token alone, which exllamav2 takes for "off"
NEVER = float("-inf")


def settings(job: Generation, library: ExLlamaV2Library, vocabulary: HfVocabulary) -> Any:
    """An `ExLlamaV2Sampler.Settings` for this job alone: it keeps the job's state. Raises
    InvalidJob.
    """
    sampling = job.sampling
    check(sampling)
    made = library.settings(
        token_repetition_penalty=sampling.repetition_penalty,
        token_repetition_range=sampling.penalty_range,
        token_repetition_decay=sampling.repetition_decay,
        smoothing_factor=sampling.smoothing_factor,
        top_k=sampling.top_k,
        top_p=max(sampling.top_p, SMALLEST_SHARE),
        top_a=sampling.top_a,
        min_p=sampling.min_p,
        tfs=sampling.tfs,
        typical=sampling.typical_p,
        skew=sampling.skew,
        mirostat=sampling.mirostat_mode == 2,
        mirostat_tau=sampling.mirostat_tau,
        mirostat_eta=sampling.mirostat_eta,
        token_bias=bias(sampling, vocabulary),
        xtc_probability=sampling.xtc_probability,
        xtc_threshold=sampling.xtc_threshold,
    )
    _set_temperature(made, sampling)
    _set_dry(made, job, vocabulary)
    return made


def check(sampling: Sampling) -> None:
    """Checks for what exllamav2 has in one form only, or not together. Raises InvalidJob."""
    if sampling.mirostat_mode == 1:
        raise InvalidJob("exllamav2 has mirostat 2 only, not mirostat 1", "mirostat_mode")
    if sampling.min_temp > sampling.max_temp:
        raise InvalidJob("min_temp is above max_temp", "min_temp")
    if sampling.banned_strings and sampling.dry_multiplier and sampling.dry_range > 0:
        # Taken back tokens stay in DRY's memory, and forgetting old ones then fails.
        raise InvalidJob("exllamav2 can't combine banned_strings with dry_range", "dry_range")


def _set_temperature(made: Any, sampling: Sampling) -> None:
    made.temperature = sampling.temperature
    made.temperature_last = sampling.temperature_last
    made.min_temp = made.max_temp = 0.0
    made.temp_exponent = sampling.temp_exponent
    if sampling.temperature <= 0:
        # Greedy, whatever else is requested; dividing by a last temperature of 0 would give
        # nonsense.
        made.temperature, made.temperature_last, made.top_k = 1.0, False, 1
        made.xtc_probability = 0.0
    elif sampling.min_temp < sampling.max_temp:
        made.temperature, made.temperature_last = 1.0, False
        made.min_temp, made.max_temp = max(sampling.min_temp, COLDEST), sampling.max_temp


def _set_dry(made: Any, job: Generation, vocabulary: HfVocabulary) -> None:
    sampling = job.sampling
    if not sampling.dry_multiplier or sampling.dry_range == 0:
        return
    made.dry_multiplier = sampling.dry_multiplier
    made.dry_base = sampling.dry_base
    made.dry_allowed_length = sampling.dry_allowed_length
    made.dry_sequence_breakers = vocabulary.containing(sampling.dry_sequence_breakers)
    made.dry_max_ngram = LONGEST_REPEAT
    if sampling.dry_range > 0:  # 0 is theirs for all
        made.dry_range = sampling.dry_range
        made.dry_max_ngram = min(LONGEST_REPEAT, sampling.dry_range - 1)  # theirs must be less
        if len(job.prompt) == 1:  # they read the oldest of a history that is still empty
            made.ngram_history = deque((0,))


def bias(sampling: Sampling, vocabulary: HfVocabulary) -> torch.Tensor | None:
    """What is added to the logits, one number for each row of the head; None for nothing.

    exllamav2 pads the head to a multiple of 32. Raises InvalidJob for a token that isn't there.
    """
    check_tokens(sampling, vocabulary)
    banned = barred(sampling, vocabulary)
    if not (sampling.logit_bias or banned or sampling.allowed_tokens):
        return None
    rows = -(-vocabulary.size // 32) * 32
    added = torch.full((rows,), NEVER if sampling.allowed_tokens else 0.0)
    added[list(sampling.allowed_tokens)] = 0.0
    for token, amount in sampling.logit_bias:
        added[token] += amount
    added[banned] = NEVER
    return added
