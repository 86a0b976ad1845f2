"""Tokens and texts of a folder with a `tokenizer.json`, for backends whose engine knows tokens only
as text.

Needs the `tokenizers` library, which every such engine brings along. Reads only, so any thread may
call it.
"""

import json
import math
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from backends.contract.errors import LoadFailed
from backends.contract.protocol import ModelInfo, SpecialTokens
from backends.contract.spelling import BYTES, from_bytes, from_pieces
from backends.engines.model_folder import read_json_if_there, text_config
from backends.engines.tokenizing import Vocabulary, VocabularyTokenizer

SECTION = 1 << 15  # characters
AROUND = 256  # characters on each side of a cut that is tried
TRIES = 64  # cuts that fail one after another before the rest is taken as a whole
_STRIDE = 1 << 16  # characters searched without letting other threads run
# A letter before white space or a mark; never before a digit, a letter or a combining character.
_PLACE = re.compile(r"[^\W\d_](?=[\s!-/:-@\[-`{-~、。，！？：；「」…—])")

Pairs = AbstractSet[tuple[int, int]]


class Cut(msgspec.Struct, frozen=True):
    """A section ends before character `end`, the next begins at `start`: one later where the
    tokenizer puts a space before every text by itself.
    """

    end: int
    start: int


class LongText(msgspec.Struct, frozen=True, eq=False):
    """A long text to tokens section by section, with exactly the tokens of the whole. `pairs`: the
    neighbouring bytes inside all of the tokenizer's tokens, asked for when the first long text
    comes. `section`: the least characters of one.

    `Tokenizer.encode` holds the GIL from its first character to its last and takes some 200 bytes
    of memory for one of text; `encode_batch` lets go of the GIL. So a section is a batch of one,
    its memory is given back before the next one's, and other threads run meanwhile.

    A text may be cut where no token can cross and nothing on one side changes how the other is
    read: behind a letter, where a space or a punctuation mark follows. Whether that holds for a
    tokenizer is not looked up but tried at every cut: the text around it must give the tokens of
    its two halves.
    """

    _tokenizer: Tokenizer
    _pairs: Callable[[], Pairs]
    section: int = SECTION

    def tokenize(self, text: str) -> tuple[int, ...]:
        """As the tokenizer does with the whole; adds nothing to it."""
        if len(text) <= self.section:
            return tuple(self._encode(text))
        tokens: list[int] = []
        start = 0
        while start < len(text):
            cut = self._cut(text, start + self.section)
            tokens += self._encode(text[start : cut.end])
            start = cut.start
        return tuple(tokens)

    def _encode(self, text: str) -> list[int]:
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _cut(self, text: str, wanted: int) -> Cut:
        """The first place at `wanted` or behind it, or the text's end."""
        whole, tries = Cut(len(text), len(text)), 0
        while wanted < len(text):
            found = _PLACE.search(text, wanted - 1, wanted + _STRIDE)
            if found is None:
                wanted += _STRIDE
                continue
            wanted = found.end() + 1
            if (cut := self._tried(text, found.end())) is not None:
                return cut
            tries += 1
            if tries == TRIES:
                break
        return whole

    def _tried(self, text: str, place: int) -> Cut | None:
        before, after = text[place - 1].encode(), text[place].encode()
        if (before[-1], after[0]) in self._pairs():
            return None
        left, right = text[max(0, place - AROUND) : place], text[place : place + AROUND]
        together, first = self._encode(left + right), self._encode(left)
        if together == first + self._encode(right):
            return Cut(place, place)
        if text[place] == " " and together == first + self._encode(right[1:]):
            return Cut(place, place + 1)
        return None


Description = Mapping[str, Any]  # a tokenizer.json, decoded

UNKNOWN = 0
# How many times shorter a normalizer may make a text, in bytes of UTF-8. Of the Unicode forms: the
# worst of all code points, NFKC's U+1D7CE to "0"; test_vocabulary_shrinking.py tries them all.
_SHRINKING: Mapping[str, float] = {
    "NFC": 4,
    "NFD": 4,
    "NFKC": 4,
    "NFKD": 4,
    "Lowercase": 3,  # the Kelvin sign
    "Prepend": 1,
    "ByteLevel": 1,
}
_KEEPING = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength")  # pre-tokenizers
_CHARACTER = 4  # bytes of the longest one


def longest_token_bytes(description: Description) -> int:
    """The most bytes of a text that one token may stand for; 0: unknown, or without limit, as where
    the file has a step that isn't known here, or one that may drop any amount of text.

    So bytes / longest_token_bytes is a lower bound of a text's tokens.
    """
    added = description.get("added_tokens") or ()
    strips = any(token.get("lstrip") or token.get("rstrip") for token in added)
    if strips or not _keeps_all(description) or not _spells_all(description):
        return UNKNOWN
    # A byte-level spelling has one character for each byte.
    length = len if byte_level(description) else _encoded
    longest = max(
        _CHARACTER,
        max(map(length, spellings(description)), default=0),
        max((_encoded(token["content"]) for token in added), default=0),
    )
    factor = _shrinking(description.get("normalizer"))
    return UNKNOWN if math.isinf(factor) else math.ceil(longest * factor)


def _encoded(text: str) -> int:
    return len(text.encode())


def _parts(step: Description | None, inside: str) -> Iterator[Description]:
    """The single steps of one that may be a sequence, in order."""
    if step is None:
        return
    if step.get("type") == "Sequence":
        for part in step.get(inside) or ():
            yield from _parts(part, inside)
    else:
        yield step


