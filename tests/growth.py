"""Whether work is linear in its size, told by growth instead of by speed: a slow machine is slow at
both sizes.
"""

from collections.abc import Callable

GROWTH = 24  # at eight times the size: what is linear grows by 8, what is quadratic by 64
FASTEST = 1e-3  # seconds; what takes less is not measured well


def growth(seconds: Callable[[int], float], small: int, large: int) -> float:
    """How many times longer the large size takes; measured again while it seems too much.

    `seconds`: the CPU time that a size takes.
    """
    least = float("inf")
    for _ in range(4):
        least = min(least, seconds(large) / max(seconds(small), FASTEST))
        if least < GROWTH:
            break
    return least
