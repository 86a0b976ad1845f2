"""exllamav3's options by the names of model lists and TabbyAPI. No engine."""

import re
from collections.abc import Mapping
from typing import Any

from backends.catalog import Installation, LoadFacts, Translation, Way, renamed
from backends.exllama import options as shared
from config.engines import EngineOptions, ExLlamaV3Options

CACHE = re.compile(r"fp16|q[2-8]|[2-8],[2-8]")


def _cache(mode: str) -> Mapping[str, Any]:
    """`Q8`, or bits of keys and values apart: `8,4`."""
    kind = mode.lower().replace(" ", "")
    if not CACHE.fullmatch(kind):
        raise ValueError("exllamav3 has FP16, Q8 to Q2, or bits of keys and values such as '8,4'")
    return {"cache_type": kind}


INSTALLATION = Installation(
    package="exllamav3",
    needs_card=True,
    ways={
        **shared.WAYS,
        "Linux, CUDA": Way("scripts/install exllamav3", note=shared.EXTENSION),
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    **shared.LOAD_OPTIONS,
    "cache_mode": _cache,
    "tensor_parallel": renamed("tensor_parallel"),
    "tensor_parallel_backend": renamed("tensor_parallel_backend"),
}


def facts(options: EngineOptions) -> LoadFacts:
    """See `OptionsModule.facts`."""
    assert isinstance(options, ExLlamaV3Options)
    return shared.facts(options, options.cache_type)