def _shrinking(normalizer: Description | None) -> float:
    factor = 1.0
    for part in _parts(normalizer, "normalizers"):
        if part["type"] == "Replace":
            factor *= _replacing(part)
        else:
            factor *= _SHRINKING.get(part["type"], math.inf)
    return factor


def _replacing(part: Description) -> float:
    text, content = part["pattern"].get("String"), part["content"]
    if text is None or not content:  # an expression matches any amount of text
        return math.inf
    return max(1.0, len(text.encode()) / len(content.encode()))


def _keeps_all(description: Description) -> bool:
    """Whether no pre-tokenizer drops anything."""
    return all(
        part["type"] in _KEEPING
        or (part["type"] in ("Split", "Punctuation") and part.get("behavior") != "Removed")
        for part in _parts(description.get("pre_tokenizer"), "pretokenizers")
    )


def _spells_all(description: Description) -> bool:
    """Whether the model gives every character at least one token: none is dropped, and no run of
    unknown ones becomes a single token.
    """
    model = description.get("model") or {}
    if model.get("type") == "BPE":
        vocabulary = model["vocab"]
        if model.get("byte_fallback") and all(_lone(byte) in vocabulary for byte in range(256)):
            return True
        if byte_level(description) and all(character in vocabulary for character in BYTES):
            return True
        return model.get("unk_token") is not None and not model.get("fuse_unk")
    if model.get("type") == "Unigram":
        vocabulary = {spelled for spelled, _ in model["vocab"]}
        return bool(model.get("byte_fallback")) and all(_lone(b) in vocabulary for b in range(256))
    return False


def spellings(description: Description) -> Iterator[str]:
    """How the file spells the tokens of its model."""
    vocabulary = (description.get("model") or {}).get("vocab") or ()
    for entry in vocabulary:
        yield entry if isinstance(entry, str) else entry[0]


def byte_level(description: Description) -> bool:
    """Whether texts are spelled in GPT-2's printable bytes, `BYTES`."""
    steps = (
        *_parts(description.get("normalizer"), "normalizers"),
        *_parts(description.get("pre_tokenizer"), "pretokenizers"),
    )
    return any(part["type"] == "ByteLevel" for part in steps)


def _lone(byte: int) -> str:
    return f"<0x{byte:02X}>"


_LISTS_KEPT = 8  # of sequence breakers; one may hold as many numbers as the vocabulary has tokens
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


class HfVocabulary(Vocabulary):
    """Of the model in `folder`, whose embedding has `size` rows. Raises LoadFailed. `tokenizer`:
    with the control tokens in a text; nobody changes its settings.
    """

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(size)
        self.tokenizer = whole_tokenizer(folder / "tokenizer.json")
        self._plain = whole_tokenizer(folder / "tokenizer.json")
        self._plain.encode_special_tokens = True
        # What had itself would stay until a full collection of garbage, which is rare in a server.
        this = weakref.proxy(self)
        neighbours = cache(partial(HfVocabulary._neighbours, this))
        self._long_marked = LongText(self.tokenizer, neighbours)
        self._long_plain = LongText(self._plain, neighbours)
        self.containing = lru_cache(_LISTS_KEPT)(partial(HfVocabulary._containing, this))
        added = self.tokenizer.get_added_tokens_decoder()
        self._added = {id_: token.content for id_, token in added.items()}
        description = json.loads(self.tokenizer.to_str())
        self._spell = _speller(description)
        self.longest_token_bytes = longest_token_bytes(description)
        self.special = self._special(folder)
        ends = (*_named_ends(folder), *self._known_ends())
        self.ends = frozenset(id_ for id_ in ends if 0 <= id_ < size)
        self.adds_bos = self._adds_bos()

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return (self._long_marked if special else self._long_plain).tokenize(text)

    def _containing(self, texts: tuple[str, ...]) -> frozenset[int]:
        """The tokens in which one of `texts` occurs, and all control tokens."""
        if not texts:
            return frozenset(self._added)
        occurs = re.compile(b"|".join(re.escape(text.encode()) for text in texts)).search
        hits = (id_ for id_ in range(self.size) if occurs(self.piece(id_)))
        return frozenset(hits) | self._added.keys()

    def id_of(self, text: str) -> int | None:
        """The token spelled exactly so, control tokens included."""
        id_: int | None = self.tokenizer.token_to_id(text)
        return id_

    def _neighbours(self) -> frozenset[tuple[int, int]]:
        """Every two bytes that stand side by side in a token."""
        pieces = map(self._read_piece, range(self.tokenizer.get_vocab_size()))
        return frozenset(pair for piece in pieces for pair in pairwise(piece))

    def _read_piece(self, token: int) -> bytes:
        if (added := self._added.get(token)) is not None:
            return added.encode()
        spelled = self.tokenizer.id_to_token(token)
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
        ids = self.tokenizer.encode("a").ids
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


def _byte_level(spelled: str) -> bytes:
    """What isn't spelled so is taken as it is."""
    found = from_bytes(spelled)
    return spelled.encode() if found is None else found


def _speller(description: Description) -> Callable[[str], bytes]:
    """By the decoder the tokenizer's file names, alone or in a sequence."""
    decoder = description.get("decoder") or {}
    kinds = {decoder.get("type")} | {part.get("type") for part in decoder.get("decoders", ())}
    return _byte_level if "ByteLevel" in kinds else from_pieces


def tokenizer_of(info: ModelInfo) -> VocabularyTokenizer:
    """See `catalog.ContainerModule.tokenizer`. Raises LoadFailed."""
    if info.tokenizer_path is None:
        raise LoadFailed("no tokenizer.json: the tokenizer is converted when the model is loaded")
    return VocabularyTokenizer(HfVocabulary(Path(info.tokenizer_path), info.vocab_size))
