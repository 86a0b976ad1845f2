"""A small GGUF model that drafts for a large one of the same vocabulary: its weights, its context,
its passes. See `backends.engines.draft_model`.

It lies where the large one lies, and is loaded and given back with it: `loading.load`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backends.contract.catalog import ModelFiles
from backends.contract.errors import GenerationFailed, LoadFailed
from backends.contract.protocol import MemoryNeed
from backends.engines.draft_model import DraftPass, Guess, Piece, check_vocabularies
from backends.engines.llamacpp.batch import NO_ROOM, Batch
from backends.engines.llamacpp.kv_cache import KvCache
from backends.engines.llamacpp.layout import Layout
from backends.engines.llamacpp.library import Context, api
from backends.engines.llamacpp.vocabulary import LlamaVocabulary
from backends.engines.threads import StepThreads


class LlamaDraftModel:
    """See `DraftModel`. Owns its model and context."""

    def __init__(
        self,
        context: Context,
        vocabulary: int,
        layout: Layout,
        length: int,
        batch: int,
        threads: StepThreads,
        memory: MemoryNeed | None,
    ) -> None:
        """`memory`: that it took, by llama.cpp's log."""
        self.slots, self.length, self.batch = layout.slots, length, batch
        self.memory = memory
        self._context = context
        self.vocabulary = vocabulary
        self._cache = KvCache(context, split=layout.split)
        self._batch = Batch(batch, context.api)
        self._threads = threads

    def feed(self, pieces: Sequence[Piece]) -> DraftPass | None:
        """See `DraftModel.feed`."""
        self._batch.clear()
        ends = []
        for piece in sorted(pieces, key=lambda piece: piece.slot):  # neighbours go together
            self._batch.chunk(list(piece.tokens), piece.start, piece.slot, last=True)
            ends.append((piece.slot, self._batch.rows - 1))
        self._threads.begin(self._batch.rows)
        code = self._context.api.llama_decode(self._context, self._batch.ready())
        if code == NO_ROOM:
            return None
        if code:
            raise GenerationFailed(f"the draft model's llama_decode failed with code {code}")
        self._context.api.llama_synchronize(self._context)
        guesses = {slot: guessed(self._context.row(row, self.vocabulary)) for slot, row in ends}
        self._threads.end()
        return DraftPass([guesses[piece.slot] for piece in pieces], self._threads.needed)

    def cut(self, slot: int, cells: int) -> int:
        """See `DraftModel.cut`."""
        if cells and self._cache.cut(slot, cells):
            return cells
        self._cache.forget(slot)
        return 0

    def copy(self, source: int, target: int, cells: int) -> bool:
        """See `DraftModel.copy`."""
        return self._cache.copy(source, target)

    def clear(self) -> None:
        self._cache.clear()


def guessed(logits: npt.NDArray[np.float32]) -> Guess:
    """The likeliest token of `logits`, (vocabulary,)."""
    token = int(logits.argmax())
    return Guess(token, float(1 / np.exp(logits - logits[token]).sum()))


def check(
    files: ModelFiles, model: api.llama_model_p, own: LlamaVocabulary, target: LlamaVocabulary
) -> None:
    """Raises LoadFailed where it can't draft for a model with the vocabulary `target`."""
    name = f"the draft model {files.path.name}"
    if api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model):
        raise LoadFailed(
            f"{name} has recurrent layers, whose states can't be taken back; a draft model needs "
            "attention alone"
        )
    if own.adds_bos != target.adds_bos or own.special.bos != target.special.bos:
        raise LoadFailed(f"{name} has another vocabulary: its texts begin with another token")
    check_vocabularies(files.path.name, own, target)
