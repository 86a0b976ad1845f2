"""Models of `cache_kinds` that see: the words with a projector beside them, random as well. A tool
of tests.

A sliding window with pictures (gemma3), and positions of several dimensions (qwen2vl, whose
pictures take fewer positions than cells). llama.cpp 0.5.0 has no architecture with both.
"""

from pathlib import Path

import gguf
import numpy

from backends.protocol import Image
from tests.backends import gguf_vision
from tests.backends.llamacpp import cache_kinds
from tests.backends.llamacpp.cache_kinds import WIDTH, Shapes
from training.gguf_file import finish

SIDE, PATCH, LAYERS, HIDDEN = 24, 8, 1, 48


def write(kind: str, folder: Path) -> Path:
    """`model.gguf` and `mmproj-model.gguf`; returns the first one's path."""
    writer = gguf.GGUFWriter(folder / "mmproj-model.gguf", "clip")
    tensors = QWEN if kind.startswith("qwen2vl") else LLAVA
    gguf_vision.describe(
        writer,
        "qwen2vl_merger" if tensors is QWEN else "mlp",
        into=WIDTH,
        image=SIDE,
        patch=PATCH,
        width=WIDTH,
        inner=HIDDEN,
        layers=LAYERS,
    )
    rng = numpy.random.default_rng(1)
    for name, shape in tensors.items():
        writer.add_tensor(name, cache_kinds.values(name, shape, rng))
    finish(writer)
    return cache_kinds.write(kind, folder / "model.gguf")


def noise(seed: int) -> Image:
    """A picture of 3 x 3 patches, or more."""
    rng = numpy.random.default_rng(seed)
    return Image(32, 48, rng.bytes(32 * 48 * 3))


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
