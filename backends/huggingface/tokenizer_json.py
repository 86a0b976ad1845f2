"""Analyses a `tokenizer.json`: bounds on its tokens' lengths, and their spelling.

Pure: reads the file's description, knows no text and no library. A step it doesn't know, or that
may drop any amount of text, makes the answer "unknown".
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

Description = Mapping[str, Any]  # a tokenizer.json, decoded

UNKNOWN = 0
# How many times shorter a normalizer may make a text, in bytes of UTF-8. Of the Unicode forms: the
# worst of all code points, NFKC's U+1D7CE to "0" (tests/backends/test_tokenizer_json.py).
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
    """The most bytes of a text that one token may stand for; 0: unknown, or without limit.

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


def _bytes() -> str:
    """GPT-2's spelling of the bytes 0 to 255: printable ones are themselves, the others are moved
    to U+0100 and up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(moved)) for byte in range(256))


BYTES = _bytes()
