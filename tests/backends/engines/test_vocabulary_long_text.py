"""A text cut into sections has exactly the tokens of the whole, whatever the tokenizer does."""

import base64
import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

import bundled
from backends.engines.vocabulary import HfVocabulary, LongText
from tests.every import for_every
from tests.hang import HANG

GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
THOUSANDS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|[^\p{N}]+"  # looks along a whole number
DICE = random.Random(0)
SENTENCE = "the steam engine doesn't turn; Grüße an alle: it's 12,345 km away (really?)\n"
ENGLISH = " ".join(DICE.choice(SENTENCE.split(" ")) for _ in range(500))
TEXTS = {
    "english": ENGLISH,
    "chinese": "".join(DICE.choice("蒸気機関車は、とても速い。「本当」？") for _ in range(1500)),
    "code": '    if (x["name"] == null) {\n\t\treturn foo_bar(a, b);\n    }\n\n' * 90,
    "runs": "".join(DICE.choice(["a", "b "]) * DICE.randrange(700) for _ in range(20)),
    "spaces": "".join(DICE.choice([" ", "\n", "x", ".", "\t"]) for _ in range(1500)),
    "numbers": "".join(DICE.choice(["1", "22", "x ", " y"]) * 40 for _ in range(90)),
    "unbroken": base64.b64encode(DICE.randbytes(4000)).decode(),
    "marks": "".join(DICE.choice("e\u0301 o\u0308,\u0338 a ") for _ in range(4000)),
    "control": "a<|im end|> b <|im end|>c <|long, odd one|>" * 90,
    "anything": "".join(chr(DICE.choice((DICE.randrange(1, 300), 0x1F682))) for _ in range(1500)),
}


def trained(
    model: models.Model,
    before: pre_tokenizers.PreTokenizer | None,
    normalizer: normalizers.Normalizer | None = None,
    words: pre_tokenizers.PreTokenizer | None = None,
) -> Tokenizer:
    """On the texts above. Its tokens go as far as `words`, else the pre-tokenizer, lets them."""
    made = Tokenizer(model)
    made.pre_tokenizer = words or before
    made.normalizer = None if words else normalizer
    special = ["<unk>"]
    if getattr(model, "byte_fallback", False):
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    options = {"unk_token": "<unk>"} if isinstance(model, models.Unigram) else {}
    trainer = TRAINERS[type(model)]
    made.train_from_iterator(
        TEXTS.values(),
        trainer(vocab_size=900, special_tokens=special, show_progress=False, **options),
    )
    made.pre_tokenizer, made.normalizer = before, normalizer
    made.add_special_tokens(["<|im end|>"])
    made.add_tokens([AddedToken("<|long, odd one|>", lstrip=True)])
    return made


def split(expression: str) -> pre_tokenizers.PreTokenizer:
    """As Llama 3 has it: an expression, then bytes."""
    words = pre_tokenizers.Split(Regex(expression), "isolated")
    return pre_tokenizers.Sequence([words, byte_level(use_regex=False)])


def byte_level(*, add_prefix_space: bool = False, use_regex: bool = True) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def underlined(*before: normalizers.Normalizer) -> normalizers.Normalizer:
    return normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])


def fallback() -> models.Model:
    return models.BPE(unk_token="<unk>", byte_fallback=True)


TRAINERS: Mapping[type, Any] = {
    models.BPE: trainers.BpeTrainer,
    models.Unigram: trainers.UnigramTrainer,
    models.WordPiece: trainers.WordPieceTrainer,
}
SPACED = pre_tokenizers.Metaspace()
UNSPLIT = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
MAKE: Mapping[str, Callable[[], Tokenizer]] = {
    "bundled": lambda: Tokenizer.from_file(str(bundled.SAFETENSORS / "tokenizer.json")),
    "gpt2": lambda: trained(models.BPE(), byte_level()),
    "roberta": lambda: trained(models.BPE(), byte_level(add_prefix_space=True)),
    "qwen": lambda: trained(models.BPE(), split(LLAMA3), normalizers.NFC()),
    "gpt4o": lambda: trained(models.BPE(), split(GPT4O)),
    "thousands": lambda: trained(models.BPE(), split(THOUSANDS)),
    "no words": lambda: trained(models.BPE(), byte_level(use_regex=False)),
    "llama2": lambda: trained(fallback(), None, underlined(normalizers.Prepend("▁")), SPACED),
    "gemma": lambda: trained(fallback(), None, underlined(), SPACED),
    "mistral": lambda: trained(fallback(), UNSPLIT, None, SPACED),
    "t5": lambda: trained(models.Unigram(), SPACED, normalizers.NFKC()),
    "bert": lambda: trained(
        models.WordPiece(unk_token="<unk>"),
        pre_tokenizers.BertPreTokenizer(),
        normalizers.Lowercase(),
    ),
}
WITHOUT_CUTS = ("thousands", "no words")  # their words, or tokens, reach over spaces


@cache
def tokenizer(kind: str) -> Tokenizer:
    return MAKE[kind]()


@cache
def pairs(kind: str) -> frozenset[tuple[int, int]]:
    made = tokenizer(kind)
    spelled = (made.id_to_token(id_) or "" for id_ in range(made.get_vocab_size()))
    decode = decoders.ByteLevel().decode if "ByteLevel" in made.to_str() else None
    texts = (decode([text]) if decode else text.replace("▁", " ") for text in spelled)
    return frozenset(pair for text in texts for pair in pairwise(text.encode()))


class Counting:
    """The tokenizer, and how long the longest text was that it was given."""

    def __init__(self, made: Tokenizer) -> None:
        self._made = made
        self.longest = 0

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> object:
        self.longest = max(self.longest, *map(len, texts))
        return self._made.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


@for_every("name", TEXTS)
@for_every("kind", MAKE)
def test_sections_give_the_tokens_of_the_whole(kind: str, name: str) -> None:
    made, text = tokenizer(kind), TEXTS[name]
    whole = tuple(made.encode(text, add_special_tokens=False).ids)
    found = LongText(made, lambda: pairs(kind), section=300).tokenize(text)
    assert found == whole


@pytest.mark.parametrize("kind", sorted(MAKE.keys() - WITHOUT_CUTS))
def test_a_text_with_spaces_is_cut(kind: str) -> None:
    """Of the usual tokenizers; else the promise above were an empty one."""
    counting = Counting(tokenizer(kind))
    cut = LongText(counting, lambda: pairs(kind), section=300)  # type: ignore[arg-type]
    cut.tokenize(ENGLISH)
    assert counting.longest < len(ENGLISH) // 4


def test_others_run_while_a_long_text_is_tokenized() -> None:
    """The longest work between two turns of another thread is a small part of the whole. It is the
    processor's time on the text: while a busy machine runs neither thread, none passes.
    """
    vocabulary = HfVocabulary(bundled.SAFETENSORS, 768)
    done, measured = threading.Event(), threading.Event()

    def work() -> None:
        vocabulary.tokenize(ENGLISH * 60, special=True)
        done.set()
        measured.wait(HANG)  # the clock of a thread that has ended can't be read

    thread = threading.Thread(target=work)
    thread.start()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    turns = [time.clock_gettime(clock)]
    while not done.wait(0.001):
        turns.append(time.clock_gettime(clock))
    turns.append(time.clock_gettime(clock))
    measured.set()
    thread.join()
    longest = max(after - before for before, after in pairwise(turns))
    assert longest < (turns[-1] - turns[0]) / 2
