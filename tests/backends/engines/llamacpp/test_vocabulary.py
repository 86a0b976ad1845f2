"""No text ends the process while it is tokenized, whatever splits it into words; and cutting it up
changes nothing where that isn't needed.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import pytest

import bundled
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.vocabulary import AT_ONCE, SHALLOW, LlamaVocabulary, cuts
from tests.backends.engines.llamacpp import cache_kinds
from tests.every import for_every
from training.gguf_file import finish

# Every pre-tokenizer that llama-cpp-python 0.3.36 knows (llama-vocab.cpp, `tokenizer_pre ==`); the
# first of a line has the patterns of all in it.
FAMILIES = (
    ("default",),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ("dbrx", "jina-v5-nano", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"),
    ("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0"),
    ("mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "mellum", "modern-bert"),
    ("roberta-bpe", "jina-v1-en", "jina-v2-code"),
    ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"),
    ("solar-open", "grok-2"),
    ("qwen35",),
    ("kimi-k2",),
    ("laguna",),
    ("minicpm5",),
    ("deepseek-llm",),
    ("deepseek-coder",),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    ("spark2_5",),
    ("youtu",),
    ("falcon",),
    ("jais-2",),
    ("poro-chat", "bloom", "gpt3-finnish"),
    ("viking",),
    ("tekken",),
    ("chameleon",),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    ("granite-embed-multi-97m",),
    ("tiny_aya", "cohere2moe"),
    ("superbpe",),
    ("bailingmoe", "bailingmoe2", "llada-moe"),
    ("seed-coder",),
    ("ufakzeka",),
    ("afmoe",),
    ("exaone-moe",),
    ("whitespace",),
    ("gemma4", "granite-embed-multi-311m", "sarvam-moe"),
)
PRES = [pre for family in FAMILIES for pre in family]
RUNS = (
    "a", "A", "aB", "1", " ", "\n", ".", "中", "🚂", "\u0301", "a\u0301", "ab ", "a ", "¹1",
    '{"a":1},', ".a", "\t ", "ก้", "\x1c.", "。中", "\u00a0", "\U000323af", "\ue000a", "..\n", "'s",
)  # fmt: skip


def write(pre: str, path: Path) -> Path:
    """A vocabulary alone."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(cache_kinds.WORDS)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    cache_kinds.words(writer, pre)
    finish(writer)
    return path


@contextmanager
def loaded(pre: str, folder: Path) -> Iterator[LlamaVocabulary]:
    params = api.llama_model_default_params()
    params.vocab_only = True
    path = write(pre, folder / f"{pre}.gguf")
    model = api.llama_model_load_from_file(str(path).encode(), params)
    assert model
    try:
        yield LlamaVocabulary(model)
    finally:
        api.llama_model_free(model)


