"""Wishes about single tokens, as far as both libraries want them alike."""

from backends.errors import InvalidJob
from backends.hf_vocabulary import HfVocabulary
from backends.protocol import Sampling


def check_tokens(sampling: Sampling, vocabulary: HfVocabulary) -> None:
    """Raises InvalidJob for a token that isn't there."""
    wishes = {
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "banned_tokens": sampling.banned_tokens,
        "allowed_tokens": sampling.allowed_tokens,
    }
    for param, tokens in wishes.items():
        wrong = [token for token in tokens if not 0 <= token < vocabulary.size]
        if wrong:
            raise InvalidJob(f"token {wrong[0]} is not in the vocabulary", param)


def barred(sampling: Sampling, vocabulary: HfVocabulary) -> list[int]:
    """The tokens that must not come."""
    return [*sampling.banned_tokens, *(vocabulary.ends if sampling.ban_eos else ())]
