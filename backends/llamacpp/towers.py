"""Checks a projector's GGUF header for what would end the process in llama.cpp's multimodal library
(mtmd), which compares no shapes and takes every value to be of its type. No engine.

What holds for all kinds of projectors is checked of all; the shapes of the image encoder's layers
of those alone whose layers are a plain vision transformer's (`build_vit` in clip.cpp, and llava.cpp
and qwen2vl.cpp). Found by changing every value and tensor of two, one at a time.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from backends.llamacpp.gguf import BrokenFile, Header, Tensor
from backends.llamacpp.soundness import F32, KINDS, NO_WEIGHTS, Faults

UINT32, INT32, FLOAT32, BOOL, STRING = 4, 5, 6, 7, 8  # gguf_type
# The types of values, by the ends of their keys; all others that are read are whole numbers.
TYPES: Mapping[str, int] = {
    **dict.fromkeys(("layer_norm_epsilon", "swiglu_clamp"), FLOAT32),
    **dict.fromkeys(("has_vision_encoder", "has_audio_encoder", "has_gen_audio_encoder"), BOOL),
    **dict.fromkeys(("use_gelu", "use_silu"), BOOL),
    **dict.fromkeys(("projector_type", "mm_patch_merge_type"), STRING),
    "minicpmv_version": INT32,
}
NUMBERS = re.compile(
    r"\.(embedding_length|feed_forward_length|block_count|projection_dim|head_count(_kv)?|head_dim|"
    r"image_size|patch_size|image_(min|max)_pixels|preproc_\w+|scale_factor|spatial_merge_size|"
    r"n_wa_pattern|window_size|minicpmv_query_num|num_mel_bins)$"
)
AT_32_BITS = re.compile(r"^(v|mm)\..*(\.bias|[._](ln\d?|\w*norm)\.weight)$")
WEIGHTS = re.compile(r"^(v\.blk|v\.\w+_embd|mm\.\d)")
PLAIN = frozenset({"mlp", "gemma3", "idefics3", "lfm2", "qwen2vl_merger", "qwen2.5vl_merger"})
IN_FRAMES = frozenset({"qwen2vl_merger", "qwen2.5vl_merger"})  # two of them, in patches of 2 x 2
LLAVA = "mlp"
LARGEST = 1 << 16  # pixels of an edge

Shape: TypeAlias = tuple[int | None, ...]  # None: any


def check(header: Header) -> None:
    """Raises BrokenFile with the first thing that would end the process."""
    for guard in GUARDS:
        if fault := next(guard(header), None):
            raise BrokenFile(fault)


def _kind(header: Header) -> str:
    return header.text("clip.projector_type") or header.text("clip.vision.projector_type")


def _number(header: Header, key: str, default: int = 0) -> int:
    return header.number(f"clip.vision.{key}", default)


def _values(header: Header) -> Faults:
    for key, kind in header.kinds.items():
        wanted = TYPES.get(key.rpartition(".")[2], UINT32 if NUMBERS.search(key) else None)
        if key.startswith("clip.") and wanted is not None and kind != wanted:
            yield f"its {key} is of type {kind}; llama.cpp reads type {wanted} (gguf_type) alone"


def _bounds(header: Header) -> Faults:
    epsilon = header.metadata.get("clip.vision.attention.layer_norm_epsilon")
    if isinstance(epsilon, float) and not 0 <= epsilon < math.inf:
        yield f"its attention.layer_norm_epsilon is {epsilon}"
    sizes = header.metadata.get("clip.vision.image_grid_pinpoints")
    for size in sizes if isinstance(sizes, tuple) else ():
        if not isinstance(size, int) or not 0 < size <= LARGEST:
            yield f"its image_grid_pinpoints have pictures of {size} pixels"
    for key in ("block_count", "attention.head_count", "attention.head_count_kv"):
        given = header.metadata.get(f"clip.vision.{key}")
        if given == 0 and _kind(header) in PLAIN:
            yield f"its {key} is 0"
    merged = header.metadata.get("clip.vision.spatial_merge_size")
    if _kind(header) in IN_FRAMES and merged not in (None, 2):
        yield f"its spatial_merge_size is {merged}; its graph merges 2 x 2 patches"


def _tensors(header: Header) -> Faults:
    for tensor in header.tensors:
        kind = KINDS.get(tensor.kind, f"type {tensor.kind}")
        if tensor.kind != F32 and AT_32_BITS.search(tensor.name):
            yield f"its tensor {tensor.name} is {kind}; llama.cpp computes with it as F32 alone"
        elif tensor.kind in NO_WEIGHTS and WEIGHTS.match(tensor.name):
            yield f"its tensor {tensor.name} is {kind}, in which nothing can be computed"
        elif 0 in tensor.shape:
            yield f"its tensor {tensor.name} has no values"


def _lacking(header: Header) -> Faults:
    """What the loader lets a layer go without and the graph doesn't."""
    if (kind := _kind(header)) not in PLAIN:
        return
    names = {tensor.name for tensor in header.tensors}
    needed = ["v.patch_embd.weight"]
    needed += ["v.patch_embd.weight.1"] if kind in IN_FRAMES else ["v.position_embd.weight"]
    needed += ["mm.0.weight", "mm.0.bias"] if kind == LLAVA else []
    for layer in range(min(_number(header, "block_count"), 1024)):
        joined = f"v.blk.{layer}.attn_qkv.weight" in names
        if not joined or kind in IN_FRAMES | {LLAVA}:
            needed += [f"v.blk.{layer}.attn_{part}.weight" for part in "qkv"]
            if kind in IN_FRAMES:
                needed += [f"v.blk.{layer}.attn_{part}.bias" for part in "qkv"]
    if kind == LLAVA:
        further = ("1", "3", "4") if "mm.3.weight" in names else ("2",)
        needed += [f"mm.{n}.{part}" for n in further for part in ("weight", "bias")]
    if missing := next((name for name in needed if name not in names), None):
        yield f"it lacks the tensor {missing}"
    if kind in IN_FRAMES and (more := names & {"v.class_embd", "v.patch_embd.bias"}):
        yield f"it has {', '.join(sorted(more))}, which its graph doesn't know"


