"""A model's own `generation_config.json` as sampling defaults: written once, for every backend that
finds one.

The same reading serves a `generation_config` that a client sends. The names are those of
transformers' `GenerationConfig`; what isn't sampling (lengths, end tokens, beams) is not read.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from backends import bounds
from backends.protocol import Sampling

FILE = "generation_config.json"

Reading = Callable[[Any], Any]


def _tokens(value: Any) -> tuple[int, ...]:
    return tuple(int(token) for token in value)


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    """`[[[token], bias], …]`, as JSON must write it; longer sequences have no counterpart here."""
    return tuple((int(word[0]), float(bias)) for word, bias in value if len(word) == 1)


# Their name, our field, how its value is read.
NAMES: Mapping[str, tuple[str, Reading]] = {
    "temperature": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "typical_p": ("typical_p", float),
    "repetition_penalty": ("repetition_penalty", float),
    "suppress_tokens": ("banned_tokens", _tokens),
    "sequence_bias": ("logit_bias", _biases),
}


def sampling(config: Mapping[str, Any]) -> Sampling:
    """What `config` says about sampling; what it doesn't name stays neutral.

    `do_sample: false` is greedy. Raises ValueError or TypeError for a value of the wrong kind.
    """
    named = {
        field: reading(config[name])
        for name, (field, reading) in NAMES.items()
        if config.get(name) is not None
    }
    if config.get("do_sample") is False:
        named["temperature"] = 0.0
    return Sampling(**named)


def read(folder: Path) -> Sampling | None:
    """The defaults of the model in `folder`; None where it has none, or nothing legible."""
    try:
        config = json.loads((folder / FILE).read_bytes())
        found = bounds.sound(sampling(config))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return found if found.requested() else None
