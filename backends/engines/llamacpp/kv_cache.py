"""The memory of a context by sequences: what is left of one that was cut, and what of it is taken
out as bytes and put back, in a pass or as a slot's file.

It knows llama.cpp's rules, no job. Only the engine's thread calls it.
"""

import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from backends.contract.beginnings import AT_EASE, Bytes, SavedSlot
from backends.contract.errors import GenerationFailed, InvalidJob
from backends.contract.protocol import ModelInfo
from backends.engines.cells import Slot
from backends.engines.llamacpp.batch import LlamaJob
from backends.engines.llamacpp.library import Context, api
from backends.engines.llamacpp.pieces import PART, WHOLE, Stage, State, States
from backends.engines.step_costs import MOST


class KvCache(States):
    """`split`: each sequence has its own part of it. `stage`: the one that no slot has, if there
    is one, and `piece`: how many bytes are put back at once then; see
    `backends.engines.llamacpp.pieces`.
    """

    def __init__(
        self,
        context: Context,
        *,
        split: bool,
        stage: int | None = None,
        piece: int = AT_EASE.piece,
    ) -> None:
        super().__init__(context)
        api = context.api
        model = api.llama_get_model(context)
        self._split = split
        self._recurrent = api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model)
        self._states_back = int(api.llama_n_rs_seq(context)) if self._recurrent else 0
        self._turned: set[int] = set()  # sequences that were turned back
        # Where nothing of it is a window's or recurrent, a part is the whole.
        parted = self.size(0, PART) != self.size(0, WHOLE)
        self._window = api.llama_model_n_swa(model) if parted else 0
        self.stage = Stage(self, stage, piece, parted=parted, recurrent=bool(self._recurrent))

    @property
    def goes_anywhere(self) -> bool:
        """Whether a sequence can be cut at any place."""
        return not self._recurrent and not self._window

    @property
    def keeps_states(self) -> bool:
        """Whether there are layers whose state is one of all tokens, and can't be cut."""
        return bool(self._recurrent)

    @property
    def goes_back(self) -> int:
        """How many of the tokens that were computed last, all in one pass, can be taken back."""
        return self._states_back if self._recurrent else MOST

    @property
    def slides(self) -> bool:
        """Whether some of its layers see a window alone.

        Then a batch may hold no more than single tokens and one longer piece, all in one pass over
        the graph. Before it computes the first pass llama.cpp tries out all of them, and forgets
        what a later one would overwrite of a window (llama-kv-cache.cpp, prepare and apply_ubatch).
        """
        return bool(self._window)

    def copied(self, part: int) -> int:
        """Cells whose bytes a copy moves. `part`: those of a sequence, where each has its own."""
        if self._split:
            return part
        return 2 * self._window  # out and back, see `detach`; others are named twice alone

    def clear(self) -> None:
        """Forget all sequences."""
        self._turned.clear()
        self._api.llama_memory_clear(self._memory, True)

    def forget(self, sequence: int) -> None:
        self._turned.discard(sequence)
        super().forget(sequence)

    def copy(self, source: int, target: int) -> bool:
        """`target` gets the cells of `source` in place of its own. False: it has none."""
        self.forget(target)
        if self._split:
            # llama.cpp itself copies when it next decodes: what another job has put into the source
            # by then, and over what it has put into the target.
            return self.write(target, self.read(source, WHOLE), WHOLE)
        self.name(source, target)
        # Which of its states is the one to go on from, llama.cpp keeps for the source alone.
        turned = source in self._turned
        return not turned or self.write(target, self.read(source, PART), PART)

    def cut(self, sequence: int, position: int) -> bool:
        """Forget what stands at `position` and behind it. False: what is left is not enough to go
        on from there. It is to be put back, or forgotten.

        A recurrent state can't be cut, see `turn_back`. And a model with a sliding window may have
        given cells that the sequence's end no longer attended to to others, although the removal
        succeeds: the token at `position` attends to the `window - 1` positions before it
        (llama-hparams.h, is_masked_swa). What is there is without gaps (llama-kv-cache.cpp,
        apply_ubatch), so its first position decides.
        """
        whole = self._api.llama_memory_seq_pos_max(self._memory, sequence) < position
        if position <= 0 or (self._recurrent and not whole):
            return False
        if not self._api.llama_memory_seq_rm(self._memory, sequence, position, -1):
            return False
        return self._attends(sequence, position)

    def turn_back(self, sequence: int, position: int) -> bool:
        """Take back what was drafted from `position` on and computed last, in one pass with a token
        before it. False: as for `cut`.

        llama.cpp keeps the states behind each of the last tokens of a pass (`n_rs_seq`), and goes
        on from one of them. It doesn't know how many there are of a pass, nor whether another came
        since (llama-memory-recurrent.cpp, seq_rm): asked for more, it would go on from an old one.
        """
        if not self._recurrent:
            return self.cut(sequence, position)
        if not self._api.llama_memory_seq_rm(self._memory, sequence, position, -1):
            return False
        self._turned.add(sequence)
        return True

    def cuts_from(self, sequence: int, cells: int) -> int:
        """From where on a sequence of so many `cells` can be cut."""
        if self._recurrent:
            return cells
        first = self._api.llama_memory_seq_pos_min(self._memory, sequence) if self._window else 0
        return int(first + self._window - 1) if first > 0 else 0

    def put_back(self, sequence: int, part: State, position: int) -> bool:
        """The sequence is again as it was when this `PART` was taken, before `position` was there.
        The cells that can be cut are still in place. False: it is forgotten.
        """
        if self.write(sequence, part, PART) and self._ends_at(sequence, position):
            return True
        self.forget(sequence)
        return False

    def _ends_at(self, sequence: int, position: int) -> bool:
        """It is cut there, and nothing that is needed to go on is missing."""
        if not self._api.llama_memory_seq_rm(self._memory, sequence, position, -1):
            return False
        last = self._api.llama_memory_seq_pos_max(self._memory, sequence)
        return bool(last == position - 1 and self._attends(sequence, position))

    def _attends(self, sequence: int, position: int) -> bool:
        """Whether all is there that `position` attends to. Where layers are recurrent, llama.cpp
        tells their last position alone.
        """
        first = self._api.llama_memory_seq_pos_min(self._memory, sequence)
        there = self._recurrent or first <= max(0, position - self._window + 1)
        return bool(there and first >= 0)

    def detach(self, sequence: int) -> bool:
        """After a copy of a window: the two sequences have no cells of it in common any more. A
        cell that both have slid over would be free for neither. False: it is forgotten.
        """
        if not self._window or self._split:
            return True
        return self.write(sequence, self.read(sequence, PART), PART)


