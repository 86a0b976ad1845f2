"""Tokens and texts of a loaded GGUF model. Reads only, so any thread may call it."""

import ctypes
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from backends.contract.errors import CLOSED, GenerationFailed
from backends.contract.identity import fingerprint
from backends.contract.protocol import SpecialTokens
from backends.engines.llamacpp.library import api
from backends.engines.threads import submit_deep
from backends.engines.tokenizing import Vocabulary

T = TypeVar("T")

# For most byte-pair vocabularies llama.cpp splits a text into words with `std::regex`, which
# recurses for every character that a pattern goes on to match (unicode.cpp, unicode_regex_split):
# about 350 bytes of stack each, so that 24,000 letters without a break may end a process.
SHALLOW = 3_072  # characters; a text up to here fits any thread's stack, also of 2 MB
AT_ONCE = 400_000  # characters; a longer text is cut
STACK = 512 << 20  # bytes of address space for `AT_ONCE`; what isn't reached takes no memory
# The pre-tokenizer (`tokenizer.ggml.pre`) that scans ahead to the last digit at every one, so that
# a run of digits costs its square; and where such a run is cut: digits stay in groups of three.
QUADRATIC, MOST_DIGITS = "superbpe", 96
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


def cuts(text: str, pre: str) -> list[int]:
    """Where to cut `text`, ascending, for a vocabulary with the pre-tokenizer `pre`: after at most
    `AT_ONCE` characters, before a space if there is one. A cut changes the tokens beside it alone.
    """
    digits = set(_digit_cuts(text)) if pre == QUADRATIC else set()
    return sorted(digits.union(_long_cuts(text)))


