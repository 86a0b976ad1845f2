"""A small Hugging Face model that drafts for a large one of the same vocabulary: its weights, its
rows of cells, its passes. See `backends.engines.draft_model`.

It lies on the device of the large one, and is loaded and given back with it.
"""

import time
from collections.abc import Sequence

import torch

from backends.engines.draft_model import DraftPass, Guess, Piece
from backends.engines.transformers.forward import Forward
from backends.engines.transformers.grid import BLOCK, Grid
from backends.engines.transformers.loading import TransformersModel
from backends.engines.transformers.memory import in_our_words

BATCH = 512  # tokens of a text that are read in one pass


class TransformersDraftModel:
    """See `DraftModel`. Owns the model it was given."""

    def __init__(self, loaded: TransformersModel) -> None:
        assert loaded.pattern is not None
        self.slots, self.length, self.batch = loaded.limit.rows, loaded.limit.length, BATCH
        self.vocabulary = loaded.vocabulary.size
        # See `StepThreads.needed`.
        beside = loaded.model.device.type != "cpu"
        self._clock = time.perf_counter if beside else time.thread_time
        self._grid = Grid(loaded.pattern.layers)
        self._forward = Forward(loaded.model, self._grid, loaded.pattern, loaded.traced)

    def feed(self, pieces: Sequence[Piece]) -> DraftPass | None:
        """See `DraftModel.feed`. Neighbouring rows go together; those between are written to, at
        cells behind their ends.
        """
        began = self._clock()
        with in_our_words(), torch.inference_mode():
            self._make_room(max(piece.start + len(piece.tokens) for piece in pieces))
            guesses = self._together(pieces)
        return DraftPass([guesses[piece.slot] for piece in pieces], self._clock() - began)

    def _together(self, pieces: Sequence[Piece]) -> dict[int, Guess]:
        """Those of neighbouring rows in one pass."""
        guesses: dict[int, Guess] = {}
        ordered = sorted(pieces, key=lambda piece: piece.slot)
        while ordered:
            run = [ordered.pop(0)]
            while ordered and self._joins(run, ordered[0]):
                run.append(ordered.pop(0))
            rows = [piece.tokens for piece in run]
            logits = self._forward.run(run[0].slot, rows, [piece.start for piece in run])
            guesses |= {
                piece.slot: guess for piece, guess in zip(run, _guessed(logits), strict=True)
            }
        return guesses

    def _joins(self, run: Sequence[Piece], piece: Piece) -> bool:
        """Whether it is the next row, and all have room for the longest of them: what fills up a
        row is written behind its end.
        """
        width = max(len(one.tokens) for one in (*run, piece))
        fits = all(one.start + width <= self._grid.capacity for one in (*run, piece))
        return piece.slot == run[-1].slot + 1 and fits

    def _make_room(self, cells: int) -> None:
        if self._grid.rows < self.slots or self._grid.capacity < cells:
            generous = min(-(-(cells + cells // 2) // BLOCK) * BLOCK, max(self.length, cells))
            self._grid.reshape(self.slots, generous)

    def cut(self, slot: int, cells: int) -> int:
        """See `DraftModel.cut`: what lies behind a sequence's end isn't read."""
        return cells

    def copy(self, source: int, target: int, cells: int) -> bool:
        """See `DraftModel.copy`."""
        with torch.inference_mode():
            self._grid.copy(source, target, cells)
        return True

    def clear(self) -> None:
        """See `DraftModel.clear`."""
        self._grid.clear()


def _guessed(logits: torch.Tensor) -> list[Guess]:
    """Of each row of `logits`, (rows, vocabulary)."""
    chances, tokens = logits.softmax(-1).max(-1)
    pairs = zip(tokens.tolist(), chances.tolist(), strict=True)
    return [Guess(token, chance) for token, chance in pairs]
