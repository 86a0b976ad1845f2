"""Which multimodal projector (`mmproj`) belongs to a GGUF model. No engine.

A projector is a GGUF file of its own, of the architecture "clip": a vision tower and what carries
its pictures into the model's embeddings. Repositories put one, in several precisions, beside the
quantizations of a model, and say with its name alone whose it is.
"""

import re
from collections.abc import Callable
from pathlib import Path

from backends.errors import LoadFailed
from backends.llamacpp.gguf import BrokenFile, Header, read_header

MARK = "mmproj"
# By size and by how exact they are: a quantized tower saves little and sees worse.
PRECISIONS = ("f16", "bf16", "f32", "q8_0")
_PRECISION = re.compile(rf"[-_.]?({'|'.join(PRECISIONS)})$")


def beside(model: Path, is_alone: Callable[[], bool]) -> Path | None:
    """The best projector in the folder of `model` that is its.

    Where there are several models a projector belongs to those whose names begin with its own.
    """
    found = [path for path in model.parent.glob(f"*{MARK}*.gguf") if _sees(path)]
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
        raise LoadFailed(f"mmproj: {path} is no projector for images")
    return path


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
