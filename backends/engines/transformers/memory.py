"""Out of memory and failed passes as our errors; and giving memory back."""

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from backends.contract import errors
from backends.contract.errors import BackendError

# torch's messages where it raises a plain RuntimeError: on a CPU, from CUDA itself, from cuBLAS.
_WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Whether a foreign error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def while_generating(error: Exception) -> BackendError:
    """A foreign error as one of ours; a `BackendError` as it is."""
    translated = errors.while_generating(error, "the model", full=ran_out(error))
    if translated is not error:
        # A kept error would keep the tensors of all frames that it came through.
        traceback.clear_frames(error.__traceback__)
        translated.__cause__ = error
    return translated


@contextmanager
def in_our_words() -> Iterator[None]:
    """Whatever is raised inside comes out as a `BackendError`."""
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        raise while_generating(error) from error


def give_back(device: torch.device) -> None:
    """Return unreferenced memory to the system. CUDA's context stays (some hundred MB)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
