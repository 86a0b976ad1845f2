"""A BERT of random weights as a GGUF file of two megabytes: an encoder, or a cross-encoder."""

from pathlib import Path
from string import ascii_lowercase

import gguf
import numpy

from tests.backends.encoder_gguf import MEAN, RANK, WIDE
from training.gguf_file import finish

WIDTH, INNER, LAYERS, HEADS, CONTEXT = 256, 512, 2, 4, 64
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, *(f"▁{one}" for one in ascii_lowercase), *ascii_lowercase)


def write(path: Path, *, pooling: int = MEAN, rotary: bool = False) -> Path:
    """`rotary`: Nomic's, which turns queries and keys by their positions."""
    writer = gguf.GGUFWriter(path, "nomic-bert" if rotary else "bert")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    _add_tokenizer(writer)
    drawn = numpy.random.default_rng(0)
    for name, shape in _shapes(rank=pooling == RANK, rotary=rotary).items():
        kind = numpy.float32 if len(shape) == 1 or name in WIDE else numpy.float16
        writer.add_tensor(name, (drawn.standard_normal(shape) * 0.1).astype(kind))
    finish(writer)
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    control = [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types([*control, *[gguf.TokenType.NORMAL] * (len(WORDS) - len(SPECIAL))])
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)


def _shapes(*, rank: bool, rotary: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(WORDS), WIDTH)}
    shapes["token_types.weight"] = (2, WIDTH)
    if not rotary:
        shapes["position_embd.weight"] = (CONTEXT, WIDTH)
    if rank:
        shapes |= {"cls.weight": (WIDTH, WIDTH), "cls.bias": (WIDTH,)}
        shapes |= {"cls.output.weight": (1, WIDTH), "cls.output.bias": (1,)}
    shapes |= _norm("token_embd_norm")
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _layer(rotary=rotary).items()}
    return shapes


def _layer(*, rotary: bool) -> dict[str, tuple[int, ...]]:
    joined = {"attn_qkv.weight": (3 * WIDTH, WIDTH), "ffn_gate.weight": (INNER, WIDTH)}
    apart = {f"attn_{one}.weight": (WIDTH, WIDTH) for one in "qkv"}
    biases = {f"attn_{one}.bias": (WIDTH,) for one in ("q", "k", "v", "output")}
    biases |= {"ffn_up.bias": (INNER,), "ffn_down.bias": (WIDTH,)}
    return {
        **(joined if rotary else {**apart, **biases}),
        "attn_output.weight": (WIDTH, WIDTH),
        **_norm("attn_output_norm"),
        "ffn_up.weight": (INNER, WIDTH),
        "ffn_down.weight": (WIDTH, INNER),
        **_norm("layer_output_norm"),
    }


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
