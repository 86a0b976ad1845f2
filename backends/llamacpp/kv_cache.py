"""The KV cache of a context, by sequences. Knows llama.cpp's rules for what is left of a sequence
that was cut, no job and no token.
"""

from llama_cpp import llama_cpp as api


class KvCache:
    """The memory of `context`. Only the engine's thread calls it."""

    def __init__(self, context: api.llama_context_p) -> None:
        self._memory = api.llama_get_memory(context)
        self._window = api.llama_model_n_swa(api.llama_get_model(context))

    def clear(self) -> None:
        """Forget all sequences."""
        api.llama_memory_clear(self._memory, True)

    def forget(self, sequence: int) -> None:
        api.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def copy(self, source: int, target: int) -> None:
        """`target` gets the cells of `source` in place of its own."""
        self.forget(target)
        api.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def cut(self, sequence: int, position: int) -> bool:
        """Forget what stands at `position` and behind it. False: what is left is not enough to go
        on from there, and the whole sequence is forgotten.

        A recurrent state can't be turned back. And a model with a sliding window may have given
        cells that the sequence's end no longer looked at to others, although the removal succeeds:
        the token at `position` looks at the `window - 1` positions before it
        (llama-hparams.h, is_masked_swa). What is there is without gaps (llama-kv-cache.cpp,
        apply_ubatch), so its first position tells.
        """
        whole = api.llama_memory_seq_pos_max(self._memory, sequence) < position
        if position > 0 and api.llama_memory_seq_rm(self._memory, sequence, position, -1):
            first = api.llama_memory_seq_pos_min(self._memory, sequence)
            if first >= 0 and (whole or first <= max(0, position - self._window + 1)):
                return True
        self.forget(sequence)
        return False
