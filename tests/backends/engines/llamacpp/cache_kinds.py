"""Tiny GGUF models with random weights, one for each kind of memory that llama.cpp has: cells that
stay, cells of a sliding window, a recurrent state, and mixtures. A tool of tests.

Names and shapes follow llama.cpp's `src/models/*.cpp` (`load_arch_tensors`); shapes are numpy's, so
rows first.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy
from numpy.typing import NDArray

from training.gguf_file import finish

WIDTH, HEADS, HEAD, HIDDEN, LAYERS = 32, 2, 16, 48, 6
KERNEL, INNER, STATE, RANK = 4, 64, 8, 4  # of mamba
WORDS = 257
WINDOW = 16  # tokens a sliding window holds

Shapes: TypeAlias = dict[str, tuple[int, ...]]

ATTENTION: Shapes = {
    "attn_norm.weight": (WIDTH,),
    "attn_q.weight": (HEADS * HEAD, WIDTH),
    "attn_k.weight": (HEADS * HEAD, WIDTH),
    "attn_v.weight": (HEADS * HEAD, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD),
}
BIASES: Shapes = {f"attn_{part}.bias": (HEADS * HEAD,) for part in "qkv"}
HEAD_NORMS: Shapes = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
FORWARD: Shapes = {
    "ffn_norm.weight": (WIDTH,),
    "ffn_gate.weight": (HIDDEN, WIDTH),
    "ffn_up.weight": (HIDDEN, WIDTH),
    "ffn_down.weight": (WIDTH, HIDDEN),
}
AFTER_NORMS: Shapes = {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
CONVOLUTION: Shapes = {
    "attn_norm.weight": (WIDTH,),
    "shortconv.conv.weight": (WIDTH, 3),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}
MAMBA: Shapes = {
    "attn_norm.weight": (WIDTH,),
    "ssm_in.weight": (2 * INNER, WIDTH),
    "ssm_conv1d.weight": (INNER, KERNEL),
    "ssm_conv1d.bias": (INNER,),
    "ssm_x.weight": (RANK + 2 * STATE, INNER),
    "ssm_dt.weight": (INNER, RANK),
    "ssm_dt.bias": (INNER,),
    "ssm_a": (INNER, STATE),
    "ssm_d": (INNER,),
    "ssm_out.weight": (WIDTH, INNER),
}
GEMMA3 = ATTENTION | HEAD_NORMS | FORWARD | AFTER_NORMS
LFM2 = (CONVOLUTION | FORWARD, ATTENTION | HEAD_NORMS | FORWARD)

# Name: the layers, one after another and again.
KINDS: dict[str, tuple[Shapes, ...]] = {
    "llama": (ATTENTION | FORWARD,),
    "gemma3": (GEMMA3,),
    "lfm2": LFM2,
    "lfm2-window": LFM2,
    "mamba": (MAMBA,),
}
SEEING: dict[str, tuple[Shapes, ...]] = {  # the words of models that see
    "gemma3-sees": (GEMMA3,),
    "qwen2vl-sees": (ATTENTION | BIASES | FORWARD,),
}


def write(kind: str, path: Path) -> Path:
    """The model called `kind` in `KINDS` or `SEEING`."""
    architecture = kind.partition("-")[0]
    writer = gguf.GGUFWriter(path, architecture)
    _describe(writer, kind)
    words(writer)
    rng = numpy.random.default_rng(0)
    for name, shape in _tensors(kind):
        writer.add_tensor(name, values(name, shape, rng))
    finish(writer)
    return path


def words(writer: gguf.GGUFWriter, pre: str = "gpt-2") -> None:
    """A vocabulary of `WORDS` tokens: the first ends a text, the others are bytes."""
    writer.add_tokenizer_model("whitespace" if pre == "whitespace" else "gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["<end>", *map(byte_letter, range(256))])
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (WORDS - 1))
    writer.add_token_merges(["t h"])  # there must be some
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def byte_letter(byte: int) -> str:
    """The letter that stands for `byte` in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(256) if other not in own]
    return chr(byte) if byte in own else chr(0x100 + others.index(byte))


def _describe(writer: gguf.GGUFWriter, kind: str) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_vocab_size(WORDS)
    writer.add_layer_norm_rms_eps(1e-5)
    if kind == "mamba":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(INNER)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(RANK)
        return
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(10000.0)
    if kind.startswith("lfm2"):
        writer.add_head_count_kv([0, HEADS] * (LAYERS // 2))
        writer.add_shortconv_l_cache(3)
    else:
        writer.add_head_count_kv(HEADS)
    if kind == "qwen2vl-sees":
        writer.add_rope_dimension_sections([2, 3, 3, 0])
    if kind in ("gemma3", "gemma3-sees", "lfm2-window"):
        writer.add_sliding_window(WINDOW)


def _tensors(kind: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    layers = (KINDS | SEEING)[kind]
    yield "token_embd.weight", (WORDS, WIDTH)
    yield ("token_embd_norm" if kind.startswith("lfm2") else "output_norm") + ".weight", (WIDTH,)
    for index in range(LAYERS):
        for name, shape in layers[index % len(layers)].items():
            yield f"blk.{index}.{name}", shape


def values(
    name: str, shape: tuple[int, ...], rng: numpy.random.Generator
) -> NDArray[numpy.float32]:
    """Large enough that every position matters; norms near 1, and a state that fades slowly."""
    drawn = rng.standard_normal(shape)
    if name.endswith("ssm_a"):
        drawn = -0.1 - 0.1 * abs(drawn)
    elif "norm" in name:
        drawn = 1 + 0.1 * drawn
    else:
        drawn = drawn / numpy.sqrt(shape[-1]) * 1.5
    return drawn.astype(numpy.float32)
