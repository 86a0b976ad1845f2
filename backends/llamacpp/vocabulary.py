"""Tokens and texts of a loaded GGUF model. Reads only, so any thread may call it."""

import ctypes
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api

from backends.protocol import SpecialTokens

# --------------------------------------------------------------------------------------------- runs
# Where a text is cut before llama.cpp splits it into words.
#
# For most byte-pair vocabularies llama.cpp does that with `std::regex`, which recurses for every
# character that a pattern goes on to match (unicode.cpp, unicode_regex_split): with a thread's
# usual stack, 24,000 to 100,000 letters without a break end the process, whatever they are. So a
# run of one kind of characters is cut when it is longer than `LONGEST`. No other text is touched,
# and a cut changes no token but those beside it. Knows characters, no vocabulary.


# Characters; of 3, so that digits stay in the groups of three they are split into from the left. It
# leaves room for patterns that match two runs one after the other, and for stacks of 2 MB.
LONGEST = 3_072

# Kinds of characters, as bits. One match of the patterns goes on over characters of one kind.
# Combining marks go with letters in some vocabularies and with signs in others, and so does what
# this Python's Unicode doesn't know yet. In some, everything that isn't Latin goes together.
LETTER, NUMBER, SIGN, SPACE, FAR, SPACED, UNSEPARATED, INK = (1 << bit for bit in range(8))
USUAL = (LETTER, NUMBER, SIGN, SPACE, FAR)
# Vocabularies (`tokenizer.ggml.pre`) in which a match goes on over more: letters with spaces
# between them, all but spaces and some signs, all but spaces.
WIDER: Mapping[str, int] = {
    "exaone-moe": SPACED,
    "poro-chat": UNSEPARATED,
    "bloom": UNSEPARATED,
    "gpt3-finnish": UNSEPARATED,
    "viking": UNSEPARATED,
    "whitespace": INK,
}
# Those whose patterns llama.cpp has written out in C++ (unicode_regex_split_custom), or that match
# a few characters at a time.
UNLIMITED = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        *("jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5", "kimi-k2", "laguna"),
        *("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "mellum"),
        *("a.x-4.0", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt"),
        *("olmo", "jais", "trillion", "granite-docling", "starcoder", "refact", "command-r"),
        *("smollm", "codeshell", "exaone", "minerva-7b", "mellum2", "qwen2", "deepseek-r1-qwen"),
        *("kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "qwen35", "grok-2"),
        *("gemma4", "granite-embed-multi-311m", "sarvam-moe"),
    }
)

# At every digit this one scans ahead to the last, so that a run costs its square.
COSTLY: Mapping[str, tuple[int, int]] = {"superbpe": (NUMBER, 96)}

_KINDS = {
    "L": LETTER | SPACED | UNSEPARATED | INK,
    "M": LETTER | SIGN | SPACED | UNSEPARATED | INK,
    "N": NUMBER | UNSEPARATED | INK,
    "P": SIGN | UNSEPARATED | INK,
    "S": SIGN | UNSEPARATED | INK,
    "Z": SPACE,
    "C": LETTER | SIGN | SPACED | UNSEPARATED | INK,
}
_SPACES = " \t\n\v\f\r"
_SEPARATORS = "(|.,!?…。，、।۔،)"
_ASSIGNED = 0x33480  # behind it there is nothing but unassigned and private characters
_FAR_FROM = 0x0800


def cuts(text: str, pre: str) -> list[int]:
    """Where to cut `text`, ascending, for a vocabulary with the pre-tokenizer `pre`. Linear."""
    kind, longest = COSTLY.get(pre, (0, LONGEST))
    if len(text) <= longest or pre in UNLIMITED:
        return []
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _table()[codes]
    wider = (WIDER[pre],) if pre in WIDER else ()
    places = {place for one in (*USUAL, *wider) for place in _cuts(kinds & np.uint8(one), LONGEST)}
    return sorted(places.union(_cuts(kinds & np.uint8(kind), longest)))


def _cuts(inside: npt.NDArray[np.uint8], longest: int) -> Iterator[int]:
    """Places in the runs of what isn't 0."""
    breaks = np.concatenate(([-1], np.flatnonzero(inside == 0), [len(inside)]))
    for index in np.flatnonzero(np.diff(breaks) > longest + 1):
        start, end = int(breaks[index]) + 1, int(breaks[index + 1])
        yield from range(start + longest, end, longest)


@cache
def _table() -> npt.NDArray[np.uint8]:
    """The kinds of every character, by its code."""
    table = np.full(0x110000, _KINDS["C"] | FAR, np.uint8)
    table[:_ASSIGNED] = [_kinds_of(chr(code)) for code in range(_ASSIGNED)]
    table[list(map(ord, _SEPARATORS))] &= ~np.uint8(UNSEPARATED)
    table[ord(" ")] |= SPACED
    return table


def _kinds_of(character: str) -> int:
    if character in _SPACES:
        return SPACE
    far = FAR if ord(character) >= _FAR_FROM else 0
    if character.isspace():  # for llama.cpp it may be a sign
        return SPACE | _KINDS["S"] | far
    return _KINDS[unicodedata.category(character)[0]] | far


_STRIPS = api.LLAMA_TOKEN_ATTR_LSTRIP | api.LLAMA_TOKEN_ATTR_RSTRIP
_IN_TEXTS = (*range(0x80), *range(0x80, 0xC0), *range(0xC2, 0xF5))  # what UTF-8 is made of
_MARKED = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_USER_DEFINED


class LlamaVocabulary:
    """The texts are bytes, because a token may hold a part of a character."""

    def __init__(self, model: api.llama_model_p) -> None:
        vocab = api.llama_model_get_vocab(model)
        assert vocab is not None
        self.pointer = vocab
        self.size = api.llama_vocab_n_tokens(vocab)
        self.adds_bos = bool(api.llama_vocab_get_add_bos(vocab))
        self.ends = frozenset(t for t in range(self.size) if api.llama_vocab_is_eog(vocab, t))
        self._pieces: dict[int, bytes] = {}
        self.special = self._special()
        self.longest_token_bytes = self._longest_token_bytes()
        self._pre = text_of(model, b"tokenizer.ggml.pre") or "default"
        self._recurses = api.llama_vocab_type(vocab) == api.LLAMA_VOCAB_TYPE_BPE  # see `runs`

    def piece(self, token: int) -> bytes:
        """The token's bytes, control tokens included; nothing for an id that isn't known."""
        text = self._pieces.get(token)
        if text is None:
            text = self._read_piece(token)
            if 0 <= token < self.size:
                self._pieces[token] = text
        return text

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
        """`special`: the texts of control tokens become those tokens. Adds no bos.

        Linear, and without the GIL between and within the pieces that a text is cut into; half a
        surrogate pair becomes a question mark.
        """
        if not self._recurses:
            return self.tokenize_whole(text, special=special)
        places = {self._beside_token(text, place) for place in cuts(text, self._pre)}
        borders = [0, *sorted(places - {0}), len(text)]
        pieces = (text[start:end] for start, end in pairwise(borders))
        return tuple(
            token for piece in pieces for token in self.tokenize_whole(piece, special=special)
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
        """In one call of llama.cpp, which a long run of one kind of characters may end."""
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

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

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
