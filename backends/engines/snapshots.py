"""Snapshots of what can't be cut: a recurrent state, the cells of a sliding window. Where a prompt
gets them, and which are kept. Pure.

Attention keeps a cell for every token, so a sequence can go back to any of them. A recurrent state
has been through all of them, and a window has forgotten what it slid over: such a sequence goes
back to where a snapshot was taken, and what is behind is computed again. So they are taken where
later prompts are likely to part from this one. It knows no engine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from backends.engines.cells import Slot, Snapshot
from backends.machine.control_groups import main_memory_free

STEP = 4_096  # tokens of a prompt between two snapshots
TAIL = (
    256  # tokens before the end of a prompt of which it isn't known where its last message begins
)
FEWEST = 64  # tokens; a shorter beginning is computed again in one pass, as a snapshot needs one
APART = 4  # tokens; what is nearer to the last snapshot isn't worth a pass of its own
MOST = 32  # in one slot
# For each sequence, and what all of them may take of main memory.
EACH, SHARE = 8, 0.05
SPARED = 512 << 20  # bytes of main memory that are left free
# Tokens of an answer between two snapshots, where it may be taken back: a banned string has begun
# behind the last or the one before.
ANSWER_STEP = 32
ANSWER_KEPT = 2


def places(length: int, keep: int, marks: Iterable[int], step: int = STEP) -> list[int]:
    """Behind how many of its tokens a prompt of `length`, `keep` of which are in place, gets
    snapshots; ascending.

    At `marks`, where others part from it; at its end, since the same prompt comes again (its last
    token is always computed); and every `step`, since nothing is certain.
    """
    end = length - 1
    known = {mark for mark in marks if 0 < mark < length}
    if not known:
        known = {end - TAIL}
    known.update(range(step, end, step))
    least, found = max(keep, FEWEST - 1), list[int]()
    for place in sorted(place for place in known if least < place < end):
        if place - (found[-1] if found else keep) >= APART:
            found.append(place)
    near = bool(found) and length - found[-1] <= length // 100  # it stands for the end
    return found if near or end <= least else [*found, end]


def room(size: int, sequences: int, memory: int, wanted: int | None) -> int:
    """Bytes for snapshots of so many `sequences`, of `size` each: what is `wanted`, else for some
    of each, as far as a part of main `memory` goes.
    """
    if wanted is not None:
        return wanted if size else 0
    return min(EACH * sequences * size, int(memory * SHARE))


class SnapshotMarks:
    """Behind how many cells of one job's sequence snapshots are still to be taken."""

    def __init__(self, prompt: int, *, taken_back: bool) -> None:
        """`prompt`: its cells. `taken_back`: tokens of the answer may be."""
        self._prompt = prompt
        self._taken_back = taken_back
        self._ahead: list[int] = []  # ascending

    def add(self, places: Iterable[int], fed: int) -> None:
        """`fed` cells are there."""
        self._ahead = sorted(place for place in {*places, *self._ahead} if place > fed)

    def room(self, fed: int, left: int) -> int:
        """How many of the `left` cells may be computed together."""
        return min(left, self._ahead[0] - fed) if self._ahead else left

    def reached(self, fed: int) -> bool:
        """More cells are there. Whether a snapshot is to be taken behind them."""
        if self._ahead and self._ahead[0] <= fed:
            marked = fed in self._ahead
            self._ahead = [place for place in self._ahead if place > fed]
            return marked
        answered = fed - self._prompt
        return self._taken_back and answered > 0 and answered % ANSWER_STEP == 0


class SnapshotBudget(msgspec.Struct, frozen=True, eq=False):
    """Of `slots` together: `limit` bytes, and no more than main memory has `free`: nobody has left
    its room for them.
    """

    _slots: Sequence[Slot]
    _limit: int
    _free: Callable[[], int] = main_memory_free

    @property
    def taken(self) -> int:
        """Bytes. Slots that were copied have their snapshots in common."""
        known = {snapshot for slot in self._slots for snapshot in slot.snapshots}
        return sum(snapshot.size for snapshot in known)

    def take(self, slot: Slot, prompt: int, size: int, state: Callable[[], Any]) -> None:
        """A snapshot of `slot` as it is, the farthest of it, where it is worth its `size`. The
        slot's prompt has so many cells; of the answer behind it few snapshots are kept.
        """
        cells = len(slot.tokens)
        if any(snapshot.cells == cells for snapshot in slot.snapshots):
            return
        answered = [snapshot for snapshot in slot.snapshots if snapshot.cells > prompt]
        for old in answered[: 1 - ANSWER_KEPT]:
            slot.snapshots.remove(old)
        if self.room_for(slot, cells, size):
            slot.snapshots.append(Snapshot(cells, state(), size))

    def adopt(self, slot: Slot, snapshots: Sequence[Snapshot]) -> None:
        """`slot` was put back with these, ascending; its prompt goes on from the last of them."""
        slot.snapshots = []
        for snapshot in snapshots:
            if self.room_for(slot, snapshot.cells, snapshot.size) or snapshot is snapshots[-1]:
                slot.snapshots.append(snapshot)

    def room_for(self, slot: Slot, cells: int, size: int) -> bool:
        """Whether a snapshot of `slot` behind so many `cells`, the farthest of it, is worth its
        `size`. The least useful others are dropped for it.
        """
        limit = min(self._limit, self.taken + max(0, self._free() - SPARED))
        if size > limit:
            return False
        own = cells - (slot.snapshots[-1].cells if slot.snapshots else 0)
        while self.taken + size > limit or len(slot.snapshots) >= MOST:
            full = len(slot.snapshots) >= MOST
            use = self._uses([slot] if full else self._slots, taking=slot)
            least = min(use, key=use.__getitem__)
            if use[least] > own:
                return False
            self._drop(least)
        return True

    def _uses(self, slots: Sequence[Slot], taking: Slot) -> dict[Snapshot, float]:
        """How many tokens each saves, less the farther it is from its sequence's end, and the
        longer ago that was used: the end is what changes.
        """
        now = max(slot.used for slot in self._slots)
        found: dict[Snapshot, float] = {}
        for slot in slots:
            age = 0 if slot.busy else now - slot.used
            ahead = len(slot.snapshots) + (slot is taking)
            for number, (snapshot, saved) in enumerate(_saved(slot)):
                use = saved / (ahead - number) / (1 + age)
                found[snapshot] = max(use, found.get(snapshot, 0.0))
        return found

    def _drop(self, snapshot: Snapshot) -> None:
        for slot in self._slots:
            if snapshot in slot.snapshots:
                slot.snapshots.remove(snapshot)


def _saved(slot: Slot) -> Iterator[tuple[Snapshot, int]]:
    """Each snapshot, and the tokens that would be computed again without it."""
    before = 0
    for snapshot in slot.snapshots:
        yield snapshot, snapshot.cells - before
        before = snapshot.cells
