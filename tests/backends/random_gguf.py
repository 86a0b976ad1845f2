"""GGUF files of any size with random weights, for what depends on a model's dimensions alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import msgspec
import numpy

import bundled
from training.gguf_file import finish

TENSORS_OF = {  # besides those that all of them have
    "llama": (),
    "qwen2": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight"),
    "gemma3": (
        "attn_q_norm.weight",
        "attn_k_norm.weight",
        "post_attention_norm.weight",
        "post_ffw_norm.weight",
    ),
}


class Dimensions(msgspec.Struct, frozen=True, kw_only=True):
    """`window`: tokens that a layer with sliding attention sees; 0: all see all."""

    architecture: str = "llama"
    width: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    inner: int = 256
    vocabulary: int = 768
    context: int = 1024
    window: int = 0


def write(path: Path, model: Dimensions) -> Path:
    """A model that loads and says nothing sensible."""
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.inner)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head)
    writer.add_value_length(model.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(model.head)
    writer.add_vocab_size(model.vocabulary)
    if model.window:
        writer.add_sliding_window(model.window)
    _add_tokenizer(writer, model.vocabulary)
    rng = numpy.random.default_rng(0)
    for name, shape in _tensors(model):
        kind = numpy.float32 if len(shape) == 1 else numpy.float16
        writer.add_tensor(name, (rng.standard_normal(shape) * 0.1).astype(kind))
    finish(writer)
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    model = json.loads((bundled.SAFETENSORS / "tokenizer.json").read_text())["model"]
    words = model["vocab"]
    tokens = [*sorted(words, key=words.__getitem__), *(f"word{n}" for n in range(len(words), size))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens[:size])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def _tensors(model: Dimensions) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner = model.width, model.inner
    queries, keys = model.heads * model.head, model.kv_heads * model.head
    sizes = {
        "attn_q": queries,
        "attn_k": keys,
        "attn_v": keys,
        "attn_q_norm": model.head,
        "attn_k_norm": model.head,
    }
    yield "token_embd.weight", (model.vocabulary, width)
    yield "output_norm.weight", (width,)
    for layer in range(model.layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (width,)
        yield f"{block}.ffn_norm.weight", (width,)
        yield f"{block}.attn_q.weight", (queries, width)
        yield f"{block}.attn_k.weight", (keys, width)
        yield f"{block}.attn_v.weight", (keys, width)
        yield f"{block}.attn_output.weight", (width, queries)
        yield f"{block}.ffn_gate.weight", (inner, width)
        yield f"{block}.ffn_up.weight", (inner, width)
        yield f"{block}.ffn_down.weight", (width, inner)
        for name in TENSORS_OF[model.architecture]:
            yield f"{block}.{name}", (sizes.get(name.partition(".")[0], width),)


MODELS = {
    "small": Dimensions(),
    "inner": Dimensions(inner=4096),
    "wide": Dimensions(width=512, heads=16, kv_heads=4),
    "words": Dimensions(width=256, vocabulary=32_000),
    "long": Dimensions(context=8192),
    "deep": Dimensions(architecture="qwen2", layers=8),
    "normed": Dimensions(architecture="qwen3", inner=1024),
    "windowed": Dimensions(architecture="gemma3", window=64, layers=12),
}
