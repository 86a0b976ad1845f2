"""A model with a vocabulary as large as today's and random weights, as a folder and as GGUF.

What masks cost depends on the vocabulary alone. The tokenizer is the bundled model's, with merges
added until it has enough tokens: every one can be reached, as in one that was trained.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import bundled
from training.export import export

LONGEST = 10  # characters of a token
SPACE = "Ġ"  # as byte-level BPE spells it


def write(folder: Path, size: int) -> Path:
    """`roundhouse-tiny/` and `roundhouse-tiny.gguf` in `folder`, with `size` tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    export(LlamaForCausalLM(config), tokenizer(size), folder)
    return folder


def tokenizer(size: int) -> Tokenizer:
    """The bundled one with more tokens."""
    description = json.loads((bundled.SAFETENSORS / "tokenizer.json").read_text())
    model = description["model"]
    for left, right in _pairs(list(model["vocab"]), size):
        model["vocab"][left + right] = len(model["vocab"])
        model["merges"].append([left, right])
    return Tokenizer.from_str(json.dumps(description))


def _pairs(known: list[str], size: int) -> Iterator[tuple[str, str]]:
    """Parts of words that make new ones, each of which is known from then on."""
    dice, seen = random.Random(0), set(known)
    starts = [text for text in known if text.removeprefix(SPACE).isalpha() and text.isascii()]
    starts += [SPACE + text for text in starts if SPACE + text in seen]
    while len(seen) < size:
        left, right = dice.choice(starts), dice.choice(starts).removeprefix(SPACE)
        word = left + right
        if right in seen and word not in seen:
            seen.add(word)
            if len(word) <= LONGEST // 2:  # else most pairs were too long
                starts.append(word)
            yield left, right
