"""Folders of models that make vectors or rank, for this backend: recognising them, and the memory
they will need. No engine.
"""

from pathlib import Path

import msgspec

from backends.catalog import ModelFiles
from backends.huggingface import model_folder
from backends.protocol import MemoryNeed
from config.engines import TransformersOptions

LONGEST_BY_DEFAULT = 8_192  # tokens of one text: a pass takes it as a whole
MOST_ROWS = 256  # texts of one pass
PASS_TOKENS = 16_384  # of one pass, padding included, if a single text doesn't take more
CPU_PASS_TOKENS = 4_096


class EncoderShape(msgspec.Struct, frozen=True):
    """Tokens of one text, and of one pass."""

    length: int
    tokens: int


def recognise(path: Path) -> ModelFiles | None:
    """A folder with safetensors whose files describe such a model. Raises LoadFailed for a broken
    one, UnsupportedModel for one that can't be run.
    """
    if not (path / "config.json").is_file():
        return None
    config = model_folder.read_json(path / "config.json")
    steps = model_folder.steps(path, config)
    if steps is None or not (files := model_folder.weights(path)):
        return None
    kind = str(config.get("model_type") or "")
    found = model_folder.described(
        path, config, files, backend="transformers", format_="safetensors", kind=kind
    )
    trained = model_folder.positions(config, found.context_length)
    further = (file for file in path.rglob("*") if file.suffix in (".json", ".safetensors"))
    return msgspec.structs.replace(
        found,
        task=steps.task,
        context_length=min(steps.length or trained, trained),
        cache_bytes_per_token=0,
        chat_template=None,
        parts=tuple(sorted({*found.parts, *further})),
    )


def shape(files: ModelFiles, options: TransformersOptions, *, cpu: bool) -> EncoderShape:
    """A text may be as long as the folder says, or the options, but has no more tokens than the
    model has positions.
    """
    config = model_folder.read_json(files.path / "config.json")
    trained = model_folder.positions(config, model_folder.context_length(config))
    length = min(files.context_length, LONGEST_BY_DEFAULT)
    if options.context_length is not None:
        length = min(options.context_length, trained)
    return EncoderShape(length, max(length, CPU_PASS_TOKENS if cpu else PASS_TOKENS))


def buffers(files: ModelFiles, size: EncoderShape, number: int) -> int:
    """Bytes of the largest pass: its activations, and the attention mask (as booleans, and as
    numbers inside the attention). `number`: bytes of one value.
    """
    mask = size.tokens * size.length * (1 + number)
    return size.tokens * files.activation_bytes * number // 4 + mask


def estimate(files: ModelFiles, weights: int, engine: int) -> MemoryNeed:
    """It keeps nothing between passes."""
    dense = sum(
        file.stat().st_size
        for file in files.parts
        if file.suffix == ".safetensors" and file.parent != files.path
    )
    return MemoryNeed(weights=weights + dense, cache=0, engine=engine)
