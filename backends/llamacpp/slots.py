"""llama.cpp's sequences as bytes, and back: the cells of one slot and the tokens they hold.

The bytes are a file of `llama_state_seq_save_file` whose tokens are packed as llama-server packs
them (server-common.cpp, server_tokens::serialize): a slot saved by one can be restored by the
other. A plain list of tokens, which older ones wrote, is read too.
"""

import ctypes
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from backends.cells import Slot
from backends.errors import GenerationFailed, InvalidJob
from backends.llamacpp.batch import LlamaJob
from backends.llamacpp.kv_cache import KvCache
from backends.llamacpp.library import api
from backends.protocol import ModelInfo
from backends.slots import SavedSlot

_HEAD = struct.Struct("=III")  # magic, version, words of the list behind it
_MAGIC, _VERSION = api.LLAMA_STATE_SEQ_MAGIC, api.LLAMA_STATE_SEQ_VERSION
_PACKED, _PACKED_VERSION = -1, 1  # what a packed list begins with


class LlamaSlotKeeper:
    """See `backends.slots.SlotKeeper`. Shares the engine's own lists, on the engine's thread."""

    def __init__(
        self,
        slots: Sequence[Slot],
        context: api.llama_context_p,
        cache: KvCache,
        running: Mapping[int, LlamaJob],
        info: ModelInfo,
    ) -> None:
        self._slots = slots
        self._context = context
        self._cache = cache
        self._running = running
        self._info = info

    def cells(self) -> Sequence[int]:
        return [len(slot.tokens) for slot in self._slots]

    def places(self) -> Mapping[int, int]:
        jobs = self._running.values()
        return {job.key: job.slot.index for job in jobs if job.slot is not None}

    def save(self, slot: int) -> SavedSlot:
        tokens = self._slots[slot].tokens
        if any(token < 0 for token in tokens):
            raise InvalidJob("The slot holds a picture, which can't be saved.", "id_slot")
        size = api.llama_state_seq_get_size(self._context, slot)
        listed = packed(tokens)
        data = bytearray(len(listed) + size)
        data[: len(listed)] = listed
        state = (ctypes.c_uint8 * size).from_buffer(data, len(listed))
        if api.llama_state_seq_get_data(self._context, state, size, slot) != size:
            raise GenerationFailed("llama.cpp did not give the cells of the slot")
        return SavedSlot(len(tokens), data)

    def restore(self, slot: int, data: bytes) -> int:
        tokens, start = unpacked(data)
        room = self._info.context_length
        if len(tokens) > room:
            text = f"The file holds {len(tokens)} tokens, and the model's context {room}."
            raise InvalidJob(text, "filename")
        if any(not 0 <= token < self._info.vocab_size for token in tokens):
            raise InvalidJob("The file holds tokens that this model doesn't have.", "filename")
        self.erase(slot)
        state = np.frombuffer(data, np.uint8, offset=start)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        read = api.llama_state_seq_set_data(self._context, pointer, len(state), slot)
        if not read:
            self._cache.forget(slot)
            raise InvalidJob("The file holds no cells of this model, as it is loaded.", "filename")
        self._slots[slot].tokens = list(tokens)
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


def unpacked(data: bytes) -> tuple[tuple[int, ...], int]:
    """The tokens of a file, and where its cells begin. Raises InvalidJob."""
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[:2] != (_MAGIC, _VERSION):
        raise InvalidJob("The file is none of a saved slot.", "filename")
    count = _HEAD.unpack_from(data)[2]
    start = _HEAD.size + 4 * count
    if start > len(data):
        raise InvalidJob("The file is cut off.", "filename")
    words = np.frombuffer(data, np.int32, count, _HEAD.size)
    if not count or words[0] != _PACKED:
        return tuple(words.tolist()), start
    return _of_packed(words.tolist()), start


def _of_packed(words: Sequence[int]) -> tuple[int, ...]:
    match words:
        case [_, version, count, *rest] if version == _PACKED_VERSION and 0 <= count < len(rest):
            if rest[count]:
                raise InvalidJob("The file holds a picture, which can't be restored.", "filename")
            return tuple(rest[:count])
    raise InvalidJob("The file's list of tokens can't be read.", "filename")
