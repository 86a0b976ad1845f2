"""torch as it is where CUDA cards are, for modules that believe so: their memory and their work are
the CPU's. The torch of all other modules stays as it is.
"""

import ctypes
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import psutil
import torch

MAKERS = (
    "arange",
    "empty",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
)
LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like")
CPU = torch.device("cpu")


def place(device: Any = None, index: int | None = None) -> torch.device:
    """As `torch.device`; a card is the CPU."""
    if isinstance(device, int) or str(device).startswith("cuda"):
        return CPU
    return torch.device(device) if index is None else torch.device(device, index)


class Device(type):
    """So that `isinstance(found, torch.device)` holds of real ones."""

    def __call__(cls, *arguments: Any, **named: Any) -> torch.device:
        return place(*arguments, **named)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.device)


class AnyDevice(metaclass=Device):
    """Stands for `torch.device`."""


class Nothing:
    """A stream, an event: there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Cuda:
    """`torch.cuda` with `cards` cards, of any size where it isn't `limited`."""

    Stream = Event = Nothing
    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, cards: int) -> None:
        self._cards = cards
        self._free: list[float] = [math.inf] * cards

    @contextmanager
    def limited(self, *sizes: int) -> Iterator[None]:
        """Cards of so many bytes, of which those count that tensors are made with."""
        self._free = list(sizes)
        try:
            yield
        finally:
            self._free = [math.inf] * self._cards

    def take(self, card: int, tensor: torch.Tensor) -> None:
        """It lies there as long as somebody has it. Raises OutOfMemoryError."""
        if self._free[card] < tensor.nbytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {tensor.nbytes}")
        self._free[card] -= tensor.nbytes
        weakref.finalize(tensor, self._give_back, card, tensor.nbytes)

    def _give_back(self, card: int, count: int) -> None:
        self._free[card] += count

    def is_available(self) -> bool:
        return self._cards > 0

    def device_count(self) -> int:
        return self._cards

    def get_device_name(self, device: Any = None) -> str:
        return "no card"

    def get_device_properties(self, device: Any = None) -> Any:
        return SimpleNamespace(major=8, minor=0, total_memory=psutil.virtual_memory().total)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return (8, 0)

    def get_arch_list(self) -> list[str]:
        return ["sm_80"]

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: Any = None) -> Nothing:
        return Nothing()

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def device(self, device: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """What this process holds is what is taken, but for what malloc keeps for later."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        total = psutil.virtual_memory().total
        return total - psutil.Process().memory_info().rss, total

    def memory_allocated(self, device: Any = None) -> int:
        return 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Of `synchronize`, `empty_cache`, `set_stream` and the like nothing is left to do."""
        if name.startswith("_") or name not in dir(torch.cuda):
            raise AttributeError(name)
        return lambda *_, **__: None


class TorchWithCards(ModuleType):
    """Whatever isn't written here is torch's own."""

    def __init__(self, cards: int) -> None:
        super().__init__("torch")
        self.cuda = Cuda(cards)
        self.device = AnyDevice
        self.version = SimpleNamespace(cuda="12.8", hip=None)
        self.torch = self
        for name in MAKERS + LIKE:
            setattr(self, name, on_the_cpu(getattr(torch, name), self.cuda))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def on_the_cpu(make: Callable[..., torch.Tensor], cuda: Cuda) -> Callable[..., torch.Tensor]:
    """`make`, whose tensors for a card are the CPU's."""

    def made(*arguments: Any, **named: Any) -> torch.Tensor:
        named.pop("pin_memory", None)  # there is no card that could read it
        device = named.pop("device", None)
        if device is None:
            return make(*arguments, **named)
        tensor = make(*arguments, **named, device=place(device))
        if str(device).startswith("cuda:"):
            cuda.take(int(str(device).removeprefix("cuda:")), tensor)
        return tensor

    return made
