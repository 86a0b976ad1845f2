"""The reading of prompts: when, whose is next, and how much at once. Pure: it knows no engine.

Pieces are whole blocks at fixed places of a prompt, so that how much is read at once, which follows
from what else runs, changes no bit of what is computed: llama.cpp's attention takes 64 rows
together on CPUs, and rounds otherwise, and more slowly, where there are fewer.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

BLOCK = 64
STEP_SECONDS = 0.05  # of a piece while others are answered: their tokens don't stall
ALONE_SECONDS = 0.2  # while nobody is: whoever comes waits no longer
ANSWERS_SHARE = 0.1  # of the time that pieces take is the answers' before the next piece
FIRST_GUESS = 2_000.0  # tokens of prompts per second, until measured
RECENT = 0.3  # weight of the newest measurement


class Prompt(Protocol):
    """A prompt that is read. `left`: tokens."""

    @property
    def left(self) -> int: ...


P = TypeVar("P", bound=Prompt)


class Prefill(msgspec.Struct, eq=False):
    """Fed with the times of steps; only the engine's thread calls it."""

    rate: float = FIRST_GUESS
    _owed: float = 0.0  # seconds to the answers
    _oldest: object = None
    _ahead: float = 0.0  # seconds of others' pieces, since it is the oldest prompt
    _is_ahead: bool = False  # whether the next piece is another's

    @property
    def is_due(self) -> bool:
        """Whether the next step is a prompt's, and no more of the answers'."""
        return self._owed <= 0

    def order(self, prompts: Sequence[P]) -> list[P]:
        """`prompts`, oldest first, in the order in which they are read next: the one with the least
        left first, as long as the oldest, which these delay, takes at most twice as long.
        """
        shortest = sorted(prompts, key=lambda prompt: prompt.left)
        oldest = prompts[0] if prompts else None
        if oldest is not self._oldest:
            self._oldest, self._ahead = oldest, 0.0
        if oldest is not None and self._ahead * self.rate >= oldest.left:
            shortest.remove(oldest)
            shortest.insert(0, oldest)
        self._is_ahead = shortest[:1] != [oldest]
        return shortest

    def piece(self, left: int, room: int, *, answering: bool) -> int:
        """How many of the `left` tokens are read at once; `room` are the most. What is less than a
        block behind the last of them is read with it.
        """
        timely = int(self.rate * (STEP_SECONDS if answering else ALONE_SECONDS))
        count = max(BLOCK, min(timely, room - BLOCK) // BLOCK * BLOCK)
        return min(room, left if left < count + BLOCK else count)

    def read(self, tokens: int, seconds: float) -> None:
        """A piece of so many tokens took so long."""
        self._owed = ANSWERS_SHARE * seconds
        self._ahead += seconds * self._is_ahead
        if tokens >= BLOCK:
            self.rate += RECENT * (tokens / max(seconds, 1e-6) - self.rate)

    def answered(self, seconds: float) -> None:
        """A step of answers took so long."""
        self._owed -= seconds
