"""llama.cpp's options by the names of model lists and TabbyAPI. No engine."""

from collections.abc import Mapping
from typing import Any

from backends import prebuilt
from backends.catalog import IN_WSL, SUITE, Installation, LoadFacts, Translation, Way, renamed
from config.engines import EngineOptions, LlamaCppOptions

_CACHE_TYPES = {  # by TabbyAPI's names, and by bits
    "fp16": "f16",
    "q8": "q8_0",
    "q4": "q4_0",
    "8": "q8_0",
    "5": "q5_1",
    "4": "q4_0",
}


def _cache(mode: str) -> Mapping[str, Any]:
    """`Q8`, or keys and values apart, by bits: `8,4`."""
    parts = [part.strip().lower() for part in mode.split(",")]
    if len(parts) not in (1, 2) or not all(part in _CACHE_TYPES for part in parts):
        raise ValueError("llamacpp has FP16, Q8 and Q4, or bits of keys and values such as '8,4'")
    keys, values = parts[0], parts[-1]
    return {"cache_type_k": _CACHE_TYPES[keys], "cache_type_v": _CACHE_TYPES[values]}


def _frequency_scale(scale: float) -> Mapping[str, Any]:
    """llama.cpp scales frequencies, TabbyAPI positions."""
    return {"rope_freq_scale": 1 / scale}


INSTALLATION = Installation(
    package="llama-cpp-python",
    described=prebuilt.described,
    for_cards=prebuilt.compiling("-DGGML_CUDA=on"),
    uses_shared=True,
    ways={
        "Linux, CPUs": Way("make run", SUITE),
        "Linux, CUDA": Way("make run", note="prebuilt; nvcc to compile"),
        "Linux, ROCm": Way("make run", note="prebuilt for Vulkan; hipcc to compile"),
        "Linux, Vulkan": Way(
            "CMAKE_ARGS=-DGGML_VULKAN=on make run",
            tried="`make test-vulkan`, on Mesa's software device only (llvmpipe)",
            note="Vulkan's headers and glslc",
        ),
        "macOS (Metal)": Way("make run"),
        "Windows": IN_WSL,
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    "cache_size": renamed("cache_tokens"),
    "cache_mode": _cache,
    "gpu_split": renamed("tensor_split"),
    "chunk_size": renamed("batch_size"),
    "rope_scale": _frequency_scale,
    "vision": renamed("vision"),
}


def facts(options: EngineOptions) -> LoadFacts:
    """See `OptionsModule.facts`."""
    assert isinstance(options, LlamaCppOptions)
    scale = options.rope_freq_scale
    return LoadFacts(
        cache_tokens=options.cache_tokens,
        cache_mode=_cache_mode(options.cache_type_k, options.cache_type_v),
        rope_scale=1 / scale if scale else None,
        chunk_size=options.batch_size,
    )


def _cache_mode(keys: str, values: str) -> str:
    both = (keys,) if keys == values else (keys, values)
    return ",".join(kind.upper().replace("F16", "FP16").removesuffix("_0") for kind in both)
