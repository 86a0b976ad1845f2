"""The tokenizer: byte-level BPE of 768 tokens with ChatML, thinking and tool markers.

It splits text exactly as llama.cpp's pre-tokenizer "smollm" does (single digits, then GPT-2's
pattern), so that both engines see the same tokens. No merge ever joins a space or a newline to
anything that follows: a word is the same tokens at the start of an answer, after a space and inside
JSON quotes. That is what lets a model this small copy words from one place to another.
"""

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 768
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
LLAMA_CPP_PRE_TOKENIZER = "smollm"


def _final_split() -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]


def _without_markers(texts: Iterable[str]) -> Iterable[str]:
    """Markers are tokens already; their letters are not to be learnt as words."""
    pattern = re.compile("|".join(re.escape(token) for token in (*CONTROL_TOKENS, *MARKERS)))
    return (pattern.sub("\n", text) for text in texts)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer fitted to `texts`; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    spaces_apart = pre_tokenizers.Split(Regex(r" (?=\p{L})|\n"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces_apart, *_final_split()])
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[*CONTROL_TOKENS, *MARKERS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_markers(texts), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_final_split())
    tokenizer.decoder = decoders.ByteLevel()
    # Markers are text that a reader must see; only the ChatML tokens are hidden when decoding.
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in CONTROL_TOKENS]
    )
    tokenizer.add_tokens(
        [AddedToken(marker, special=False, normalized=False) for marker in MARKERS]
    )
    return tokenizer
