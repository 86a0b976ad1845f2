"""Exceptions of exllamav2 and exllamav3 as errors of ours."""

from backends.contract import errors
from backends.contract.errors import BackendError, LoadFailed, OutOfMemory

RAN_OUT = (
    "out of memory",  # CUDA's and HIP's messages
    "Insufficient VRAM",  # where layers are placed automatically
    "Insufficient space in device allocation",  # exllamav2, with gpu_split
)


def ran_out(error: BaseException) -> bool:
    """Whether a foreign error means that memory ran out; some have it only in the message."""
    is_named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return is_named or any(words in str(error) for words in RAN_OUT)


def while_generating(name: str, error: Exception) -> BackendError:
    """A foreign error of the library `name`, as one of ours."""
    return errors.while_generating(error, name, full=ran_out(error))


def while_loading(name: str, model: str, error: Exception) -> BackendError:
    """As `while_generating`, for an error met while `model` was loaded."""
    if isinstance(error, BackendError):
        return error.with_traceback(None)
    if ran_out(error):
        return OutOfMemory(f"not enough memory for {model}: {error}")
    return LoadFailed(f"{name} can't load {model}: {type(error).__name__}: {error}")