def _long_cuts(text: str) -> Iterator[int]:
    end = AT_ONCE
    while end < len(text):
        spaces = _BETWEEN_WORDS.finditer(text, end - AT_ONCE // 8, end)
        last = deque(spaces, maxlen=1)
        cut = last[0].start() if last else end
        yield cut
        end = cut + AT_ONCE


def _digit_cuts(text: str) -> Iterator[int]:
    end = 0
    for numeric, run in groupby(text, str.isnumeric):
        start, end = end, end + sum(1 for _ in run)
        if numeric:
            yield from range(start + MOST_DIGITS, end, MOST_DIGITS)


def with_deep_stack(call: Callable[[], T]) -> T:
    """What `call` returns, called on a thread with `STACK` bytes of stack."""
    with ThreadPoolExecutor(1, "tokenize") as executor:
        return submit_deep(executor, STACK, call).result()


_STRIPS = api.LLAMA_TOKEN_ATTR_LSTRIP | api.LLAMA_TOKEN_ATTR_RSTRIP
_IN_TEXTS = (*range(0x80), *range(0x80, 0xC0), *range(0xC2, 0xF5))  # what UTF-8 is made of
_MARKED = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_USER_DEFINED


class Surveyed(msgspec.Struct):
    """What every token has to be looked at for: a third of the time that a small model's load
    takes, and the same whenever its file is loaded. Empty before the first time.
    """

    ends: frozenset[int] = frozenset()
    special: SpecialTokens | None = None
    longest_token_bytes: int = 0


@lru_cache(maxsize=64)
def surveyed(_fingerprint: bytes) -> Surveyed:
    """Of the file with that fingerprint; a few kilobytes."""
    return Surveyed()


class LlamaVocabulary(Vocabulary):
    """Of a model. `path`: its file."""

    def __init__(self, model: api.llama_model_p, path: Path | None = None) -> None:
        vocab = api.llama_model_get_vocab(model)
        assert vocab is not None
        super().__init__(api.llama_vocab_n_tokens(vocab))
        self._pointer: api.llama_vocab_p | None = vocab
        self.adds_bos = bool(api.llama_vocab_get_add_bos(vocab))
        known = surveyed(fingerprint(path)) if path else Surveyed()
        if known.special is None:
            known.ends = frozenset(t for t in range(self.size) if api.llama_vocab_is_eog(vocab, t))
            known.longest_token_bytes = self._longest_token_bytes()
            known.special = self._special()  # last: another thread may look
        self.ends, self.special = known.ends, known.special
        self.longest_token_bytes = known.longest_token_bytes
        self._pre = text_of(model, b"tokenizer.ggml.pre") or "default"
        self._recurses = api.llama_vocab_type(vocab) == api.LLAMA_VOCAB_TYPE_BPE

    @property
    def pointer(self) -> api.llama_vocab_p:
        """llama.cpp's own. Raises GenerationFailed once the model is gone, which it would not
        outlive.
        """
        if self._pointer is None:
            raise GenerationFailed(CLOSED)
        return self._pointer

    def close(self) -> None:
        """The model is about to be freed, and this with it."""
        self._pointer = None

    def _read_piece(self, token: int) -> bytes:
        if not 0 <= token < self.size:  # llama.cpp would end the process
            return b""
        size = 64
        buffer = ctypes.create_string_buffer(size)
        length = api.llama_token_to_piece(self.pointer, token, buffer, size, 0, True)
        if length < 0:  # the buffer was too small: minus the size that is needed
            buffer = ctypes.create_string_buffer(-length)
            length = api.llama_token_to_piece(self.pointer, token, buffer, -length, 0, True)
        return buffer.raw[:length]

    def _longest_token_bytes(self) -> int:
        """See `ModelInfo`. SentencePiece has tokens for all bytes and takes every space as it is;
        byte-level BPE drops the bytes that it has no token for. The other kinds normalize, and a
        token that takes the spaces around it (Phi-3) stands for any number of them.
        """
        attributes = [api.llama_vocab_get_attr(self.pointer, token) for token in range(self.size)]
        if any(attribute & _STRIPS for attribute in attributes):
            return 0
        kind = api.llama_vocab_type(self.pointer)
        if kind == api.LLAMA_VOCAB_TYPE_SPM:  # spelled with "▁", which a text may have literally
            return max(len(api.llama_vocab_get_text(self.pointer, t)) for t in range(self.size))
        if kind != api.LLAMA_VOCAB_TYPE_BPE:
            return 0
        pieces = set(map(self._read_piece, range(self.size)))
        complete = all(bytes((byte,)) in pieces for byte in _IN_TEXTS)
        return max(map(len, pieces)) if complete else 0

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Linear, and without the GIL between and within the pieces that a text is cut into; half a
        surrogate pair becomes a question mark.
        """
        if not self._recurses or (len(text) <= SHALLOW and self._pre != QUADRATIC):
            return self.tokenize_whole(text, special=special)
        places = {self._beside_token(text, place) for place in cuts(text, self._pre)}
        borders = [0, *sorted(places - {0}), len(text)]
        pieces = [text[start:end] for start, end in pairwise(borders)]
        return with_deep_stack(
            lambda: tuple(
                token for piece in pieces for token in self.tokenize_whole(piece, special=special)
            )
        )

    def _beside_token(self, text: str, place: int) -> int:
        """`place`, or where the text of a token begins that would be cut in two there."""
        spans = (
            text.find(marked, max(0, place - len(marked) + 1), place + len(marked) - 1)
            for marked in self.special.control
            if len(marked) > 1
        )
        return min((at for at in spans if at >= 0), default=place)

    def tokenize_whole(self, text: str, *, special: bool) -> tuple[int, ...]:
        """In one call of llama.cpp, which takes stack for every character without a break."""
        data = text.encode(errors="replace")
        size = len(data) + 8
        tokens = (api.llama_token * size)()
        count = api.llama_tokenize(self.pointer, data, len(data), tokens, size, False, special)
        if count < 0:
            tokens = (api.llama_token * -count)()
            count = api.llama_tokenize(
                self.pointer, data, len(data), tokens, -count, False, special
            )
        return tuple(tokens[:count])

    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the model wants before and after a text."""
        vocab = self.pointer
        data, buffer = b"a", (api.llama_token * 16)()
        count = api.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, False)
        whole, bare = tuple(buffer[:count]), self.tokenize_whole("a", special=False)
        for at in range(len(whole) - len(bare) + 1):
            if bare and whole[at : at + len(bare)] == bare:
                return whole[:at], whole[at + len(bare) :]
        return (), ()

    def _special(self) -> SpecialTokens:
        vocab = self.pointer
        return SpecialTokens(
            bos=self._control(api.llama_vocab_bos(vocab)),
            eos=self._control(api.llama_vocab_eos(vocab)),
            pad=self._control(api.llama_vocab_pad(vocab)),
            control=tuple(
                self._text(token)
                for token in range(self.size)
                if api.llama_vocab_get_attr(vocab, token) & _MARKED
            ),
            fill_prefix=self._text(api.llama_vocab_fim_pre(vocab)),
            fill_suffix=self._text(api.llama_vocab_fim_suf(vocab)),
            fill_middle=self._text(api.llama_vocab_fim_mid(vocab)),
            fill_repository=self._text(api.llama_vocab_fim_rep(vocab)),
            fill_file=self._text(api.llama_vocab_fim_sep(vocab)),
        )

    def _text(self, token: int) -> str:
        return "" if token == api.LLAMA_TOKEN_NULL else self.piece(token).decode(errors="replace")

    def _control(self, token: int) -> str:
        """Where a file names no such token, llama.cpp answers with an ordinary one."""
        known = token != api.LLAMA_TOKEN_NULL
        marked = known and api.llama_vocab_get_attr(self.pointer, token) & _MARKED
        return self._text(token) if marked else ""


def text_of(model: api.llama_model_p, key: bytes) -> str:
    """What the file says under `key`; nothing where it doesn't."""
    buffer = ctypes.create_string_buffer(256)
    length = api.llama_model_meta_val_str(model, key, buffer, len(buffer))
    return buffer.value.decode(errors="replace") if length > 0 else ""
