"""The sampling defaults a GGUF file carries: what its model's `generation_config.json` said when it
was converted (llama.cpp's `gguf-py/gguf/constants.py`, `general.sampling.*`).

The order of samplers that a file may name is not looked at: it is the same on every engine here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from backends import generation_config
from backends.llamacpp.gguf import Header, read_header
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


def read(path: Path) -> Sampling | None:
    """Those of the GGUF file, else of a `generation_config.json` beside it; None for neither."""
    found = carried(read_header(path))
    return found if found.wished() else generation_config.read(path.parent)


def carried(header: Header) -> Sampling:
    """What the header says; what it doesn't name, or names in an odd way, stays neutral."""
    said = {name: header.metadata.get(f"general.sampling.{name}") for name in NAMES}
    return Sampling(
        **{
            NAMES[name][0]: NAMES[name][1](value)
            for name, value in said.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    )
