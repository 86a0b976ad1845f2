"""What we use of exllamav2, as one value that everything else here is given.

Importing exllamav2 compiles or loads its CUDA extension and fails where there is no card, so it is
imported by `installed` alone, when a model is loaded; tests give a stand-in instead.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import msgspec

from backends.errors import BackendError, BackendMissing, GenerationFailed, OutOfMemory

INSTEAD = "the same model as GGUF or as plain safetensors runs without it"
RAN_OUT = (
    "out of memory",  # CUDA's and HIP's words
    "Insufficient VRAM",  # load_autosplit
    "Insufficient space in device allocation",  # load with gpu_split
)


class Library(msgspec.Struct, frozen=True):
    """Classes of exllamav2 0.3.2, and the few facts about the machine that depend on it."""

    config: Any  # ExLlamaV2Config
    model: Any  # ExLlamaV2
    caches: Mapping[str, Any]  # ExLlamaV2Cache…, by our name of the type
    tokenizer: Any  # ExLlamaV2Tokenizer
    lora: Any  # ExLlamaV2Lora
    vision: Any  # ExLlamaV2VisionTower
    generator: Any  # ExLlamaV2DynamicGenerator
    job: Any  # ExLlamaV2DynamicJob
    settings: Any  # ExLlamaV2Sampler.Settings
    assert_paged: Callable[[], None]  # exllamav2.attn.assert_paged_attn
    devices: int  # CUDA cards


def installed() -> Library:
    """The real one. The first import on a machine compiles for minutes. Raises BackendMissing."""
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as error:
        raise BackendMissing(
            f"exllamav2 needs torch, which can't be used here ({error}). "
            "Install it: pip install 'roundhouse[exllamav2]'"
        ) from error
    if not torch.cuda.is_available():
        raise BackendMissing(
            f"exllamav2 needs a CUDA card, and torch {torch.__version__} finds none here; {INSTEAD}"
        )
    try:
        return _imported(torch.cuda.device_count())
    except ImportError as error:
        raise BackendMissing(
            f"exllamav2 isn't installed ({error}). Install it: pip install 'roundhouse[exllamav2]'"
        ) from error
    except Exception as error:  # compiling can fail in any way: no nvcc, no compiler, no space
        raise BackendMissing(
            f"exllamav2 can't be used here ({type(error).__name__}: {error}). It compiles its CUDA "
            f"extension with nvcc and a C++ compiler, which must fit torch; {INSTEAD}"
        ) from error


def _imported(devices: int) -> Library:
    package = import_module("exllamav2")
    generator = import_module("exllamav2.generator")
    return Library(
        config=package.ExLlamaV2Config,
        model=package.ExLlamaV2,
        caches={
            "fp16": package.ExLlamaV2Cache,
            "q8": package.ExLlamaV2Cache_Q8,
            "q6": package.ExLlamaV2Cache_Q6,
            "q4": package.ExLlamaV2Cache_Q4,
        },
        tokenizer=package.ExLlamaV2Tokenizer,
        lora=package.ExLlamaV2Lora,
        vision=package.ExLlamaV2VisionTower,
        generator=generator.ExLlamaV2DynamicGenerator,
        job=generator.ExLlamaV2DynamicJob,
        settings=generator.ExLlamaV2Sampler.Settings,
        assert_paged=import_module("exllamav2.attn").assert_paged_attn,
        devices=devices,
    )


def ran_out(error: BaseException) -> bool:
    """Whether a foreign error means that memory ran out; some tell it in words only."""
    told = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return told or any(words in str(error) for words in RAN_OUT)


def while_generating(error: Exception) -> BackendError:
    """A foreign error, in our words."""
    if isinstance(error, BackendError):
        return error
    if ran_out(error):
        return OutOfMemory(f"memory ran out while generating: {error}")
    return GenerationFailed(f"exllamav2 failed: {type(error).__name__}: {error}")
