"""A dictionary that forgets."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(dict[K, V]):
    """The `most` entries that were set last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)  # the last one stands last
        super().__setitem__(key, value)
        while len(self) > self._most:
            del self[next(iter(self))]
