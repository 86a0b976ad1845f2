"""The shared options of exllamav2 and exllamav3 by the names of model lists and TabbyAPI. No
engine.
"""

from collections.abc import Mapping
from typing import Any

from backends.catalog import IN_WSL, LoadFacts, Platform, Translation, Way, renamed
from config.engines import ExLlamaOptions

EXTENSION = "nvcc: the extension is compiled during the installation"
_NEEDS_CUDA = Way("", note="needs CUDA")
WAYS: Mapping[Platform, Way] = {  # an engine adds its own for CUDA
    "Linux, CPUs": _NEEDS_CUDA,
    "Linux, ROCm": _NEEDS_CUDA,
    "Linux, Vulkan": _NEEDS_CUDA,
    "macOS (Metal)": _NEEDS_CUDA,
    "Windows": IN_WSL,
}

NO_DRAFTS: Mapping[str, Any] = {"draft_model": None, "ngram_speculation": False}


def drafting(none: Mapping[str, Any], *others: str) -> Translation:
    """TabbyAPI's `draft_mode`: "disabled", which is `none`, "ngram", or the option of that name."""
    switches = {"ngram": "ngram_speculation", **{name: name for name in others}}
    known = {"disabled": none, **{mode: {**none, switches[mode]: True} for mode in switches}}

    def translated(mode: object) -> Mapping[str, Any]:
        if not isinstance(mode, str) or mode not in known:
            raise ValueError(f"the modes are model, {', '.join(known)}")
        return known[mode]

    return translated


LOAD_OPTIONS: Mapping[str, Translation] = {
    "cache_size": renamed("cache_tokens"),
    "gpu_split": renamed("gpu_split"),
    "autosplit_reserve": renamed("autosplit_reserve"),
    "chunk_size": renamed("chunk_size"),
    "draft_model": renamed("draft_model"),
    "draft_num_tokens": renamed("draft_tokens"),
    "draft_gpu_split": renamed("draft_gpu_split"),
    "vision": renamed("vision"),
}


def facts(options: ExLlamaOptions, cache_type: str) -> LoadFacts:
    """See `OptionsModule.facts`."""
    return LoadFacts(
        cache_tokens=options.cache_tokens,
        cache_mode=cache_type.upper(),
        chunk_size=options.chunk_size,
        draft_model=options.draft_model,
        adapters=tuple(options.adapters),
    )
