"""A quota that all requests share: bytes, pixels. Doesn't know the unit."""

import anyio

# ------------------------------------------------------------------------------------------ refused
# Why a picture can't be used. Internal to this package: `ImageLoader` adds which picture it is.


class ImageRefused(Exception):
    """The message completes "The image …". A client reads it: it has nothing of our network."""


class Quota:
    """A request for more than is left waits in line; one for more than the whole quota, until all
    of it is free.
    """

    def __init__(self, total: int) -> None:
        self._total = self._left = total
        self._line = anyio.Lock()  # first come, first served
        self._given_back = anyio.Event()

    def apply(self, total: int) -> None:
        """There is so much from now on; what was taken stays taken."""
        self._left += total - self._total
        self._total = total
        self._given_back.set()

    async def take(self, amount: int) -> None:
        """Returns when it is available. The caller gives back what it took."""
        if amount == 0:
            return
        async with self._line:
            while self._left < min(amount, self._total):
                self._given_back = anyio.Event()
                await self._given_back.wait()
            self._left -= amount

    def take_now(self, amount: int) -> bool:
        """Whether there was so much left; nothing is taken otherwise."""
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def give_back(self, amount: int) -> None:
        """Without an await, so that no cancellation loses it."""
        self._left += amount
        self._given_back.set()
