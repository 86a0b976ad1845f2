"""What a tokenizer.json says about how far a text may shrink on its way to tokens."""

import json
import sys
import unicodedata
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer

import bundled
from backends.contract.spelling import BYTES
from backends.engines.vocabulary import longest_token_bytes

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
FALLBACK = {f"<0x{byte:02X}>": byte for byte in range(256)}
HOSTILE = (
    "",
    "a",
    "a" * 999,
    " " * 999,
    "a   b\n\n\n",
    "\u212a\u0300" * 99,
    "\U0001d7ce" * 99,
    "\u0390\u03b9\u0308\u0301" * 99,
    "\x00\x01\u200b" * 99,
    "蒸気機関車🚂" * 99,
    "▁ ▁" * 99,
)


def bpe(vocabulary: list[str], **changes: Any) -> dict[str, Any]:
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {spelled: id_ for id_, spelled in enumerate(vocabulary)},
        "merges": [],
    }
    described: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    for name, value in changes.items():
        (model if name in model else described)[name] = value
    return described


def byte_level(**changes: Any) -> dict[str, Any]:
    return bpe([*BYTES, "ab"], merges=[["a", "b"]], **changes)


def fallback(**changes: Any) -> dict[str, Any]:
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    chosen = {
        "normalizer": spaces,
        "pre_tokenizer": None,
        "byte_fallback": True,
        "unk_token": "<unk>",
        "fuse_unk": True,
        "merges": [["▁", "a"]],
    }
    return bpe([*FALLBACK, "<unk>", "▁", "a", "▁a"], **(chosen | changes))


def step(name: str, **more: Any) -> dict[str, Any]:
    return {"type": name, **more}


@pytest.mark.parametrize(
    ("described", "bound"),
    [
        (byte_level(), 4),
        (bpe([*BYTES, "Ġ" * 50]), 50),
        (byte_level(normalizer=step("NFC")), 16),
        (byte_level(normalizer=step("NFKC")), 16),
        (byte_level(normalizer=step("Lowercase")), 12),
        (fallback(), 6),
        (fallback(normalizer=step("Sequence", normalizers=[step("Prepend", prepend="▁")])), 6),
    ],
)
def test_no_token_stands_for_more_than_is_said(described: dict[str, Any], bound: int) -> None:
    assert longest_token_bytes(described) == bound
    tokenizer = Tokenizer.from_str(json.dumps(described))
    for text in HOSTILE:
        count = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert count * bound >= len(text.encode()), text


@pytest.mark.parametrize(
    "described",
    [
        byte_level(normalizer=step("Strip", strip_left=True, strip_right=True)),
        byte_level(normalizer=step("StripAccents")),
        byte_level(normalizer=step("Nmt")),
        byte_level(normalizer=step("Sequence", normalizers=[step("NFC"), step("Unheard")])),
        byte_level(normalizer=step("Replace", pattern={"Regex": " +"}, content=" ")),
        byte_level(normalizer=step("Replace", pattern={"String": "a"}, content="")),
        byte_level(pre_tokenizer=step("Sequence", pretokenizers=[step("Whitespace"), BYTE_LEVEL])),
        byte_level(pre_tokenizer=step("Split", pattern={"String": " "}, behavior="Removed")),
        byte_level(added_tokens=[{"content": "<|end|>", "rstrip": True}]),
        bpe(["a"]),  # drops what it doesn't know
        bpe(["a", "<unk>"], unk_token="<unk>", fuse_unk=True),
        {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "byte_fallback": False}},
        {},
    ],
)
def test_what_may_shrink_without_limit_is_unknown(described: dict[str, Any]) -> None:
    assert longest_token_bytes(described) == 0


def test_no_unicode_form_shrinks_a_text_more_than_fourfold() -> None:
    """Of a composed character: the longest characters that its parts may have been written as."""
    longest: dict[str, int] = {}
    for code in range(sys.maxunicode + 1):
        written = chr(code)
        if not 0xD800 <= code < 0xE000:
            parts = unicodedata.normalize("NFKD", written)
            size = len(written.encode())
            assert size <= 4 * len(parts.encode())
            if len(parts) == 1:
                longest[parts] = max(longest.get(parts, 0), size)
    for code in range(sys.maxunicode + 1):
        composed = chr(code)
        if not 0xD800 <= code < 0xE000 and unicodedata.decomposition(composed):
            parts = unicodedata.normalize("NFD", composed)
            size = sum(longest.get(part, len(part.encode())) for part in parts)
            assert size <= 4 * len(unicodedata.normalize("NFC", composed).encode()) or (
                unicodedata.normalize("NFKC", composed) != composed
            )


def test_the_bundled_tokenizer_has_a_bound() -> None:
    described = json.loads((bundled.SAFETENSORS / "tokenizer.json").read_text())
    assert longest_token_bytes(described) == 20
