"""When memory runs out, and giving it back."""

import gc

import torch

# How torch says so where it raises a plain RuntimeError: on a CPU, from CUDA itself, from cuBLAS.
_WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Whether a foreign error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def give_back(device: torch.device) -> None:
    """Return what nobody holds any more to the machine. The CUDA context itself stays (some hundred
    MB).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
