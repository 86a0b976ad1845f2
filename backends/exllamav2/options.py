"""exllamav2's options by the names of model lists and TabbyAPI. No engine."""

from collections.abc import Mapping
from typing import Any

import msgspec

from backends.catalog import Installation, LoadFacts, Translation, Way, renamed
from backends.exllama import options as shared
from config.engines import EngineOptions, ExLlamaV2Options

CACHES = ("fp16", "q8", "q6", "q4")


def _cache(option: str) -> Translation:
    def translated(mode: str) -> Mapping[str, Any]:
        if mode.lower() not in CACHES:
            raise ValueError("exllamav2 has FP16, Q8, Q6 and Q4")
        return {option: mode.lower()}

    return translated


INSTALLATION = Installation(
    package="exllamav2",
    needs_card=True,
    ways={
        **shared.WAYS,
        "Linux, CUDA": Way(
            "scripts/install exllamav2", note=f"{shared.EXTENSION}; flash-attn to batch"
        ),
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    **shared.LOAD_OPTIONS,
    "cache_mode": _cache("cache_type"),
    "draft_mode": shared.drafting(shared.NO_DRAFTS),
    "draft_cache_mode": _cache("draft_cache_type"),
    "rope_scale": renamed("rope_scale"),
    "rope_alpha": renamed("rope_alpha"),
}


def facts(options: EngineOptions) -> LoadFacts:
    """See `OptionsModule.facts`."""
    assert isinstance(options, ExLlamaV2Options)
    return msgspec.structs.replace(
        shared.facts(options, options.cache_type),
        rope_scale=options.rope_scale,
        rope_alpha=options.rope_alpha,
    )
