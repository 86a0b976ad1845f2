"""The input of `llama_decode`: jobs' sequences, and the arrays that it reads."""

import ctypes
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from backends.contract.protocol import Generation, PromptProgress
from backends.engines.cells import Slot
from backends.engines.engine import PromptRead
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.sampling import Chain
from backends.engines.llamacpp.vocabulary import LlamaVocabulary
from backends.engines.sequences import JobSequence
from backends.engines.speculation import NO_DRAFT, StepDraft

NO_ROOM = 1  # llama_decode: no free cells for this batch; nothing was changed

# One job's sequence: its tokens, its pictures, and how far it has been computed.


class ImageCells(msgspec.Struct, frozen=True):
    """A piece of a picture: the cells `start` to `end` of its sequence.

    It moves the positions behind it by `positions`: fewer than its cells where the model's rotary
    embedding has more than one dimension (M-RoPE).
    """

    start: int
    end: int
    positions: int
    chunk: Any  # mtmd_input_chunk, as C functions take it

    @property
    def saved(self) -> int:
        """How much the position behind it lags the number of cells."""
        return self.end - self.start - self.positions


class Fed(msgspec.Struct, frozen=True):
    """What a batch has of a job: its next `count` tokens, and behind them those `drafted`."""

    running: "LlamaJob"
    count: int
    drafted: StepDraft = NO_DRAFT

    @property
    def rows(self) -> int:
        return self.count + len(self.drafted.tokens)


class LlamaJob(JobSequence):
    """A number below 0 in `tokens` is a part of a picture."""

    def __init__(
        self,
        key: int,
        job: Generation,
        tokens: list[int],
        vocabulary: LlamaVocabulary,
        context_length: int,
        pictures: Sequence[ImageCells] = (),
    ) -> None:
        super().__init__(key, job, tokens)
        self.pictures = pictures
        self.rewinds = 0
        self._vocabulary = vocabulary
        self._context_length = context_length
        self.chain = self._samplers()
        self.banned: Collection[int] = ()  # at the next place, see `Engine.rewind`
        self.lag = 0  # positions that pictures among the fed cells saved, see `ImageCells`
        # The row of the last batch with the logits of its next token, where one waits to be drawn.
        self.row: int | None = None
        self._reported = -1  # tokens of the prompt that were reported as processed
        self._began = 0.0

    def accept(self, token: int) -> None:
        self.chain.accept(token)

    def allowed(self, size: int) -> npt.NDArray[np.intp] | None:
        """Of the first `size` tokens those that may be drawn next; None: all. Raises what
        `Mask.allowed` does.
        """
        if self.mask is None:
            return None
        ids = allowed_ids(self.mask.allowed(), size)
        if not self.banned:
            return ids
        ids = np.arange(size) if ids is None else ids
        others = np.setdiff1d(ids, list(self.banned))
        return others if len(others) else ids

    @property
    def position(self) -> int:
        """Of the next token to be fed."""
        return self.fed - self.lag

    def lag_at(self, cells: int) -> int:
        """`lag` once `cells` cells are fed."""
        return sum(picture.saved for picture in self.pictures if picture.end <= cells)

    def start(self, slot: Slot, keep: int) -> None:
        super().start(slot, keep)
        self.lag = self.lag_at(keep)

    def known_marks(self) -> Iterator[int]:
        """A picture has more cells than tokens; most stand before the last message, so that it is
        counted from the end.
        """
        more = self.prompt_tokens - len(self.job.prompt)
        return (mark + more for mark in self.job.marks)

    def progress(self, place: int = 0, ahead: int = 0) -> Iterator[PromptRead]:
        """How far its prompt is, where that has changed, or it waits; see `PromptProgress`. What is
        computed a second time is not reported.
        """
        if self._reported < 0:
            self._began = time.perf_counter()
        done, total = min(self.fed, self.prompt_tokens), self.prompt_tokens
        asked = self.job.reports_progress
        if done <= self._reported and (asked or not place):
            return
        first, self._reported = self._reported < 0, done
        if asked or done < total:
            seconds = 0.0 if first else time.perf_counter() - self._began
            progress = PromptProgress(total, self.cached, done, seconds, place, ahead)
            yield PromptRead(self.key, progress)

    @property
    def reads(self) -> bool:
        """Whether its prompt is not all reported as read."""
        return self._reported < self.prompt_tokens and not self.rewinds

    def picture(self) -> ImageCells | None:
        """The next one to be computed."""
        return next((picture for picture in self.pictures if picture.start >= self.fed), None)

    def whole(self, cells: int) -> int:
        """As many of the first `cells` cells as cut no picture in two."""
        cut = (picture.start for picture in self.pictures if picture.start < cells < picture.end)
        return next(cut, cells)

    def rewound(self, banned: Collection[int]) -> None:
        """The newest tokens were taken back: samplers that never saw them."""
        self.rewinds += 1
        self.chain = self._samplers(() if self.mask else banned)
        self.banned = banned

    def _samplers(self, banned: Collection[int] = ()) -> Chain:
        prompt, answer = self.tokens[: self.prompt_tokens], self.tokens[self.prompt_tokens :]
        return Chain(
            msgspec.structs.replace(self.job, prompt=tuple(cell for cell in prompt if cell >= 0)),
            self._vocabulary,
            self._context_length,
            answer=answer,
            banned=banned,
            variant=self.rewinds,
        )


def allowed_ids(mask: bytes, size: int) -> npt.NDArray[np.intp] | None:
    """Those of the first `size` tokens that `mask` (see `constraints.Mask`) allows, ascending;
    None: all.
    """
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=size, bitorder="little")
    ids = np.flatnonzero(bits)
    return None if len(ids) == size else ids


class Batch:
    """Room for `capacity` rows: one token of one sequence each. Filled in bulk: element by element
    through ctypes costs more than the model.
    """

    def __init__(self, capacity: int, library: Any = api) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)  # each row belongs to one sequence
        self._wanted = np.zeros(capacity, np.int8)  # whose logits are computed
        self._rows = self._sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self.rows = 0
        self.struct = library.llama_batch(
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
