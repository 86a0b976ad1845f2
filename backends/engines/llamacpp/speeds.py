"""Which library is faster for a family of models on this machine, as it was measured at the first
load of one of them (`backends.engines.llamacpp.race`). Imports no library.

A family: models of an architecture, of the same types and about the same size, for one request at a
time or for several.
"""

import hashlib
import platform
from functools import cache
from pathlib import Path

import msgspec

from backends.contract.catalog import ModelFiles
from backends.machine import ik, prebuilt
from config.engines import LlamaCppOptions
from config.values import user_folder

LARGEST = 2 << 30  # bytes of weights that are loaded twice to be measured


def remembered(files: ModelFiles, options: LlamaCppOptions) -> float | None:
    """How many times as fast as llama.cpp ik_llama.cpp was; 0: it ended the process. None: that
    isn't known.
    """
    try:
        return float(noted(files, options).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def noted(files: ModelFiles, options: LlamaCppOptions) -> Path:
    """The file that says it, named after all that it depends on."""
    model = files.architecture, sorted(set(files.types)), files.size_bytes.bit_length()
    facts = _here(), model, options.max_concurrent > 1
    digest = hashlib.sha256(msgspec.json.encode(facts)).hexdigest()
    return user_folder() / "speeds" / digest[:32]


@cache
def _here() -> tuple[str, ...]:
    """The processors, and the libraries: looked up once, since plans ask for a speed many times."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text("utf-8").splitlines() if known.exists() else []
    names = [line for line in lines if line.startswith("model name")]
    built = prebuilt.described(), ik.PACKAGE, ik.TRIED
    return (platform.machine(), platform.processor(), *names, *built)
