"""The interface between an engine and the store of computed beginnings.

A beginning is what a slot holds of one sequence: its cells as bytes, and snapshots of what of it
can't be cut (`backends.engines.snapshots`). The bytes are the engine's own. The store compares
tokens, and hands back what it was given, to an engine of the same identity alone.

The store lives in the gateway's process: what it knows outlives a model's container, and so the
process of an engine that has its own, which speaks to it through `backends.engines.kept`.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

BLOCK = 32  # tokens; a shorter beginning isn't kept, and what begins otherwise is another
WORD = array("q").itemsize
PIECE = 4 << 20  # bytes; the gateway's event loop copies one in a millisecond or two
SOON = 0.005  # seconds until what is `Coming` is looked for again, where nothing else is computed

Bytes: TypeAlias = npt.NDArray[np.uint8]
Tier: TypeAlias = Literal["memory", "disk"]


class TakenFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a sequence that was taken out besides its tokens and its bytes. `places`:
    cells before each of its snapshots. `cuts_from`: from so many cells on it can be cut without
    one. `seconds`: what computing it again would take.
    """

    owner: str
    conversation: str = ""  # its client's name for it
    cuts_from: int
    places: tuple[int, ...] = ()
    seconds: float = 0.0


class Taken(TakenFacts, frozen=True, eq=False, kw_only=True):
    """A sequence that was taken out. `tokens`: a number for each cell, below 0 for a picture's.
    `buffers`: the whole, and the state of each snapshot: what of the sequence can't be cut, as it
    was there.
    """

    tokens: Sequence[int]
    buffers: tuple[Bytes, ...]

    @property
    def whole(self) -> Bytes:
        return self.buffers[0]

    @property
    def parts(self) -> Iterable[tuple[int, Bytes]]:
        """The snapshots: cells, and the state behind them."""
        return zip(self.places, self.buffers[1:], strict=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each buffer."""
        return tuple(one.nbytes for one in self.buffers)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self.sizes)


class SavedSlot(msgspec.Struct, frozen=True, eq=False, tag=True, array_like=True):
    """The cells of a slot: of how many tokens, and as bytes that the same model takes back."""

    tokens: int
    data: Bytes  # gigabytes, perhaps: written once, and copied by nobody


class Found(msgspec.Struct, frozen=True, eq=False):
    """What is to be put back: a prompt can go on behind the first `start` of its cells. `seconds`:
    that it took to come here.
    """

    number: int
    taken: Taken
    start: int
    tier: Tier  # where it lay when it was looked for
    seconds: float = 0.0


class Pace(msgspec.Struct, frozen=True):
    """How a beginning is put back between the steps of other jobs: in pieces of so many bytes, and
    so many seconds of a step; one piece at least.
    """

    piece: int = 8 << 20
    seconds: float = 0.02


AT_EASE = Pace()


class Coming(msgspec.Struct, frozen=True):
    """A longer beginning is being read from disk: look again soon."""


class Beginnings(Protocol):
    """The store, as the engine of one model sees it. Called by the engine's thread. The answers
    here are those of one that keeps nothing.
    """

    def longest(self, owner: str, tokens: Sequence[int], than: int) -> Found | Coming | None:
        """The beginning of `tokens` that leaves the least of them to compute, if it leaves less
        than `than` cells do, by more than it takes to put it back.
        """
        return None

    def put_back(self, found: Found, tokens: int, seconds: float) -> None:
        """It was, in `seconds`, and `tokens` of a prompt needn't be computed."""
        return

    def wants(self, owner: str, tokens: Sequence[int], size: int, seconds: float) -> bool:
        """Whether a sequence is worth being taken out: it has `size` bytes, and computing it again
        would take `seconds`.
        """
        return False

    def keep(self, taken: Taken, seconds: float) -> None:
        """It was taken out, in `seconds`."""
        return


class NothingKept(Beginnings):
    """Where there is no store."""


@runtime_checkable
class Keeping(Protocol):
    """An engine that takes sequences out and puts them back. `kept` is set before its first job."""

    kept: Beginnings


def packed(tokens: Sequence[int]) -> bytes:
    """As an entry has them."""
    return array("q", tokens).tobytes()


def pieces(buffers: Iterable[Bytes]) -> Iterator[Bytes]:
    """What goes to another process or a disk at once, and what comes from there is written into."""
    for buffer in buffers:
        yield from (buffer[start : start + PIECE] for start in range(0, len(buffer), PIECE))


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """How many tokens, or other things, two sequences begin with alike; by bisection, so that
    slices compare at C speed.
    """
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