def _heads(header: Header) -> Faults:
    width, heads = _number(header, "embedding_length"), _number(header, "attention.head_count")
    kind = _kind(header)
    if kind not in PLAIN or not heads:
        return
    if width % heads and not _number(header, "attention.head_dim"):
        yield f"its {heads:,} heads share {width:,} values (attention.head_count)"
    if kind in IN_FRAMES and width // heads % 4:
        yield f"its heads have {width // heads:,} values, a quarter of which is turned at a time"


def _positions(header: Header) -> Faults:
    """Of llava's patches, each of which has a row of its own."""
    if _kind(header) != LLAVA:
        return
    side = _number(header, "image_size") // max(_number(header, "patch_size"), 1)
    names = {tensor.name: tensor for tensor in header.tensors}
    rows = names["v.position_embd.weight"].shape[1:2] or (1,)
    patches = side**2 + ("v.class_embd" in names)
    if not side or patches > rows[0]:
        yield f"its pictures have {patches:,} patches (image_size), and {rows[0]:,} positions"


def _named(header: Header) -> Mapping[str, Tensor]:
    """By the names that the graph gives them: old files have the two of the feed-forward swapped,
    which clip.cpp finds by the shape of `ffn_down`.
    """
    found = {tensor.name: tensor for tensor in header.tensors}
    width = _number(header, "embedding_length")
    for name in [name for name in found if name.endswith(".ffn_down.weight")]:
        if found[name].shape[:1] == (width,):
            for down in (name, name.replace("weight", "bias")):
                up = down.replace("ffn_down", "ffn_up")
                both = {up: found.pop(down, None), down: found.pop(up, None)}
                found |= {one: tensor for one, tensor in both.items() if tensor is not None}
    return found


