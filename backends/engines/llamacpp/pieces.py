"""A sequence as bytes, in pieces: each holds the cells of some positions, and is put back by itself
between two steps of the others.

llama.cpp takes a sequence out, and puts one back, in one call, and forgets first what stood there.
Where all sequences share one pool of cells a spare one, the stage, makes pieces of it: some
positions are copied there, which only names their cells twice, and taken out from there; they are
put back into the stage, and then named the sequence's. Where each sequence has a part of the cache
for itself a copy moves bytes, so that what a part holds is put back in one call: at most
`layout.LARGE_PART`, 256 MB in 0.05 s.

    pieces, end | how far each reaches | how long each is | pieces | what can't be cut

It knows no job and no token. Only the engine's thread calls it.
"""

import ctypes
import struct
from collections import deque
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from backends.engines.llamacpp.library import Context, api

State: TypeAlias = npt.NDArray[np.uint8]
WHOLE, PART = api.LLAMA_STATE_SEQ_FLAGS_NONE, api.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_FRONT = struct.Struct("<IQ")  # pieces, and bytes of all of it as llama.cpp takes it out
_MARK = 8  # bytes that each state begins with: llama.cpp's magic, and the sequence
_SLACK = 1 << 16  # bytes that a piece has besides its cells: a few for each layer


class States:
    """Sequences of one context, taken out and put back in one call each."""

    def __init__(self, context: Context) -> None:
        self._context, self._api = context, context.api
        self._memory = self._api.llama_get_memory(context)

    def size(self, sequence: int, flags: int) -> int:
        """Bytes of `read`."""
        return int(self._api.llama_state_seq_get_size_ext(self._context, sequence, flags))

    def read(self, sequence: int, flags: int) -> State:
        """`WHOLE`: all there is of the sequence. `PART`: what of it can't be cut. Nothing: it can't
        be taken out.
        """
        data = np.empty(self.size(sequence, flags), np.uint8)
        return data if self.read_into(data, sequence, flags) else data[:0]

    def read_into(self, data: State, sequence: int, flags: int) -> bool:
        """As `read`; `data` has its size."""
        size = len(data)
        there = self._api.llama_state_seq_get_data_ext(
            self._context, _at(data), size, sequence, flags
        )
        return bool(there == size)

    def write(self, sequence: int, state: State, flags: int) -> bool:
        """It is as it was when it was read, in place of what there is. False: it is forgotten."""
        size = len(state)
        if size and size == self._api.llama_state_seq_set_data_ext(
            self._context, _at(state), size, sequence, flags
        ):
            return True
        self.forget(sequence)
        return False

    def forget(self, sequence: int) -> None:
        """Nothing is left of it."""
        self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def name(self, source: int, target: int, start: int = -1, end: int = -1) -> None:
        """The cells of `source` at these positions are those of `target`, too. Only in a pool."""
        self._api.llama_memory_seq_cp(self._memory, source, target, start, end)

    def end(self, sequence: int) -> int:
        """The position behind the last."""
        return int(self._api.llama_memory_seq_pos_max(self._memory, sequence)) + 1


