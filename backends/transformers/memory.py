"""When memory runs out, and giving it back."""

import gc

import torch


def ran_out(error: BaseException) -> bool:
    """Whether a foreign error means that memory ran out; on a CPU torch says so in words only."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def give_back(device: torch.device) -> None:
    """Return what nobody holds any more to the machine. The CUDA context itself stays (some hundred
    MB).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
