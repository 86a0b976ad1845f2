"""The responses of one connection that aren't stored: its next request may go on from them.

Bounded in number and in bytes, which count as held by requests (`holding`): what finds no room, and
what was said before the last `MOST_TURNS`, is forgotten. Knows bytes; no JSON and no connection.
"""

from collections.abc import Sequence

import msgspec

from gateway.http.holding import RequestHolding
from gateway.keys.store import KeptTurn
from gateway.terms.errors import QueueFull

MOST_TURNS = 1024  # of one connection
MOST_BYTES = 64 << 20  # likewise


class _Remembered(msgspec.Struct, frozen=True):
    turn: KeptTurn
    held: RequestHolding

    @property
    def size(self) -> int:
        return len(self.turn.input) + len(self.turn.output)


class Memory:
    """A connection's. `apart` counts what a turn holds."""

    def __init__(self, held: RequestHolding) -> None:
        self._held = held
        self._turns: dict[str, _Remembered] = {}  # the oldest first
        self._size = 0

    def __len__(self) -> int:
        return len(self._turns)

    def keep(self, name: str, turn: KeptTurn) -> None:
        """From now on `name` can be gone on from, if there is room: else its client is told when it
        tries, and sends the whole conversation.
        """
        one = _Remembered(turn, self._held.apart())
        if one.size > MOST_BYTES:
            return
        while len(self._turns) >= MOST_TURNS or self._size + one.size > MOST_BYTES:
            self.forget(next(iter(self._turns)))
        try:
            one.held.take(one.size)
        except QueueFull:
            return
        self._turns[name] = one
        self._size += one.size

    def chain(self, name: str) -> Sequence[tuple[str, KeptTurn]]:
        """The turns that lead to `name` and itself, the oldest first, as far as they are here."""
        found: list[tuple[str, KeptTurn]] = []
        wanted: str | None = name
        while wanted is not None and (one := self._turns.get(wanted)) is not None:
            found.append((wanted, one.turn))
            wanted = one.turn.previous
        return found[::-1]

    def forget(self, name: str) -> None:
        """It can't be gone on from here any more."""
        if (one := self._turns.pop(name, None)) is not None:
            one.held.give_back()
            self._size -= one.size

    def clear(self) -> None:
        """The connection is over."""
        for name in list(self._turns):
            self.forget(name)
