"""GGUF embedding models and rerankers: recognised by their headers, and the memory they will need.
No engine.
"""

from collections.abc import Mapping

import msgspec

from backends.catalog import ModelFiles
from backends.llamacpp.gguf import Header
from backends.protocol import MemoryNeed, Task
from config.engines import LlamaCppOptions

NONE, MEAN, CLS, LAST, RANK = range(5)  # llama_pooling_type (llama.h)
POOLINGS: Mapping[str, int] = {"mean": MEAN, "cls": CLS, "last": LAST, "rank": RANK}
# Architectures that read a text in both directions and write none (llama-arch.cpp); without a
# pooling of their own, the mean is taken, as sentence-transformers does.
ENCODERS = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llama-embed",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "t5encoder",
    }
)
LONGEST_BY_DEFAULT = 8_192  # tokens of one text: a pass takes it as a whole
MOST_ROWS = 64  # texts of one pass


class GgufEncoderShape(msgspec.Struct, frozen=True):
    """Of a context: tokens of one text, of one pass, and of what is computed at once."""

    length: int
    tokens: int
    at_once: int


def pooling(header: Header) -> int:
    """How the model makes one vector of a text's tokens; `NONE`: it makes none, it writes."""
    architecture = header.text("general.architecture")
    named = header.number(f"{architecture}.pooling_type", NONE)
    known = named if named in POOLINGS.values() else NONE  # a file may say "unspecified": 2**32 - 1
    return MEAN if known == NONE and architecture in ENCODERS else known


def task(header: Header) -> Task:
    """What it is for."""
    kind = pooling(header)
    if kind == NONE:
        return "generate"
    return "rank" if kind == RANK else "embed"


def shape(files: ModelFiles, options: LlamaCppOptions) -> GgufEncoderShape:
    """Only with causal attention, where the last token represents the whole, could a text be
    computed in parts. Files don't state that here, so every text is computed at once.
    """
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    length = min(length, files.positions or length)
    tokens = max(length, options.micro_batch_size)
    return GgufEncoderShape(length=length, tokens=tokens, at_once=tokens)


def estimate(files: ModelFiles, options: LlamaCppOptions, weights: int) -> MemoryNeed:
    """Of a model with `weights` bytes: cells only where it reads from the beginning, then also
    scores for every word of the vocabulary; activations, and the attention mask of a pass.
    """
    tokens = shape(files, options).tokens
    words = 0 if files.architecture in ENCODERS else 4 * files.vocab_size
    mask = tokens * (2 if options.flash_attention != "off" else 4 * (1 + files.heads))
    return MemoryNeed(
        weights=weights,
        cache=tokens * files.cache_bytes_per_token,
        engine=tokens * (files.activation_bytes + words + mask),
    )
