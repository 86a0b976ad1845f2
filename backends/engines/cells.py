"""Prefix caching: which slot of the KV cache a prompt starts in, and how many of its tokens are
there already. Pure.

A slot is one sequence of an engine's KV cache. When its job is over the cells stay, so that the
conversation's next turn, or another request that begins alike, does not compute them again. Where
a sequence can't be cut at any place, a prompt starts from a snapshot of it
(`backends.engines.snapshots`). It knows no engine.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from backends.contract.beginnings import common_length

WORTHWHILE = 8  # a shorter shared beginning isn't worth a copy, or giving up another slot's cells
FEW = 16  # cells that may be given up rather than a sequence copied
COPIED = 1 << 20  # bytes; so many more for each of them, since a copy takes its time, too


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """What of a sequence can't be cut, as it was behind the first `cells` of its cells. `state` is
    the engine's, of `size` bytes. The cells that can be cut are in the sequence itself.
    """

    cells: int
    state: Any
    size: int


class Slot(msgspec.Struct, eq=False):
    """One sequence: the tokens whose cells it holds, and whether a job uses it. `index` is its
    engine's number for it.
    """

    index: int
    tokens: list[int] = []
    # Whose tokens they are; no prompt of another finds them. None: they came out of a file.
    owner: str | None = ""
    conversation: str = ""  # what its client calls it
    adapters: tuple[float, ...] = ()  # how strongly each counts in these cells
    named: bool = False  # its job asked for this one
    snapshots: list[Snapshot] = []  # ascending
    cuts_from: int = 0  # from here on it can be cut without a snapshot
    lacks_states: bool = False  # it is being put back, and these come last: nothing can go on
    busy: bool = False
    used: int = 0  # the clock's reading when it was last released

    def start(self, shared: int) -> int:
        """How many of its first `shared` cells a prompt can go on from."""
        if self.lacks_states:
            return 0
        if shared >= min(self.cuts_from, len(self.tokens)):
            return shared
        snapshot = self.snapshot(shared)
        return snapshot.cells if snapshot else 0

    def snapshot(self, cells: int) -> Snapshot | None:
        """The farthest behind no more than `cells`."""
        return next((one for one in reversed(self.snapshots) if one.cells <= cells), None)

    def shorten(self, cells: int) -> None:
        """No more than the first `cells` are left."""
        del self.tokens[cells:]
        while self.snapshots and self.snapshots[-1].cells > cells:
            self.snapshots.pop()

    def copy(self, source: "Slot") -> None:
        """It holds what `source` holds."""
        self.tokens, self.snapshots = list(source.tokens), list(source.snapshots)
        self.owner, self.conversation = source.owner, source.conversation
        self.adapters = source.adapters


class Placement(msgspec.Struct, frozen=True):
    """Start in `slot` with `keep` tokens in place, taken from `source` first if that is another
    slot. `parted`: where the prompt parts from what is known, if that is farther.
    """

    slot: int
    source: int
    keep: int
    parted: int = 0


def place(
    prompt: list[int],
    slots: Sequence[Slot],
    *,
    compact: bool,
    spare: int | None = None,
    owner: str = "",
    adapters: tuple[float, ...] = (),
) -> Placement:
    """The start that leaves the least to compute wins; else the least recently used slot. At least
    one slot is idle.

    One token is always left to compute: its logits are wanted. `compact`: prefer slots next to busy
    ones, where the engine (llama.cpp, with a split cache) computes neighbouring sequences together.
    `spare`: rather than more than so many cells behind the start are given up, a slot that holds
    nothing is taken: an answer that was swiped away, or an edited message, may come again. `owner`:
    whose prompt it is, which finds its own cells alone. `adapters`: what it is computed with, which
    finds what was computed with the same.
    """
    most = len(prompt) - 1
    shared = {
        slot.index: min(common_length(slot.tokens, prompt), most)
        if slot.owner in (None, owner) and slot.adapters == adapters
        else 0
        for slot in slots
    }
    starts = {slot.index: slot.start(shared[slot.index]) for slot in slots}
    source = max(
        slots, key=lambda slot: (starts[slot.index], shared[slot.index], not slot.busy, slot.used)
    )
    keep, farthest = starts[source.index], max(shared.values())
    parted = farthest if farthest > keep else 0
    idle = [slot for slot in slots if not slot.busy]
    if keep < WORTHWHILE:
        slot = _least_missed(idle, slots, compact=compact)
        return Placement(slot.index, slot.index, starts[slot.index], parted)
    lost = len(source.tokens) - keep
    spared = spare is not None and lost > spare and any(not slot.tokens for slot in idle)
    if not source.busy and 2 * keep >= len(source.tokens) and not spared:
        return Placement(source.index, source.index, keep, parted)
    others = [slot for slot in idle if slot is not source] or idle
    slot = _least_missed(others, slots, compact=compact)
    return Placement(slot.index, source.index, keep, parted)


def _least_missed(idle: Sequence[Slot], slots: Sequence[Slot], *, compact: bool) -> Slot:
    busy = {slot.index for slot in slots if slot.busy}

    def cost(slot: Slot) -> tuple[bool, int, int]:
        apart = compact and bool(busy) and not busy & {slot.index - 1, slot.index + 1}
        return apart, slot.used if slot.tokens else 0, slot.index

    return min(idle, key=cost)
