"""So much of something for all requests together: bytes, pixels. Knows not what is counted."""

import anyio

# ------------------------------------------------------------------------------------------ refused
# Why a picture can't be used. This room's own: `Pictures` adds whose picture it is.


class ImageRefused(Exception):
    """The message completes "The image …". A client reads it: it tells nothing of our network."""


class Quota:
    """Who asks for more than is left waits in line; one who asks for more than there is, until
    nobody else has any.
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
        """Returns when it is there. Whoever takes gives back."""
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
