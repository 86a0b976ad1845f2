"""Models of `cache_kinds` that see: the words with a projector beside them, random as well. A tool
of tests.

A sliding window with pictures (gemma3), and positions of several dimensions (qwen2vl, whose
pictures take fewer positions than cells). llama.cpp 0.5.0 has no architecture with both.
"""

from pathlib import Path

import gguf
import msgspec
import numpy

from backends.contract.protocol import Image, Pixels
from tests.backends import gguf_vision
from tests.backends.engines.llamacpp import cache_kinds
from tests.backends.engines.llamacpp.cache_kinds import WIDTH, Shapes
from training.gguf_file import finish


class Tower(msgspec.Struct, frozen=True, kw_only=True):
    """A vision transformer for pictures of `side` pixels, in patches of `patch`."""

    side: int = 24
    patch: int = 8
    width: int = WIDTH
    inner: int = 48
    layers: int = 1
    heads: int = 2


SMALL = Tower()


def write(kind: str, folder: Path, tower: Tower = SMALL) -> Path:
    """`model.gguf` and `mmproj-model.gguf`; returns the first one's path."""
    writer = gguf.GGUFWriter(folder / "mmproj-model.gguf", "clip")
    qwen = kind.startswith("qwen2vl")
    gguf_vision.describe(
        writer,
        "qwen2vl_merger" if qwen else "mlp",
        into=WIDTH,
        image=tower.side,
        patch=tower.patch,
        width=tower.width,
        inner=tower.inner,
        layers=tower.layers,
        heads=tower.heads,
    )
    rng = numpy.random.default_rng(1)
    for name, shape in (_qwen(tower) if qwen else _llava(tower)).items():
        writer.add_tensor(name, cache_kinds.values(name, shape, rng))
    finish(writer)
    return cache_kinds.write(kind, folder / "model.gguf")


def noise(seed: int) -> Image:
    """A picture of 3 x 3 patches, or more."""
    rng = numpy.random.default_rng(seed)
    return Image(32, 48, Pixels(rng.bytes(32 * 48 * 3)))


def _layer(tower: Tower, index: int) -> Shapes:
    width = tower.width
    parts: Shapes = {f"attn_{part}": (width, width) for part in ("q", "k", "v", "out")}
    parts |= {"ffn_up": (tower.inner, width), "ffn_down": (width, tower.inner)}
    weights: Shapes = {f"v.blk.{index}.{name}.weight": shape for name, shape in parts.items()}
    biases: Shapes = {f"v.blk.{index}.{name}.bias": shape[:1] for name, shape in parts.items()}
    norms: Shapes = {
        f"v.blk.{index}.{name}.{kind}": (width,)
        for name in ("ln1", "ln2")
        for kind in ("weight", "bias")
    }
    return weights | biases | norms


def _layers(tower: Tower, count: int) -> Shapes:
    patches: Shapes = {"v.patch_embd.weight": (tower.width, 3, tower.patch, tower.patch)}
    for index in range(count):
        patches |= _layer(tower, index)
    return patches


def _llava(tower: Tower) -> Shapes:
    return {
        **_layers(tower, tower.layers + 1),  # the last one isn't used
        "v.patch_embd.bias": (tower.width,),
        "v.position_embd.weight": ((tower.side // tower.patch) ** 2, tower.width),
        "mm.0.weight": (WIDTH, tower.width),
        "mm.0.bias": (WIDTH,),
        "mm.2.weight": (WIDTH, WIDTH),
        "mm.2.bias": (WIDTH,),
    }


def _qwen(tower: Tower) -> Shapes:
    return {
        **_layers(tower, tower.layers),
        "v.patch_embd.weight.1": (tower.width, 3, tower.patch, tower.patch),
        "v.post_ln.weight": (tower.width,),
        "v.post_ln.bias": (tower.width,),
        "mm.0.weight": (4 * tower.width, 4 * tower.width),
        "mm.0.bias": (4 * tower.width,),
        "mm.2.weight": (WIDTH, 4 * tower.width),
        "mm.2.bias": (WIDTH,),
    }
