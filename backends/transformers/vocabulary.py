"""Tokens and texts of a Hugging Face tokenizer. Reads only, so any thread may call it.

The texts are bytes, because a token may hold a part of a character. How a token's text is spelled
inside the tokenizer depends on its family: byte-level BPE writes every byte as a printable
character (GPT-2's table), SentencePiece writes a space as "▁" and lone bytes as "<0x0A>".
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from backends.protocol import SpecialTokens

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Ends of a turn or a text that a model may say though its files don't list them all; llama.cpp
# knows the same.
_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
)
# Fill-in-the-middle has no place of its own in a tokenizer's files; the families' names for it.
_FILL_PREFIX = ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>")
_FILL_SUFFIX = ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>")
_FILL_MIDDLE = ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>")


class Vocabulary:
    """`tokenizer` is transformers' own (for the named special tokens); `ends` are ids its files
    name.
    """

    def __init__(self, tokenizer: Any, ends: Sequence[int], size: int) -> None:
        fast: Tokenizer = tokenizer.backend_tokenizer
        self._marked = _quiet(fast)
        self._plain = _quiet(fast)
        self._plain.encode_special_tokens = True
        self._added = {id_: token.content for id_, token in fast.get_added_tokens_decoder().items()}
        self._spell = _speller(json.loads(fast.to_str()))
        self._pieces: dict[int, bytes] = {}
        self.size = size
        self.ends = frozenset(ends) | self._known_ends(fast)
        self.special = self._special(tokenizer)
        self.adds_bos = _adds_bos(tokenizer)

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: the texts of control tokens become those tokens. Adds no bos."""
        tokenizer = self._marked if special else self._plain
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        """The token's bytes, control tokens included; nothing for an id that isn't known."""
        text = self._pieces.get(token)
        if text is None:
            text = self._pieces[token] = self._read_piece(token)
        return text

    def _read_piece(self, token: int) -> bytes:
        if (added := self._added.get(token)) is not None:
            return added.encode()
        spelled = self._marked.id_to_token(token)
        return b"" if spelled is None else self._spell(spelled)

    def _known_ends(self, fast: Tokenizer) -> frozenset[int]:
        ids = (fast.token_to_id(text) for text in _ENDS)
        return frozenset(id_ for id_ in ids if id_ is not None and id_ in self._added)

    def _known(self, texts: Sequence[str]) -> str:
        return next((text for text in texts if text in self._added.values()), "")

    def _special(self, tokenizer: Any) -> SpecialTokens:
        return SpecialTokens(
            bos=tokenizer.bos_token or "",
            eos=tokenizer.eos_token or "",
            pad=tokenizer.pad_token or "",
            unk=tokenizer.unk_token or "",
            control=tuple(text for _, text in sorted(self._added.items())),
            fill_prefix=self._known(_FILL_PREFIX),
            fill_suffix=self._known(_FILL_SUFFIX),
            fill_middle=self._known(_FILL_MIDDLE),
        )


def _quiet(fast: Tokenizer) -> Tokenizer:
    """A copy of our own without truncation and padding, whose settings nobody else changes."""
    copy = Tokenizer.from_str(fast.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _adds_bos(tokenizer: Any) -> bool:
    ids = tokenizer("a").input_ids
    return bool(ids) and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


class _ByteLevel:
    """GPT-2's spelling: printable bytes are themselves, the others are moved to U+0100 and up."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        self._bytes: Mapping[str, int] = {chr(byte): byte for byte in printable} | {
            chr(0x100 + place): byte for place, byte in enumerate(others)
        }

    def __call__(self, spelled: str) -> bytes:
        known = self._bytes
        if all(character in known for character in spelled):
            return bytes(known[character] for character in spelled)
        return spelled.encode()


def _sentence_piece(spelled: str) -> bytes:
    if byte := _BYTE.fullmatch(spelled):
        return bytes((int(byte[1], 16),))
    return spelled.replace("▁", " ").encode()


def _speller(description: Mapping[str, Any]) -> Any:
    """By the decoder the tokenizer's file names, alone or in a sequence."""
    decoder = description.get("decoder") or {}
    kinds = {decoder.get("type")} | {part.get("type") for part in decoder.get("decoders", ())}
    return _ByteLevel() if "ByteLevel" in kinds else _sentence_piece
