"""When memory runs out or a pass breaks, in our words; and giving memory back."""

import gc
import traceback

import torch

from backends.errors import BackendError, GenerationFailed, OutOfMemory

# How torch says so where it raises a plain RuntimeError: on a CPU, from CUDA itself, from cuBLAS.
_WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Whether a foreign error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def while_generating(error: Exception) -> BackendError:
    """A foreign error in our words; a `BackendError` as it is."""
    if isinstance(error, BackendError):
        return error
    # Whoever keeps the error would keep the tensors of all frames that it came through.
    traceback.clear_frames(error.__traceback__)
    full = ran_out(error)
    said = str(error) if full else f"{type(error).__name__}: {error}"
    told = OutOfMemory if full else GenerationFailed
    made = told(f"{'memory ran out while generating' if full else 'the model failed'}: {said}")
    made.__cause__ = error
    return made


def give_back(device: torch.device) -> None:
    """Return what nobody holds any more to the machine. The CUDA context itself stays (some hundred
    MB).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
