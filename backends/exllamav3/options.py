"""exllamav3's options by the names of model lists and TabbyAPI. No engine."""

import re
from collections.abc import Mapping
from typing import Any

from backends.catalog import Installation, LoadFacts, Translation, Way, renamed
from backends.exllama import options as shared
from config.engines import EngineOptions, ExLlamaV3Options

CACHE = re.compile(r"fp16|q[2-8]|[2-8],[2-8]")


def _cache(option: str) -> Translation:
    """`Q8`, or bits of keys and values apart: `8,4`."""

    def translated(mode: str) -> Mapping[str, Any]:
        kind = mode.lower().replace(" ", "")
        if not CACHE.fullmatch(kind):
            raise ValueError(
                "exllamav3 has FP16, Q8 to Q2, or bits of keys and values such as '8,4'"
            )
        return {option: kind}

    return translated


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
    "cache_mode": _cache("cache_type"),
    "draft_mode": shared.drafting({**shared.NO_DRAFTS, "mtp": False}, "mtp"),
    "draft_cache_mode": _cache("draft_cache_type"),
    "dynamic_draft": renamed("dynamic_draft_tokens"),
    "ngram_match_min": renamed("ngram_match_min"),
    "sysmem_kv_cache": renamed("cpu_cache_size"),
    "sysmem_recurrent_cache": renamed("recurrent_cache_size"),
    "cpu_moe_offload_layers": renamed("moe_cpu_offload"),
    "tensor_parallel": renamed("tensor_parallel"),
    "tensor_parallel_backend": renamed("tensor_parallel_backend"),
}


def facts(options: EngineOptions) -> LoadFacts:
    """See `OptionsModule.facts`."""
    assert isinstance(options, ExLlamaV3Options)
    return shared.facts(options, options.cache_type)
