"""Models of `random_gguf` that see: the words with a projector beside them, random as well. A tool
of tests.

A sliding window with pictures (gemma3), and positions of several dimensions (qwen2vl, whose
pictures take fewer positions than cells). llama.cpp 0.5.0 has no architecture with both.
"""

from pathlib import Path

import gguf
import numpy

from backends.protocol import Image
from tests.backends.llamacpp import random_gguf
from tests.backends.llamacpp.random_gguf import WIDTH, Shapes

SIDE, PATCH, LAYERS, HIDDEN = 24, 8, 1, 48


def write(kind: str, folder: Path) -> Path:
    """`model.gguf` and `mmproj-model.gguf`; returns the first one's path."""
    writer = gguf.GGUFWriter(folder / "mmproj-model.gguf", "clip")
    _describe(writer)
    dice = numpy.random.default_rng(1)
    tensors = QWEN if kind.startswith("qwen2vl") else LLAVA
    writer.add_clip_projector_type("qwen2vl_merger" if tensors is QWEN else "mlp")
    for name, shape in tensors.items():
        writer.add_tensor(name, random_gguf.values(name, shape, dice))
    random_gguf.finish(writer)
    return random_gguf.write(kind, folder / "model.gguf")


def noise(seed: int) -> Image:
    """A picture of 3 x 3 patches, or more."""
    dice = numpy.random.default_rng(seed)
    return Image(32, 48, dice.bytes(32 * 48 * 3))


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_vision_projection_dim(WIDTH)
    writer.add_vision_image_size(SIDE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(HIDDEN)
    writer.add_vision_block_count(LAYERS)
    writer.add_vision_head_count(2)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])


def _layer(index: int) -> Shapes:
    parts: Shapes = {f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
    parts |= {"ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN)}
    weights: Shapes = {f"v.blk.{index}.{name}.weight": shape for name, shape in parts.items()}
    biases: Shapes = {f"v.blk.{index}.{name}.bias": shape[:1] for name, shape in parts.items()}
    norms: Shapes = {
        f"v.blk.{index}.{name}.{kind}": (WIDTH,)
        for name in ("ln1", "ln2")
        for kind in ("weight", "bias")
    }
    return weights | biases | norms


PATCHES = {"v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH)}
LLAVA = {
    **PATCHES,
    **_layer(0),
    **_layer(1),  # behind the one that is used
    "v.patch_embd.bias": (WIDTH,),
    "v.position_embd.weight": ((SIDE // PATCH) ** 2, WIDTH),
    "mm.0.weight": (WIDTH, WIDTH),
    "mm.0.bias": (WIDTH,),
    "mm.2.weight": (WIDTH, WIDTH),
    "mm.2.bias": (WIDTH,),
}
QWEN = {
    **PATCHES,
    "v.patch_embd.weight.1": (WIDTH, 3, PATCH, PATCH),
    **_layer(0),
    "v.post_ln.weight": (WIDTH,),
    "v.post_ln.bias": (WIDTH,),
    "mm.0.weight": (4 * WIDTH, 4 * WIDTH),
    "mm.0.bias": (4 * WIDTH,),
    "mm.2.weight": (WIDTH, 4 * WIDTH),
    "mm.2.bias": (WIDTH,),
}
