"""TabbyAPI's load options as the options of our engines. A wish that an engine can't meet is named.

A name that TabbyAPI doesn't have passes through: it may be one of ours, and who loads the model
says so if it isn't. Options that run code or name files are the configuration's alone.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from config.models import CONFIGURED_ONLY
from gateway.errors import InvalidRequest

Options: TypeAlias = dict[str, Any]
Translation: TypeAlias = Callable[[Any], Options]

_LLAMACPP_CACHES = {
    "fp16": "f16",
    "q8": "q8_0",
    "q4": "q4_0",
    "8": "q8_0",
    "5": "q5_1",
    "4": "q4_0",
}
_EXLLAMAV2_CACHES = ("fp16", "q8", "q6", "q4")
_EXLLAMAV3_CACHE = re.compile(r"fp16|q[2-8]|[2-8],[2-8]")


def _as(name: str) -> Translation:
    """The same value under our name."""
    return lambda value: {name: value}


def _llamacpp_cache(mode: str) -> Options:
    """`Q8`, or keys and values apart, by bits: `8,4`."""
    parts = [part.strip().lower() for part in mode.split(",")]
    if len(parts) not in (1, 2) or not all(part in _LLAMACPP_CACHES for part in parts):
        raise ValueError("llamacpp has FP16, Q8 and Q4, or bits of keys and values such as '8,4'")
    keys, values = parts[0], parts[-1]
    return {"cache_type_k": _LLAMACPP_CACHES[keys], "cache_type_v": _LLAMACPP_CACHES[values]}


def _exllamav2_cache(mode: str) -> Options:
    if mode.lower() not in _EXLLAMAV2_CACHES:
        raise ValueError("exllamav2 has FP16, Q8, Q6 and Q4")
    return {"cache_type": mode.lower()}


def _exllamav3_cache(mode: str) -> Options:
    """`Q8`, or bits of keys and values apart: `8,4`."""
    kind = mode.lower().replace(" ", "")
    if not _EXLLAMAV3_CACHE.fullmatch(kind):
        raise ValueError("exllamav3 has FP16, Q8 to Q2, or bits of keys and values such as '8,4'")
    return {"cache_type": kind}


def _frequency_scale(scale: float) -> Options:
    """llama.cpp scales frequencies, TabbyAPI positions."""
    return {"rope_freq_scale": 1 / scale}


_ANY: Mapping[str, Translation] = {
    "max_seq_len": _as("context_length"),
    "max_batch_size": _as("max_concurrent"),
}
_LLAMACPP: Mapping[str, Translation] = {
    "cache_size": _as("cache_tokens"),
    "cache_mode": _llamacpp_cache,
    "gpu_split": _as("tensor_split"),
    "chunk_size": _as("batch_size"),
    "rope_scale": _frequency_scale,
}
_EXLLAMA: Mapping[str, Translation] = {
    "cache_size": _as("cache_tokens"),
    "gpu_split": _as("gpu_split"),
    "autosplit_reserve": _as("autosplit_reserve"),
    "chunk_size": _as("chunk_size"),
}
_EXLLAMAV2: Mapping[str, Translation] = {
    **_EXLLAMA,
    "cache_mode": _exllamav2_cache,
    "rope_scale": _as("rope_scale"),
    "rope_alpha": _as("rope_alpha"),
}
_EXLLAMAV3: Mapping[str, Translation] = {
    **_EXLLAMA,
    "cache_mode": _exllamav3_cache,
    "tensor_parallel": _as("tensor_parallel"),
}
_BACKENDS: Mapping[str, Mapping[str, Translation]] = {
    "llamacpp": _LLAMACPP,
    "exllamav2": _EXLLAMAV2,
    "exllamav3": _EXLLAMAV3,
    "transformers": {"cache_size": _as("cache_tokens")},
}

# What frontends send in every body, and what it then means: nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "max_seq_len": (-1,),
    "rope_scale": (1.0,),
    "rope_alpha": (1.0, "auto"),
    "gpu_split": ([],),
    "gpu_split_auto": (True, False),  # a split itself says that it is not automatic
    "autosplit_reserve": ([],),
    "cache_mode": ("FP16", "fp16"),
    "tensor_parallel": (False,),
    "tensor_parallel_backend": ("native", "nccl"),
    "output_chunking": (True, False),
    "skip_queue": (True, False),
    "fasttensors": (True, False),
}


def engine_options(asked: Mapping[str, Any], backend: str) -> Options:
    """The options of `backend` that `asked` means.

    Raises InvalidRequest, which names the option as the client wrote it.
    """
    known = {**_ANY, **_BACKENDS.get(backend, {})}
    automatic = asked.get("gpu_split_auto") is True  # then a split is only a leftover of the form
    options: Options = {}
    for name, value in asked.items():
        if value in _NEUTRAL.get(name, ()) or (automatic and name == "gpu_split"):
            continue
        if name in known:
            options |= _translated(known[name], name, value)
        elif name in _NEUTRAL or any(name in names for names in _BACKENDS.values()):
            raise InvalidRequest(f"{backend} has no option like {name}", param=name)
        elif name in CONFIGURED_ONLY:
            text = f"{name} runs code or names files, so it is set in the configuration alone"
            raise InvalidRequest(text, param=name)
        else:
            options[name] = value
    return options


def _translated(translation: Translation, name: str, value: Any) -> Options:
    try:
        return translation(value)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from None
