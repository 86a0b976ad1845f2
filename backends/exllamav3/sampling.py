"""A job's sampling parameters as steps of exllamav3's sampler.

The order: biases, penalties, DRY and bans; temperature; the truncations; temperature where it comes
last; XTC. A neutral parameter becomes a step that the sampler leaves out by itself. Where only the
usual ones are left it runs them as one kernel, which a step of our own would prevent.
"""

from collections.abc import Iterator
from typing import Any

import torch

from backends.exllama.jobs import ExLlamaJob, barred, check_tokens
from backends.exllamav3.library import ExLlamaV3Library
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Sampling

# What exllamav3 1.6.5 has.
SUPPORTED = frozenset(
    {
        "seed",
        "temperature",
        "temperature_last",
        "top_k",
        "top_p",
        "min_p",
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
        "logit_bias",
        "banned_tokens",
        "allowed_tokens",
        "banned_strings",
        "ban_eos",
    }
)
EVERYTHING = 10**8  # tokens; theirs for a range without an end


def sampler(running: ExLlamaJob, library: ExLlamaV3Library, vocabulary: HfVocabulary) -> Any:
    """A sampler for this request. Raises InvalidJob."""
    sampling, steps = running.job.sampling, library.steps
    check_tokens(sampling, vocabulary)
    penalty = steps.SS_PresFreqP(sampling.presence_penalty, sampling.frequency_penalty)
    made = steps.CustomSampler(
        [
            steps.SS_LogitBias(_biases(sampling)),
            steps.SS_RepP(sampling.repetition_penalty, _back(sampling), sampling.repetition_decay),
            penalty,
            _dry(sampling, steps, vocabulary),
            steps.SS_BanTokens(_bans(sampling, vocabulary)),
            *_choice(sampling, steps, vocabulary),
        ]
    )
    if sampling.presence_penalty or sampling.frequency_penalty:
        return OfTheAnswer(made, penalty, len(running.prompt), _back(sampling))
    return made


class OfTheAnswer:
    """A sampler whose frequency and presence penalties count the answer alone, as OpenAI's do:
    theirs count the last `sustain_range` tokens, of the prompt too.
    """

    def __init__(self, sampler: Any, penalty: Any, prompt_tokens: int, back: int) -> None:
        self.reqs_past_ids: bool = sampler.reqs_past_ids
        self._sampler = sampler
        self._penalty = penalty
        self._prompt_tokens = prompt_tokens
        self._back = back

    def forward(
        self,
        logits: torch.Tensor,
        sequence_ids: torch.Tensor,
        rand_u32: int,
        tokenizer: Any,
        logit_mask: torch.Tensor | None = None,
    ) -> Any:
        """Called by the job once for every token."""
        length = sequence_ids.shape[-1] - self._prompt_tokens
        self._penalty.sustain_range = min(length, self._back)
        return self._sampler.forward(
            logits, sequence_ids, rand_u32, tokenizer, logit_mask=logit_mask
        )


def _choice(sampling: Sampling, steps: Any, vocabulary: HfVocabulary) -> Iterator[Any]:
    if sampling.temperature <= 0:  # greedy, whatever else is requested
        yield steps.SS_Argmax()
        return
    last = sampling.temperature_last
    yield steps.SS_Temperature(1.0 if last else sampling.temperature)
    yield steps.SS_MinP(sampling.min_p)
    yield steps.SS_TopK(max(sampling.top_k, 0))
    yield steps.SS_TopP(sampling.top_p)
    yield steps.SS_Temperature(sampling.temperature if last else 1.0)
    if sampling.xtc_probability:
        kept = vocabulary.containing(("\n",))  # and control tokens: what exllamav2 leaves alone
        yield steps.SS_XTC(sampling.xtc_probability, sampling.xtc_threshold, kept)
    yield steps.SS_Sample()


def _biases(sampling: Sampling) -> dict[int, float]:
    added: dict[int, float] = {}
    for token, amount in sampling.logit_bias:
        added[token] = added.get(token, 0.0) + amount
    return added


def _bans(sampling: Sampling, vocabulary: HfVocabulary) -> list[int]:
    banned = set(barred(sampling, vocabulary))
    if sampling.allowed_tokens:
        banned |= set(range(vocabulary.size)).difference(sampling.allowed_tokens)
    return sorted(banned)


def _back(sampling: Sampling) -> int:
    return EVERYTHING if sampling.penalty_range < 0 else sampling.penalty_range


def _dry(sampling: Sampling, steps: Any, vocabulary: HfVocabulary) -> Any:
    wanted = sampling.dry_multiplier if sampling.dry_range else 0.0  # 0 is theirs for all
    return steps.SS_DRY(
        wanted,
        sampling.dry_base,
        sampling.dry_allowed_length,
        max(sampling.dry_range, 0),
        vocabulary.containing(sampling.dry_sequence_breakers) if wanted else frozenset(),
    )
