"""Tokens of a tokenizer.json, as bytes."""

import json
import shutil
import weakref
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

import bundled
from backends.contract.errors import LoadFailed
from backends.engines.vocabulary import HfVocabulary
from tests.backends.places.workers import uncollected

TINY = HfVocabulary(bundled.SAFETENSORS, 768)


@pytest.mark.parametrize("text", ["Hello, you!", "Grüße, 蒸気機関車 🚂", "a\n\n  b\t", ""])
def test_pieces_join_to_the_text(text: str) -> None:
    tokens = TINY.tokenize(text, special=False)
    assert b"".join(map(TINY.piece, tokens)) == text.encode()
    assert TINY.detokenize(tokens) == text


def test_control_tokens_are_tokens_only_when_asked_for() -> None:
    (token,) = TINY.tokenize("<|im_end|>", special=True)
    assert token in TINY.ends
    assert TINY.piece(token) == b"<|im_end|>"
    plain = TINY.tokenize("<|im_end|>", special=False)
    assert token not in plain
    assert TINY.detokenize(plain) == "<|im_end|>"


def test_what_its_files_name_is_known() -> None:
    assert (TINY.special.bos, TINY.special.eos, TINY.special.pad) == (
        "",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert "<think>" in TINY.special.control
    assert not TINY.adds_bos
    assert TINY.piece(100_000) == b""


def test_tokens_that_hold_a_text_are_found() -> None:
    (newline,) = TINY.tokenize("\n", special=False)
    (letter,) = TINY.tokenize("x", special=False)
    found = TINY.containing(("\n",))
    assert newline in found
    assert letter not in found


def test_lists_of_texts_are_forgotten_again() -> None:
    """Every request may bring its own: what is kept of them does not grow."""
    made = HfVocabulary(bundled.SAFETENSORS, 768)
    kept = [weakref.ref(made.containing((f"{number}",))) for number in range(200)]
    assert sum(found() is not None for found in kept) <= 8
    assert made.containing(()) == made.containing(("<|im_end|>",))
    assert made.containing(("a.c", "\n")) == made.containing(("\n",))


def test_sentence_piece_spells_spaces_and_bytes_its_own_way(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁Hi": 1, "<0xF0>": 2, "<0x9F>": 3}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"}
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    described = {"version": "1.0", "added_tokens": [], "model": model, "decoder": decoder}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    made = HfVocabulary(tmp_path, 4)
    assert [made.piece(token) for token in (1, 2, 3)] == [b" Hi", b"\xf0", b"\x9f"]


def test_ends_are_gathered_from_all_files(tmp_path: Path) -> None:
    made = tmp_path / "model"
    shutil.copytree(bundled.SAFETENSORS, made)
    (made / "generation_config.json").write_text('{"eos_token_id": [5, 6, 9999]}')
    assert {2, 5, 6} <= HfVocabulary(made, 768).ends
    assert 9999 not in HfVocabulary(made, 768).ends


def test_a_broken_tokenizer_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadFailed, match=r"tokenizer.json is not a usable tokenizer"):
        HfVocabulary(tmp_path, 4)


def test_it_is_gone_with_its_last_user() -> None:
    with uncollected():
        vocabulary = HfVocabulary(bundled.SAFETENSORS, 768)
        vocabulary.tokenize("A word and ", special=False)
        assert vocabulary.containing((":",)) == vocabulary.containing((":",))
        kept = weakref.ref(vocabulary)
        del vocabulary
        assert kept() is None