class Stage:
    """Makes pieces of about `piece` bytes. `sequence`: the spare one; None: there is none, and each
    sequence is one piece. `parted`: some of a sequence can't be cut; `recurrent`: a state of it.
    """

    def __init__(
        self, states: States, sequence: int | None, piece: int, *, parted: bool, recurrent: bool
    ) -> None:
        # A state that is all there is of a sequence is small, and can't be cut.
        self._sequence = None if recurrent and not parted else sequence
        self._states = states
        self._piece = piece
        self._parted, self._recurrent = parted, recurrent
        # Of a sequence that has nothing that can't be cut.
        self._nothing = states.read(0 if sequence is None else sequence, PART)

    def take(self, sequence: int) -> State:
        """All there is of it. Nothing: it can't be taken out."""
        staged = self._sequence is not None
        flags = PART if staged else WHOLE  # of what is in no piece
        size, end = self._states.size(sequence, WHOLE), self._states.end(sequence)
        rest = self._states.size(sequence, flags) if self._parted or not staged else 0
        step = max(1, self._piece * end // max(1, size - rest))
        starts = range(0, end if staged else 0, step)
        front = _FRONT.pack(len(starts), size)
        data = np.empty(len(front) + 16 * len(starts) + size + _SLACK * len(starts), np.uint8)
        data[: len(front)] = np.frombuffer(front, np.uint8)
        table = np.zeros((2, len(starts)), np.uint64)
        at = len(front) + table.nbytes
        for number, start in enumerate(starts):
            table[0, number] = until = min(end, start + step)
            length = self._take(sequence, start, until, data[at:])
            if not length:
                return data[:0]
            table[1, number] = length
            at += length
        data[len(front) :][: table.nbytes] = table.reshape(-1).view(np.uint8)
        there = not rest or self._states.read_into(data[at : at + rest], sequence, flags)
        return data[: at + rest] if size and there else data[:0]

    def _take(self, sequence: int, start: int, end: int, data: State) -> int:
        """Put these positions into `data`; how many bytes they are, 0 where it can't be."""
        stage, states = self._sequence, self._states
        assert stage is not None
        states.name(sequence, stage, start, end)
        try:
            if self._recurrent:  # else each piece would have the state
                states.write(stage, self._nothing, PART)
            size = states.size(stage, WHOLE)
            if size > len(data) or not states.read_into(data[:size], stage, WHOLE):
                return 0
            if not self._parted:
                return size
            size -= states.size(stage, PART) - _MARK
            nothing = self._nothing[_MARK:]
            data[size : size + len(nothing)] = nothing
            return size + len(nothing)
        finally:
            states.forget(stage)

    def fill(self, sequence: int, whole: State, end: int) -> "Filling":
        """Begin to put back what was taken, in place of what there is, as far as it is needed for
        the positions before `end`.
        """
        self._states.forget(sequence)
        return Filling(self._states, self._sequence, sequence, whole, end)


class Filling:
    """A sequence that is being put back. See `Stage`."""

    def __init__(
        self, states: States, stage: int | None, sequence: int, whole: State, end: int
    ) -> None:
        self._states = states
        self._stage = stage
        self._sequence = sequence
        count, self._size = _FRONT.unpack_from(whole.data)
        table = whole[_FRONT.size :][: 16 * count].view(np.uint8).tobytes()
        ends, sizes = np.frombuffer(table, np.uint64).reshape(2, count).tolist()
        rest, start = whole[_FRONT.size + 16 * count :], 0
        self._pieces: deque[State] = deque()
        for until, size in zip(ends, sizes, strict=True):
            if start < end:
                self._pieces.append(rest[:size])
            rest, start = rest[size:], until
        self._rest = rest  # what can't be cut, or all of it
        self._whole = len(self._pieces) == count

    @property
    def is_over(self) -> bool:
        """All of it is there."""
        return not self._pieces and not len(self._rest)

    def put(self) -> bool:
        """The next piece. False: there is no room for it now, or it isn't of this context."""
        if not self._pieces:
            return self._put_rest()
        if self._stage is None:
            return False
        if not self._states.write(self._stage, self._pieces[0], WHOLE):
            return False
        self._states.name(self._stage, self._sequence)
        self._states.forget(self._stage)
        self._pieces.popleft()
        return True

    def _put_rest(self) -> bool:
        parted = self._stage is not None
        if not self._states.write(self._sequence, self._rest, PART if parted else WHOLE):
            return False
        self._rest = self._rest[:0]
        return True

    @property
    def is_right(self) -> bool:
        """Nothing of what is over is missing: some cells are in a cache that knows no pieces."""
        return not self._whole or self._states.size(self._sequence, WHOLE) == self._size


def _at(data: State) -> "ctypes._Pointer[ctypes.c_uint8]":
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
