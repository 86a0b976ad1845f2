"""Hugging Face folders on disk: recognising them, what their JSON files say, the memory they will
need.

Imports no engine, reads no weights: `config.json`, the templates' files and the sizes of the weight
files.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from backends import hf_folder
from backends.catalog import CPU, MemoryNeed, ModelFiles
from config.engines import EngineOptions, TransformersOptions

LONGEST_BY_DEFAULT = (
    32_768  # tokens; models trained for a million would claim all memory for their cache
)
CACHE_BY_DEFAULT = 2 << 30  # bytes of KV cache for all requests, where one full context takes less
COMPUTE = 256 << 20  # bytes: activations of a prompt chunk, logits, torch's own buffers (measured)
OTHERS = frozenset({"exl2", "exl3"})  # quantizations that another backend reads
CARD = Path("/dev/nvidiactl")  # there when the driver is; asking torch would mean to import it


class Shape(msgspec.Struct, frozen=True):
    """How much KV cache there may be: `tokens` in all, `length` for one request."""

    tokens: int
    length: int


def recognise(path: Path) -> ModelFiles | None:
    """A folder with a `config.json` of a text generating model and its safetensors.

    Raises LoadFailed for a broken folder, UnsupportedModel for one that has only pickled weights.
    """
    return hf_folder.recognise(path, "transformers", _format, _sees)


def _format(quantization: str | None) -> str | None:
    return None if quantization in OTHERS else "safetensors"


def _sees(folder: Path, config: hf_folder.Fields) -> bool:
    return hf_folder.has_eyes(folder, config, (hf_folder.PREPROCESSOR, hf_folder.PROCESSOR))


def shape(files: ModelFiles, options: TransformersOptions) -> Shape:
    """The cache's size: as `cache_tokens` says, else `CACHE_BY_DEFAULT`; one full context always
    fits.
    """
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    affordable = CACHE_BY_DEFAULT // max(files.cache_bytes_per_token, 1)
    tokens = options.cache_tokens or min(affordable, length * options.max_concurrent)
    return Shape(tokens=max(tokens, length), length=length)


def fitted(files: ModelFiles, options: EngineOptions) -> ModelFiles:  # noqa: ARG001 - the contract's shape
    """No option changes what the model can do."""
    return files


def placement(options: EngineOptions, cards: Mapping[str, int]) -> Mapping[str, float]:
    """All on one device: the one that is named, or the first card, or main memory."""
    assert isinstance(options, TransformersOptions)
    if options.device not in ("auto", "cuda"):
        return {options.device: 1.0}
    return {next(iter(cards), CPU): 1.0}


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    """Weights as they will be held; the cache when it is full; a rule of thumb for the rest."""
    assert isinstance(options, TransformersOptions)
    wide = _widening(files, options)
    weights = int(files.size_bytes * _share_left(options) * wide)
    cache = int(shape(files, options).tokens * files.cache_bytes_per_token * wide)
    return MemoryNeed(weights=weights, cache=cache, engine=COMPUTE)


def _share_left(options: TransformersOptions) -> float:
    """Of 16-bit weights, what quantizing leaves; embeddings and norms stay as they are."""
    return {"bnb-4bit": 0.35, "bnb-8bit": 0.6, None: 1.0}[options.quantization]


def _widening(files: ModelFiles, options: TransformersOptions) -> float:
    """How many times 16 bits a number takes once loaded, for weights stored at 16 bits."""
    if options.dtype == "float32" or (
        options.dtype == "auto" and computes_wide(files, options.device)
    ):
        return 2.0 if stored_dtype(files) != "float32" else 1.0
    return 1.0


def computes_wide(files: ModelFiles, device: str) -> bool:
    """Half precision is slower than float32 on a CPU, which converts at every operation (measured:
    1.3 times).
    """
    on_cpu = device == "cpu" or (device == "auto" and not CARD.exists())
    return on_cpu and stored_dtype(files) == "float16"


def stored_dtype(files: ModelFiles) -> str | None:
    """The dtype `config.json` names, if any."""
    config = hf_folder.read_json(files.path / "config.json")
    text = hf_folder.text_config(config)
    named = config.get("dtype") or config.get("torch_dtype") or text.get("dtype")
    return str(named) if named else None
