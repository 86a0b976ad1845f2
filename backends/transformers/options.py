"""The options of transformers by the names of model lists and TabbyAPI. No engine."""

from collections.abc import Mapping

from backends.catalog import IN_WSL, SUITE, Installation, LoadFacts, Translation, Way, renamed
from config.engines import EngineOptions, TransformersOptions

INSTALLATION = Installation(
    package="torch",
    others=("transformers", "accelerate", "safetensors"),
    for_cards="TORCH_INDEX=… scripts/install transformers",
    ways={
        "Linux, CPUs": Way("scripts/install transformers", SUITE),
        "Linux, CUDA": Way("TORCH_INDEX=… scripts/install transformers"),
        "Linux, ROCm": Way("TORCH_INDEX=… scripts/install transformers"),
        "Linux, Vulkan": Way("", note="torch has no build for it"),
        "macOS (Metal)": Way("scripts/install transformers", note="on CPUs: MPS is not used"),
        "Windows": IN_WSL,
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {"cache_size": renamed("cache_tokens")}


def facts(options: EngineOptions) -> LoadFacts:
    """See `OptionsModule.facts`."""
    assert isinstance(options, TransformersOptions)
    return LoadFacts(cache_tokens=options.cache_tokens, adapters=tuple(options.adapters))
