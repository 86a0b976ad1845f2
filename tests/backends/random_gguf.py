"""GGUF files of any size with random weights, for what depends on a model's dimensions alone."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import msgspec
import numpy

import bundled
from training.gguf_file import finish

# llama.cpp knows them by their names.
FILLING = (
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
KERNEL = 4  # positions that a recurrent layer's convolution sees
TENSORS_OF = {  # besides those that all of them have
    "llama": (),
    "lfm2": ("attn_q_norm.weight", "attn_k_norm.weight"),
    "qwen3moe": ("attn_q_norm.weight", "attn_k_norm.weight"),
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
    """`window`: tokens that a layer with sliding attention sees; 0: all see all. `inner`: of the
    feed-forward, with `experts` of each one. `state`: values of a recurrent layer for each of the
    `2 * width` that it is wide.
    """

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
    experts: int = 0
    experts_used: int = 0
    state: int = 16
    fills: bool = False  # its last tokens are those of filling in

    @property
    def recurrent(self) -> tuple[bool, ...]:
        """Which layers have a state in place of attention."""
        every = {"mamba": 1, "lfm2": 2}.get(self.architecture)
        return tuple(every is not None and n % every == 0 for n in range(self.layers))


DRAWN = 1_000_003  # numbers


def write(path: Path, model: Dimensions) -> Path:
    """A model that loads and says nothing sensible."""
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.inner)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv([0 if one else model.kv_heads for one in model.recurrent])
    writer.add_key_length(model.head)
    writer.add_value_length(model.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(model.head)
    writer.add_vocab_size(model.vocabulary)
    if model.experts:
        writer.add_expert_count(model.experts)
        writer.add_expert_used_count(model.experts_used)
        writer.add_expert_feed_forward_length(model.inner)
    if model.architecture == "mamba":
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(2 * model.width)
        writer.add_ssm_state_size(model.state)
        writer.add_ssm_time_step_rank(model.width // 16)
    if model.architecture == "lfm2":
        writer.add_shortconv_l_cache(KERNEL)
    if model.window:
        writer.add_sliding_window(model.window)
    _add_tokenizer(writer, model.vocabulary, FILLING if model.fills else ())
    rng = numpy.random.default_rng(0)
    for name, shape in _tensors(model):
        plain = len(shape) == 1 or "conv" in name or name.endswith("ssm_a")
        kind = numpy.float32 if plain else numpy.float16
        writer.add_tensor(name, numpy.resize(_drawn(rng, shape).astype(kind), shape))
    finish(writer)
    return path


def _drawn(rng: numpy.random.Generator, shape: Sequence[int]) -> "numpy.typing.NDArray[Any]":
    """The weights of one tensor. Those of a large one repeat, because drawing them all takes
    seconds; no row's length divides `DRAWN`, a prime number, so that rows differ.
    """
    return rng.standard_normal(min(math.prod(shape), DRAWN)) * 0.1


def _add_tokenizer(writer: gguf.GGUFWriter, size: int, last: tuple[str, ...]) -> None:
    model = json.loads((bundled.SAFETENSORS / "tokenizer.json").read_text())["model"]
    words = model["vocab"]
    tokens = [*sorted(words, key=words.__getitem__), *(f"word{n}" for n in range(len(words), size))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    kinds = [gguf.TokenType.NORMAL] * (size - len(last)) + [gguf.TokenType.CONTROL] * len(last)
    writer.add_token_list([*tokens[: size - len(last)], *last])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


Shapes: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]


def _tensors(model: Dimensions) -> Shapes:
    yield "token_embd.weight", (model.vocabulary, model.width)
    last = "token_embd_norm" if model.architecture == "lfm2" else "output_norm"
    yield f"{last}.weight", (model.width,)
    for layer, recurrent in enumerate(model.recurrent):
        for name, shape in _layer(model, recurrent=recurrent):
            yield f"blk.{layer}.{name}", shape


def _layer(model: Dimensions, *, recurrent: bool) -> Shapes:
    yield "attn_norm.weight", (model.width,)
    if model.architecture == "mamba":
        yield from _mamba(model)
        return
    yield from _convolution(model) if recurrent else _attention(model)
    yield "ffn_norm.weight", (model.width,)
    yield from _experts(model) if model.experts else _feed_forward(model)


def _attention(model: Dimensions) -> Shapes:
    queries, keys = model.heads * model.head, model.kv_heads * model.head
    sizes = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
    heads = {"attn_q_norm": model.head, "attn_k_norm": model.head}
    for name, size in sizes.items():
        yield f"{name}.weight", (size, model.width)
    yield "attn_output.weight", (model.width, queries)
    for name in TENSORS_OF[model.architecture]:
        yield name, ((sizes | heads).get(name.partition(".")[0], model.width),)


def _feed_forward(model: Dimensions) -> Shapes:
    yield "ffn_gate.weight", (model.inner, model.width)
    yield "ffn_up.weight", (model.inner, model.width)
    yield "ffn_down.weight", (model.width, model.inner)


def _experts(model: Dimensions) -> Shapes:
    yield "ffn_gate_inp.weight", (model.experts, model.width)
    yield "ffn_gate_exps.weight", (model.experts, model.inner, model.width)
    yield "ffn_up_exps.weight", (model.experts, model.inner, model.width)
    yield "ffn_down_exps.weight", (model.experts, model.width, model.inner)


def _convolution(model: Dimensions) -> Shapes:
    yield "shortconv.conv.weight", (model.width, KERNEL)
    yield "shortconv.in_proj.weight", (3 * model.width, model.width)
    yield "shortconv.out_proj.weight", (model.width, model.width)


def _mamba(model: Dimensions) -> Shapes:
    inner, rank = 2 * model.width, model.width // 16
    yield "ssm_in.weight", (2 * inner, model.width)
    yield "ssm_conv1d.weight", (inner, KERNEL)
    yield "ssm_conv1d.bias", (inner,)
    yield "ssm_x.weight", (rank + 2 * model.state, inner)
    yield "ssm_dt.weight", (inner, rank)
    yield "ssm_dt.bias", (inner,)
    yield "ssm_a", (inner, model.state)
    yield "ssm_d", (inner,)
    yield "ssm_out.weight", (model.width, inner)


MODELS = {
    "small": Dimensions(),
    "inner": Dimensions(inner=4096),
    "wide": Dimensions(width=512, heads=16, kv_heads=4),
    "words": Dimensions(width=256, vocabulary=32_000),
    "long": Dimensions(context=8192),
    "deep": Dimensions(architecture="qwen2", layers=8),
    "normed": Dimensions(architecture="qwen3", inner=1024),
    "windowed": Dimensions(architecture="gemma3", window=64, layers=12),
    "windowed-large": Dimensions(
        architecture="gemma3",
        window=512,
        layers=6,
        width=640,
        inner=2048,
        vocabulary=32_000,
        context=4096,
    ),
    "mamba": Dimensions(architecture="mamba", width=512, layers=16),
    "mamba-large": Dimensions(architecture="mamba", width=1024, layers=4, state=64),
    "mixed": Dimensions(
        architecture="lfm2", width=512, heads=16, layers=8, inner=1024, context=4096
    ),
    "mixed-narrow": Dimensions(
        architecture="lfm2", width=1024, heads=32, layers=4, inner=512, vocabulary=8_000
    ),
    "experts": Dimensions(architecture="qwen3moe", experts=16, experts_used=4, inner=256),
    "experts-many": Dimensions(
        architecture="qwen3moe", experts=64, experts_used=8, inner=384, width=512, layers=3
    ),
}
