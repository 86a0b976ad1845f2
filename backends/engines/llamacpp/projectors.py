"""Multimodal projectors: which one is a model's, and the memory that it takes. No engine."""

import re
from collections.abc import Callable
from pathlib import Path

from backends.contract.errors import LoadFailed
from backends.engines.llamacpp.gguf import BrokenFile, Header, read_header

MARK = "mmproj"
# By size and by how exact they are: a quantized encoder saves little and is less exact.
PRECISIONS = ("f16", "bf16", "f32", "q8_0")
# Image encoders that take pictures of any size: tokens of the one that they are prepared for, and
# patches to a side that become one token, unless the file says how many (clip.cpp, `load_hparams`).
ANY_SIZE = {
    "qwen2vl_merger": (46 * 46, 2),
    "qwen2.5vl_merger": (46 * 46, 2),
    "qwen3vl_merger": (46 * 46, 2),
    "glm4v": (46 * 46, 2),
    "pixtral": (16 * 16, 1),
    "lightonocr": (16 * 16, 1),
}
OTHER_VALUES = 80  # of a patch, in any tower (fitted to llama.cpp's `compute buffer size`)
_PRECISION = re.compile(rf"[-_.]?({'|'.join(PRECISIONS)})$")


def beside(model: Path, is_alone: Callable[[], bool]) -> Path | None:
    """The best multimodal projector in the folder of `model` that is its.

    A projector is a GGUF file of its own, of the architecture "clip": an image encoder and a
    projection to the model's embeddings. Repositories put one, in several precisions, beside the
    quantizations of a model, and state with its name alone which model it belongs to: where there
    are several models, to those whose names begin with its own.
    """
    named = (path for path in model.parent.iterdir() if MARK in path.name.lower())
    found = [path for path in sorted(named) if path.suffix.lower() == ".gguf" and _sees(path)]
    if found and not is_alone():
        found = [path for path in found if _is_named_after(path, model)]
    return min(found, key=_preference, default=None)


def named(path: Path) -> Path:
    """The projector that an option names. Raises LoadFailed for a file that is none."""
    try:
        header = read_header(path)
    except (OSError, ValueError, BrokenFile) as error:
        raise LoadFailed(f"mmproj: {path} can't be used: {error}") from error
    if not _encodes_images(header):
        raise LoadFailed(f"mmproj: {path} is not an image projector")
    return path


def buffer(path: Path, *, scores: bool) -> int:
    """Bytes that the projector's image encoder computes in, for a picture as large as llama.cpp
    prepares it for; a larger one takes more while it is encoded. `scores`: those of attention lie
    in memory too. 0: it can't be read.
    """
    try:
        return _buffer(read_header(path), scores=scores)
    except (OSError, ValueError, BrokenFile):
        return 0


def _buffer(header: Header, *, scores: bool) -> int:
    """Of a vision transformer: patches of three values for each pixel. The widest of three places
    counts, at 32 bits: the pixels, with a copy at 16 bits in the order of the patches; the queries,
    keys and values; the feed-forward.
    """

    def number(key: str, default: int = 0) -> int:
        return header.number(f"clip.vision.{key}", default)

    side, width = max(number("patch_size", 1), 1), number("embedding_length")
    kind = header.text("clip.vision.projector_type") or header.text("clip.projector_type")
    tokens, merged = ANY_SIZE.get(kind, (0, 1))
    merged = number("spatial_merge_size", merged)
    patches = tokens * merged**2 or (number("image_size") // side) ** 2
    widest = max(3 * (3 * side**2) // 2, 5 * width, number("feed_forward_length") + 3 * width)
    scored = number("attention.head_count") * patches if scores else 0
    return 4 * patches * (widest + OTHER_VALUES + scored)


def _sees(path: Path) -> bool:
    try:
        return _encodes_images(read_header(path))
    except (OSError, ValueError, BrokenFile):  # still on its way here, say: the model reads text
        return False


def _encodes_images(header: Header) -> bool:
    clip = header.text("general.architecture") == "clip"
    return clip and header.metadata.get("clip.has_vision_encoder") is True


def _is_named_after(projector: Path, model: Path) -> bool:
    name = _PRECISION.sub("", projector.stem.lower()).replace(MARK, "").strip("-_.")
    return bool(name) and model.stem.lower().startswith(_PRECISION.sub("", name))


def _preference(path: Path) -> tuple[int, str]:
    precision = _PRECISION.search(path.stem.lower().replace(f"-{MARK}", ""))
    rank = PRECISIONS.index(precision[1]) if precision else len(PRECISIONS)
    return rank, path.name