_HEAD = struct.Struct("=III")  # magic, version, words of the list behind it
_MAGIC, _VERSION = api.LLAMA_STATE_SEQ_MAGIC, api.LLAMA_STATE_SEQ_VERSION
_PACKED, _PACKED_VERSION = -1, 1  # what a packed list begins with


class LlamaSlotKeeper:
    """See `backends.engines.jobs.SlotKeeper`. Shares the engine's own lists, on the engine's
    thread.

    A slot's bytes are a file of `llama_state_seq_save_file` whose tokens are packed as llama-server
    packs them (server-common.cpp, server_tokens::serialize): a slot saved by one can be restored by
    the other. A plain list of tokens, which older ones wrote, is read too.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        cache: KvCache,
        running: Mapping[int, LlamaJob],
        info: ModelInfo,
        settle: Callable[[], None],
    ) -> None:
        """`settle`: to be called before a state is written."""
        self._slots = slots
        self._cache = cache
        self._running = running
        self._info = info
        self._settle = settle

    def cells(self) -> Sequence[int]:
        return [len(slot.tokens) for slot in self._slots]

    def places(self) -> Mapping[int, int]:
        jobs = self._running.values()
        return {job.key: job.slot.index for job in jobs if job.slot is not None}

    def save(self, slot: int) -> SavedSlot:
        tokens = self._slots[slot].tokens
        if tokens and self._slots[slot].adapters != self._info.adapter_scales():
            text = "The slot was computed with adapters that its request chose; it can't be saved."
            raise InvalidJob(text, "id_slot")
        if any(token < 0 for token in tokens):
            raise InvalidJob("A slot with an image can't be saved.", "id_slot")
        listed = np.frombuffer(packed(tokens), np.uint8)
        data = np.empty(len(listed) + self._cache.size(slot, WHOLE), np.uint8)
        data[: len(listed)] = listed
        if not self._cache.read_into(data[len(listed) :], slot, WHOLE):
            raise GenerationFailed("llama.cpp did not return the cells of the slot")
        return SavedSlot(len(tokens), data)

    def restore(self, slot: int, data: Bytes) -> int:
        tokens, start = unpacked(data)
        room = self._info.context_length
        if len(tokens) > room:
            text = f"The file contains {len(tokens)} tokens; the model has a context of {room}."
            raise InvalidJob(text, "filename")
        if any(not 0 <= token < self._info.vocab_size for token in tokens):
            raise InvalidJob("The model's vocabulary lacks tokens of the file.", "filename")
        self._settle()
        self.erase(slot)
        if not self._cache.write(slot, data[start:], WHOLE):
            raise InvalidJob("The file's cells don't match this model as loaded.", "filename")
        self._slots[slot].tokens, self._slots[slot].owner = list(tokens), None
        self._slots[slot].adapters = self._info.adapter_scales()
        return len(tokens)

    def erase(self, slot: int) -> int:
        kept = self._slots[slot]
        count = len(kept.tokens)
        self._cache.forget(slot)
        kept.shorten(0)
        return count


def packed(tokens: Sequence[int]) -> bytes:
    """The head of a file, up to the cells. No token of it is a picture's."""
    words = np.array([_PACKED, _PACKED_VERSION, len(tokens), *tokens, 0], np.int32)
    return _HEAD.pack(_MAGIC, _VERSION, len(words)) + words.tobytes()


def unpacked(data: Bytes | bytes) -> tuple[tuple[int, ...], int]:
    """The tokens of a file, and where its cells begin. Raises InvalidJob."""
    head = bytes(data[: _HEAD.size])
    if len(head) < _HEAD.size or _HEAD.unpack(head)[0] != _MAGIC:
        raise InvalidJob("The file is not a saved slot.", "filename")
    _, written, count = _HEAD.unpack(head)
    if written != _VERSION:
        text = f"The file's state is of llama.cpp's version {written}; this one reads {_VERSION}."
        raise InvalidJob(text, "filename")
    start = _HEAD.size + 4 * count
    if start > len(data):
        raise InvalidJob("The file is truncated.", "filename")
    words = np.frombuffer(data, np.int32, count, _HEAD.size)
    if not count or words[0] != _PACKED:
        return tuple(words.tolist()), start
    return _of_packed(words.tolist()), start


def _of_packed(words: Sequence[int]) -> tuple[int, ...]:
    match words:
        case [_, version, count, *rest] if version == _PACKED_VERSION and 0 <= count < len(rest):
            if rest[count]:
                raise InvalidJob("A slot with an image can't be restored.", "filename")
            return tuple(rest[:count])
    raise InvalidJob("The token list in the file is invalid.", "filename")
