"""Prefix caching: which slot of the KV cache a prompt starts in, and how many of its tokens are
there already. Pure.

A slot is one sequence of an engine's KV cache. When its job is over the cells stay, so that the
conversation's next turn, or another request that begins alike, does not compute them again. It
knows no engine.
"""

from collections.abc import Sequence

import msgspec

WORTHWHILE = 8  # a shorter shared beginning isn't worth a copy, or giving up another slot's cells


class Slot:
    """One sequence: the tokens whose cells it holds, and whether a job uses it. `index` is its
    engine's number for it.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.busy = False
        self.used = 0  # the clock's reading when it was last released


class Placement(msgspec.Struct, frozen=True):
    """Start in `slot` with `keep` tokens in place, taken from `source` first if that is another
    slot.
    """

    slot: int
    source: int
    keep: int


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike; by bisection, so that slices compare at C
    speed.
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


def place(prompt: list[int], slots: Sequence[Slot], *, compact: bool) -> Placement:
    """Longest common beginning wins; else the least recently used slot. At least one slot is idle.

    One token is always left to compute: its logits are wanted. `compact`: prefer slots next to busy
    ones, where the engine (llama.cpp, with a split cache) computes neighbouring sequences together.
    """
    most = len(prompt) - 1
    shared = {slot.index: min(common(slot.tokens, prompt), most) for slot in slots}
    source = max(slots, key=lambda slot: (shared[slot.index], not slot.busy, slot.used))
    keep = shared[source.index]
    idle = [slot for slot in slots if not slot.busy]
    if keep < WORTHWHILE:
        slot = _least_missed(idle, slots, compact=compact)
        return Placement(slot.index, slot.index, shared[slot.index])
    if not source.busy and 2 * keep >= len(source.tokens):
        return Placement(source.index, source.index, keep)
    others = [slot for slot in idle if slot is not source] or idle
    slot = _least_missed(others, slots, compact=compact)
    return Placement(slot.index, source.index, keep)


def _least_missed(idle: Sequence[Slot], slots: Sequence[Slot], *, compact: bool) -> Slot:
    busy = {slot.index for slot in slots if slot.busy}

    def cost(slot: Slot) -> tuple[bool, int, int]:
        apart = compact and bool(busy) and not busy & {slot.index - 1, slot.index + 1}
        return apart, slot.used if slot.tokens else 0, slot.index

    return min(idle, key=cost)
