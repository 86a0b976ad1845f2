"""Hugging Face folders on disk: recognising them, what their JSON files say, the memory they will
need.

Imports no engine, reads no weights: `config.json`, the templates' files and the sizes of the weight
files.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.catalog import MemoryNeed, ModelFiles
from backends.errors import LoadFailed, UnsupportedModel
from backends.protocol import Modality
from config.engines import EngineOptions, TransformersOptions

LONGEST_BY_DEFAULT = (
    32_768  # tokens; models trained for a million would claim all memory for their cache
)
CACHE_BY_DEFAULT = 2 << 30  # bytes of KV cache for all requests, where one full context takes less
COMPUTE = 256 << 20  # bytes: activations of a prompt chunk, logits, torch's own buffers (measured)
OTHERS = frozenset({"exl2", "exl3"})  # quantizations that another backend reads
GENERATES = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
PICKLES = ("*.bin", "*.pt", "*.pth")
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
UNKNOWN_LENGTH = 2048
CARD = Path("/dev/nvidiactl")  # there when the driver is; asking torch would mean to import it

Fields = Mapping[str, Any]


class Shape(msgspec.Struct, frozen=True):
    """How much KV cache there may be: `tokens` in all, `length` for one request."""

    tokens: int
    length: int


def recognise(path: Path) -> ModelFiles | None:
    """A folder with a `config.json` of a text generating model and its safetensors.

    Raises LoadFailed for a broken folder, UnsupportedModel for one that has only pickled weights.
    """
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    architecture = _architecture(config)
    if architecture is None or _quantization(config) in OTHERS:
        return None
    weights = _weights(path)
    if not weights:
        return None
    text = _text_config(config)
    return ModelFiles(
        path=path,
        backend="transformers",
        format="safetensors",
        architecture=architecture,
        size_bytes=sum(file.stat().st_size for file in weights),
        context_length=_first(text, LENGTHS, UNKNOWN_LENGTH),
        cache_bytes_per_token=_cache_bytes(text),
        modalities=_modalities(path, config),
        chat_template=chat_template(path),
        parts=tuple(sorted((*weights, *path.glob("*.json"), *path.glob("*.jinja")))),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file. Raises LoadFailed when it holds anything else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{path} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise LoadFailed(f"{path} holds no JSON object")
    return content


def _architecture(config: Fields) -> str | None:
    """The model type, if the class that `config` names writes text."""
    names = config.get("architectures") or ()
    kind = config.get("model_type")
    if not isinstance(kind, str) or not any(name.endswith(GENERATES) for name in names):
        return None
    return kind


def _quantization(config: Fields) -> str | None:
    return (config.get("quantization_config") or {}).get("quant_method")


def _weights(folder: Path) -> Sequence[Path]:
    """The safetensors files, by the index where there is one (others are other models' or other
    formats').
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return _unindexed(folder)
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise LoadFailed(f"{folder} lacks {', '.join(missing)}")
    return [folder / name for name in names]


def _unindexed(folder: Path) -> Sequence[Path]:
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if files or not any(next(folder.glob(pattern), None) for pattern in PICKLES):
        return files
    raise UnsupportedModel(
        f"{folder} has its weights only as pickled files (.bin), which can run code when "
        "they are opened; convert them to safetensors"
    )


def _text_config(config: Fields) -> Fields:
    """The language model's part, which a model of several modalities nests."""
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(nested := config.get(name), dict):
            return nested
    return config


def _first(config: Fields, names: Sequence[str], default: int) -> int:
    return next((int(config[name]) for name in names if config.get(name)), default)


def _cache_bytes(text: Fields) -> int:
    """Keys and values of one token over all layers that keep them, at 16 bits each."""
    layers = _first(text, ("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1)
    heads = _first(text, ("num_attention_heads", "n_head", "n_heads"), 1)
    kv_heads = _first(text, ("num_key_value_heads", "num_kv_heads"), heads)
    width = _first(text, ("hidden_size", "n_embd", "d_model"), 0) // heads
    value = _first(text, ("v_head_dim", "head_dim"), width)
    key = _first(text, ("head_dim",), width)
    if rope := text.get("qk_rope_head_dim"):  # DeepSeek's attention keeps its keys decompressed
        key = int(text.get("qk_nope_head_dim") or 0) + int(rope)
    attending = [
        kind
        for kind in text.get("layer_types") or ()
        if "attention" in kind and "linear" not in kind
    ]
    return (len(attending) or layers) * kv_heads * (key + value) * 2


def _modalities(folder: Path, config: Fields) -> tuple[Modality, ...]:
    """It sees if it has a vision part and says how pictures are prepared."""
    prepared = ("preprocessor_config.json", "processor_config.json")
    sees = "vision_config" in config and any((folder / name).is_file() for name in prepared)
    return ("text", "image") if sees else ("text",)


def chat_template(folder: Path) -> str | None:
    """From the first place that has one, in the order transformers looks: see its
    `save_pretrained`.
    """
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (path := folder / name).is_file():
            template = read_json(path).get("chat_template")
            if found := _default_template(template):
                return found
    return None


def _default_template(template: object) -> str | None:
    """A template, or the one called "default" of several: `[{"name": …, "template": …}]`."""
    if isinstance(template, str):
        return template
    named = (
        {entry.get("name"): entry.get("template") for entry in template or ()}
        if isinstance(template, list)
        else {}
    )
    return named.get("default")


def shape(files: ModelFiles, options: TransformersOptions) -> Shape:
    """The cache's size: as `cache_tokens` says, else `CACHE_BY_DEFAULT`; one full context always
    fits.
    """
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    affordable = CACHE_BY_DEFAULT // max(files.cache_bytes_per_token, 1)
    tokens = options.cache_tokens or min(affordable, length * options.max_concurrent)
    return Shape(tokens=max(tokens, length), length=length)


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
    config = read_json(files.path / "config.json")
    text = _text_config(config)
    named = config.get("dtype") or config.get("torch_dtype") or text.get("dtype")
    return str(named) if named else None
