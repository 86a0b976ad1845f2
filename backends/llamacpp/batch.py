"""The arrays `llama_decode` reads, filled in bulk: element by element through ctypes costs more
than the model.
"""

import ctypes

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api


class Batch:
    """Room for `capacity` rows: one token of one sequence each."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)  # each row belongs to one sequence
        self._wanted = np.zeros(capacity, np.int8)  # whose logits are computed
        self._rows = self._sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self.rows = 0
        self.struct = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=ctypes.cast(
                self._rows.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
            ),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    def clear(self) -> None:
        self.rows = 0

    def singles(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None:
        """One row per sequence, all wanted: the next token of every running answer."""
        start, end = self.rows, self.rows + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = positions
        self._sequences[start:end] = sequences
        self._wanted[start:end] = 1
        self.rows = end

    def chunk(
        self, tokens: list[int], position: int, sequence: int, *, last: bool, every: bool = False
    ) -> None:
        """Consecutive tokens of one sequence. `last`: the logits after them are wanted; `every`:
        those after each of them.
        """
        start, end = self.rows, self.rows + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(position, position + len(tokens), dtype=np.int32)
        self._sequences[start:end] = sequence
        self._wanted[start:end] = every
        self._wanted[end - 1] = last or every
        self.rows = end

    def ready(self) -> api.llama_batch:
        self.struct.n_tokens = self.rows
        return self.struct


def _pointer(array: npt.NDArray[np.int32] | npt.NDArray[np.int8], kind: type) -> ctypes.Array:  # type: ignore[type-arg]
    return array.ctypes.data_as(ctypes.POINTER(kind))  # type: ignore[return-value]
