"""Stands for triton, in exllamav3's modules alone: its kernels are compiled when they are first
called, and none of them is here.
"""

from collections.abc import Callable
from typing import Any


class Kernel:
    """A kernel as it is written, which no grid runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        raise NotImplementedError(f"{self.fn.__name__} needs a card")


def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    return jit if function is None else Kernel(function)


def cdiv(count: int, size: int) -> int:
    return -(-count // size)


def next_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


class Language:
    """What kernels are written in: names, for annotations."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name

    @staticmethod
    def constexpr(value: object = None) -> object:
        return value


language = Language()
