"""The sampling defaults a GGUF file carries: what its model's `generation_config.json` said when it
was converted (llama.cpp's `gguf-py/gguf/constants.py`, `general.sampling.*`).

The order of samplers that a file may name is not read: it is the same on every engine here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from backends import bounds
from backends.llamacpp.gguf import Header
from backends.protocol import Sampling

# Its name behind `general.sampling.`, our field, how its value is read.
NAMES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "penalty_repeat": ("repetition_penalty", float),
    "penalty_last_n": ("penalty_range", int),
    "mirostat": ("mirostat_mode", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}


def carried(header: Header) -> Sampling | None:
    """What the header says; what it doesn't name, or names in an odd way, stays neutral, and so
    does what no request could ask for (`backends.bounds`).
    """
    named = {name: header.metadata.get(f"general.sampling.{name}") for name in NAMES}
    found = Sampling(
        **{
            NAMES[name][0]: NAMES[name][1](value)
            for name, value in named.items()
            if isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
        }
    )
    found = bounds.sound(found)
    return found if found.requested() else None