def survivor(pres: list[str], texts: list[str], length: int, folder: Path) -> None:
    """What the child process does: `texts`, over and over, for every one of `pres`. A text that
    ends it is the last one told.
    """
    for pre in pres:
        with loaded(pre, folder) as words:
            for text in texts:
                sys.stdout.write(f"{pre} {text!a}\n")
                sys.stdout.flush()
                words.tokenize(text * (length // len(text)), special=True)
    sys.stdout.write("alive\n")


def survives(pres: list[str], texts: list[str], length: int, folder: Path) -> None:
    call = f"survivor({pres!r}, {texts!r}, {length}, Path({str(folder)!r}))"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from tests.backends.engines.llamacpp.test_vocabulary import *\n{call}",
        ],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.stdout.endswith("alive\n"), done.stdout[-100:] + done.stderr[-1000:]


@pytest.mark.slow
def test_no_unbroken_text_ends_the_process(tmp_path: Path) -> None:
    rng = random.Random(0)
    firsts = [family[0] for family in FAMILIES]
    survives(firsts, ["a", rng.choice(RUNS)], 60_000, tmp_path)


@pytest.mark.slow
def test_the_longest_piece_of_any_one_character_fits_the_stack(tmp_path: Path) -> None:
    survives([family[0] for family in FAMILIES], ["a"], AT_ONCE + 1, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family[0])
def test_no_unbroken_text_of_any_kind_ever_does(family: tuple[str, ...], tmp_path: Path) -> None:
    survives(list(family[:1]), list(RUNS), AT_ONCE + 1, tmp_path)
    survives(list(family[1:]), ["a", ".", "1"], AT_ONCE + 1, tmp_path)


@pytest.mark.slow
@for_every("pre", [family[0] for family in FAMILIES])
def test_ordinary_text_is_tokenized_as_ever(pre: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    parts = [run * rng.randrange(1, 60) for run in RUNS for _ in range(3)]
    with loaded(pre, tmp_path) as words:
        text = "Some words. " * 500 + "".join(rng.sample(parts, len(parts)))
        assert len(text) > SHALLOW
        assert words.tokenize(text, special=True) == words.tokenize_whole(text, special=True)


def test_every_named_pre_tokenizer_is_one_llama_cpp_knows() -> None:
    known = Path(api._lib._name).read_bytes()  # noqa: SLF001 - the library that was loaded
    assert all(pre.encode() in known for pre in PRES)


def test_a_long_run_loses_no_character_and_keeps_its_digits_in_threes(tmp_path: Path) -> None:
    with loaded("superbpe", tmp_path) as words:
        for text in ("a" * 10_000, "中" * 9_000, "🚂" * 7_000):
            assert words.detokenize(words.tokenize(text, special=False)) == text
        digits = "123456789" * 120
        assert words.tokenize(digits, special=False) == words.tokenize_whole(digits, special=False)


def test_no_cut_goes_through_a_control_token(tmp_path: Path) -> None:
    with loaded("gpt-2", tmp_path) as words:
        (end,) = words.tokenize("<end>", special=True)
        for before in range(AT_ONCE - 6, AT_ONCE + 2):
            text = "a" * before + "<end>" + "a" * SHALLOW
            assert words.tokenize(text, special=True).count(end) == 1


def test_texts_are_cut_only_where_they_are_too_long() -> None:
    assert cuts("a" * AT_ONCE, "tekken") == []
    assert cuts("a" * (2 * AT_ONCE + 1), "tekken") == [AT_ONCE, 2 * AT_ONCE]
    assert cuts("1" * 200, "tekken") == []
    assert cuts("a" + "1" * 200, "superbpe") == [97, 193]


def test_a_text_of_words_is_cut_before_a_space_and_nowhere_else_as_it_grows() -> None:
    text = "some words  " * (AT_ONCE // 6)
    (place, *further) = cuts(text, "tekken")
    assert text[place - 1 : place + 2] == "e w"
    assert AT_ONCE * 7 // 8 <= place < AT_ONCE
    assert cuts(text + "and more", "tekken")[: 1 + len(further)] == [place, *further]


def test_half_a_surrogate_pair_is_a_question_mark(tmp_path: Path) -> None:
    with loaded("gpt-2", tmp_path) as words:
        assert words.detokenize(words.tokenize("a\ud83db", special=True)) == "a?b"


class Counting(LlamaVocabulary):
    """Counts the pieces that it reads."""

    read = 0

    def _read_piece(self, token: int) -> bytes:
        self.read += 1
        return super()._read_piece(token)


def test_a_file_that_is_loaded_again_has_no_token_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "again.gguf"
    path.write_bytes(bundled.GGUF.read_bytes())
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(path).encode(), params)
    assert model
    try:
        first, second = Counting(model, path), Counting(model, path)
        os.utime(path, (1, 1))
        third = Counting(model, path)
        assert (first.read >= first.size, second.read, third.read) == (True, 0, first.read)
        for other in (second, third):
            assert other.ends == first.ends
            assert other.special == first.special
            assert other.longest_token_bytes == first.longest_token_bytes
    finally:
        api.llama_model_free(model)