def _shapes(header: Header) -> Faults:
    if _kind(header) not in PLAIN:
        return
    expected = _expected(header)
    for given, tensor in _named(header).items():
        name = re.sub(r"^v\.blk\.\d+\.", "", given)
        if (shape := expected.get(name)) and not _fits(tensor, shape):
            wanted = ", ".join("any" if one is None else f"{one:,}" for one in shape)
            yield f"its tensor {tensor.name} has the shape {tensor.shape}, expected ({wanted})"


def _expected(header: Header) -> Mapping[str, Shape]:
    """By the name of a tensor, for those of a layer without its number."""
    width, side = _number(header, "embedding_length"), _number(header, "patch_size")
    heads = _number(header, "attention.head_count")
    head = _number(header, "attention.head_dim") or width // max(heads, 1)
    keys = head * _number(header, "attention.head_count_kv", heads)
    patches: Shape = (side, side, 3, width)
    outs = {"attn_q": head * heads, "attn_k": keys, "attn_v": keys, "attn_qkv": 3 * head * heads}
    found: dict[str, Shape] = {f"{name}.weight": (width, out) for name, out in outs.items()}
    found |= {f"{name}.bias": (out,) for name, out in outs.items()}
    found |= dict.fromkeys((f"ln{n}.{part}" for n in "12" for part in ("weight", "bias")), (width,))
    ends = (f"v.{end}_ln.{part}" for end in ("pre", "post") for part in ("weight", "bias"))
    found |= dict.fromkeys(ends, (width,))
    found |= {
        "attn_out.weight": (head * heads, width),
        "attn_out.bias": (width,),
        "ffn_up.weight": (width, None),
        "ffn_gate.weight": (width, None),
        "ffn_down.weight": (None, width),
        "ffn_down.bias": (width,),
        "v.patch_embd.weight": patches,
        "v.patch_embd.weight.1": patches,
        "v.patch_embd.bias": (width,),
        "v.position_embd.weight": (width, None),
        "v.class_embd": (width,),
    }
    if _kind(header) == LLAVA:
        found["mm.0.weight"] = (width, None)
    elif _kind(header) in IN_FRAMES:
        found["mm.0.weight"] = (4 * width, None)
    return found


def _fits(tensor: Tensor, shape: Shape) -> bool:
    """Dimensions of 1 at the end don't count."""
    padded = (*tensor.shape, *[1] * (len(shape) - len(tensor.shape)))
    return not _further(padded, len(shape)) and all(
        wanted in (None, one) for one, wanted in zip(padded, shape, strict=False)
    )


def _chains(header: Header) -> Faults:
    """What one tensor puts out another takes in: biases, the feed-forward, the projection."""
    if _kind(header) not in PLAIN:
        return
    shapes = {name: tensor.shape for name, tensor in _named(header).items()}
    links = [("mm.2.weight", "mm.0.weight")] if _kind(header) in IN_FRAMES | {LLAVA} else []
    for name in shapes:
        if name.endswith(".bias"):
            links.append((name, name.removesuffix("bias") + "weight"))
        elif name.endswith(".ffn_down.weight"):
            links += [(name, name.replace("down", way)) for way in ("up", "gate")]
    for taking, giving in links:
        into, out = shapes.get(taking), shapes.get(giving)
        if into is None or out is None:
            continue
        several = _further(into, 1 if taking.endswith(".bias") else 2)
        if several or into[:1] != out[-1:]:
            yield f"its tensor {taking} has the shape {into}, behind {giving} with {out}"


def _further(shape: tuple[int, ...], dimensions: int) -> bool:
    """Whether it has more, beside those of 1."""
    return any(one != 1 for one in shape[dimensions:])


GUARDS: tuple[Callable[[Header], Faults], ...] = (
    _values,
    _bounds,
    _tensors,
    _lacking,
    _heads,
    _positions,
    _shapes,
    _chains,
)
