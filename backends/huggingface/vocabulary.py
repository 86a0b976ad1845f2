"""Tokens and texts of a folder with a `tokenizer.json`. For backends whose engine knows tokens only
as text.

The texts are bytes here, because a token may hold a part of a character. How the tokenizer spells
them depends on its family: byte-level BPE writes every byte as a printable character (GPT-2's
table), SentencePiece writes a space as "▁" and lone bytes as "<0x0A>". Needs the `tokenizers`
library, which every such engine brings along. Reads only, so any thread may call it.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from backends.errors import LoadFailed
from backends.huggingface.long_text import LongText
from backends.huggingface.model_folder import read_json_if_there, text_config
from backends.huggingface.tokenizer_json import BYTES, Description, longest_token_bytes
from backends.protocol import SpecialTokens

_LISTS_KEPT = 8  # of sequence breakers; one may hold as many numbers as the vocabulary has tokens
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Ends of a turn or a text that a model may write though its files don't name them all.
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
_FILL_REPOSITORY = ("<|repo_name|>", "<fim_repo>", "<reponame>", "<repo_name>")
_FILL_FILE = ("<|file_sep|>", "<file_sep>")


class HfVocabulary:
    """Of the model in `folder`, whose embedding has `size` rows. Raises LoadFailed."""

    def __init__(self, folder: Path, size: int) -> None:
        self._marked = whole_tokenizer(folder / "tokenizer.json")
        self._plain = whole_tokenizer(folder / "tokenizer.json")
        self._plain.encode_special_tokens = True
        self._long_marked = LongText(self._marked, self._neighbours)
        self._long_plain = LongText(self._plain, self._neighbours)
        self._pairs: frozenset[tuple[int, int]] | None = None
        added = self._marked.get_added_tokens_decoder()
        self._added = {id_: token.content for id_, token in added.items()}
        description = json.loads(self._marked.to_str())
        self._spell = _speller(description)
        self.longest_token_bytes = longest_token_bytes(description)
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()  # of the lists below
        self._containing: dict[tuple[str, ...], frozenset[int]] = {}
        self.size = size
        self.special = self._special(folder)
        ends = (*_named_ends(folder), *self._known_ends())
        self.ends = frozenset(id_ for id_ in ends if 0 <= id_ < size)
        self.adds_bos = self._adds_bos()

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: the texts of control tokens become those tokens. Adds no bos."""
        return (self._long_marked if special else self._long_plain).tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        """The token's bytes, control tokens included; nothing for an id that isn't known."""
        text = self._pieces.get(token)
        if text is None:
            text = self._pieces[token] = self._read_piece(token)
        return text

    def containing(self, texts: tuple[str, ...]) -> frozenset[int]:
        """The tokens in which one of `texts` occurs, and all control tokens. The last few lists
        that were asked for are kept.
        """
        with self._lock:
            found = self._containing.pop(texts, None)
        if found is None:
            found = self._search(texts)
        with self._lock:
            self._containing[texts] = found
            if len(self._containing) > _LISTS_KEPT:
                del self._containing[next(iter(self._containing))]
        return found

    def _search(self, texts: Sequence[str]) -> frozenset[int]:
        if not texts:
            return frozenset(self._added)
        occurs = re.compile(b"|".join(re.escape(text.encode()) for text in texts)).search
        hits = (id_ for id_ in range(self.size) if occurs(self.piece(id_)))
        return frozenset(hits) | self._added.keys()

    def id_of(self, text: str) -> int | None:
        """The token spelled exactly so, control tokens included."""
        id_: int | None = self._marked.token_to_id(text)
        return id_

    def _neighbours(self) -> frozenset[tuple[int, int]]:
        """Every two bytes that stand side by side in a token."""
        if self._pairs is None:
            pairs: set[tuple[int, int]] = set()
            for id_ in range(self._marked.get_vocab_size()):
                piece = self._read_piece(id_)
                pairs.update(pairwise(piece))
            self._pairs = frozenset(pairs)
        return self._pairs

    def _read_piece(self, token: int) -> bytes:
        if (added := self._added.get(token)) is not None:
            return added.encode()
        spelled = self._marked.id_to_token(token)
        return b"" if spelled is None else self._spell(spelled)

    def _known_ends(self) -> Iterator[int]:
        known = {*_ENDS, self.special.eos}
        return (id_ for id_, text in self._added.items() if text in known)

    def _known(self, texts: Sequence[str]) -> str:
        return next((text for text in texts if text in self._added.values()), "")

    def _special(self, folder: Path) -> SpecialTokens:
        named = read_json_if_there(folder / "tokenizer_config.json")
        return SpecialTokens(
            bos=_text(named.get("bos_token")),
            eos=_text(named.get("eos_token")),
            pad=_text(named.get("pad_token")),
            unk=_text(named.get("unk_token")),
            control=tuple(text for _, text in sorted(self._added.items())),
            fill_prefix=self._known(_FILL_PREFIX),
            fill_suffix=self._known(_FILL_SUFFIX),
            fill_middle=self._known(_FILL_MIDDLE),
            fill_repository=self._known(_FILL_REPOSITORY),
            fill_file=self._known(_FILL_FILE),
        )

    def _adds_bos(self) -> bool:
        ids = self._marked.encode("a").ids
        return bool(ids) and bool(self.special.bos) and ids[0] == self.id_of(self.special.bos)


def whole_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer without truncation and padding, whose settings no other code changes."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise LoadFailed(f"{path} is not a usable tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _text(token: Any) -> str:
    """A named token, written as its text or as `{"content": …}`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _named_ends(folder: Path) -> Iterator[int]:
    """By all files that name them: a chat model's turn often ends with another token than its
    texts.
    """
    config = read_json_if_there(folder / "config.json")
    generation = read_json_if_there(folder / "generation_config.json")
    for fields in (config, text_config(config), generation):
        ids = fields.get("eos_token_id")
        yield from ids if isinstance(ids, list) else () if ids is None else (ids,)


class _ByteLevel:
    """GPT-2's spelling, see `tokenizer_json.BYTES`."""

    def __init__(self) -> None:
        self._bytes: Mapping[str, int] = {spelled: byte for byte, spelled in enumerate(BYTES)}

    def __call__(self, spelled: str) -> bytes:
        known = self._bytes
        if all(character in known for character in spelled):
            return bytes(known[character] for character in spelled)
        return spelled.encode()


def _sentence_piece(spelled: str) -> bytes:
    if byte := _BYTE.fullmatch(spelled):
        return bytes((int(byte[1], 16),))
    return spelled.replace("▁", " ").encode()


def _speller(description: Description) -> Callable[[str], bytes]:
    """By the decoder the tokenizer's file names, alone or in a sequence."""
    decoder = description.get("decoder") or {}
    kinds = {decoder.get("type")} | {part.get("type") for part in decoder.get("decoders", ())}
    return _ByteLevel() if "ByteLevel" in kinds else _sentence_piece
