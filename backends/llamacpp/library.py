"""The C functions the loop calls, bound so that they keep the GIL.

ctypes releases the GIL around every call. For calls of a microsecond that is a trap: the event
loop's thread takes the GIL meanwhile and the engine's thread waits for it to come back, sixteen
times a step. Short calls are therefore bound through `ctypes.PyDLL`, which keeps it; only
`llama_decode` and `llama_synchronize`, which take long, go through the binding that releases it.
With the bundled model the difference is within the noise (benchmarks/README.md).
"""

import ctypes
from collections.abc import Callable
from typing import Any

from llama_cpp import llama_cpp as api

# Sampling a token takes 10 µs for each 1,000 tokens of the vocabulary, measured on one core: up to
# here that is less than giving up the GIL and getting it back may take.
SMALL_VOCABULARY = 4_096


def keeping_gil(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same C function, called without releasing the GIL."""
    library = ctypes.PyDLL(api._lib._name)  # noqa: SLF001 - the path of the library that is loaded already
    bound = getattr(library, function.__name__)
    bound.argtypes = function.argtypes  # type: ignore[attr-defined]
    bound.restype = function.restype  # type: ignore[attr-defined]
    return bound  # type: ignore[no-any-return]
