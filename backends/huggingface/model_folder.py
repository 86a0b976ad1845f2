"""Hugging Face folders on disk: a model's description by their JSON files. For every backend that
reads such folders.

Imports no engine and reads no weights: `config.json`, the templates' files and the sizes of the
weight files. It does not know which backend can run what it finds.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.catalog import ModelFiles
from backends.errors import LoadFailed, UnsupportedModel
from backends.huggingface import generation_config
from backends.protocol import Modality

Fields = Mapping[str, Any]

GENERATES = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
HEADS = ("num_attention_heads", "n_head", "n_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model")
INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
MOST_LAYERS = 4096
UNKNOWN_LENGTH = 2048  # tokens; what a model is taken to be trained for when it doesn't say
PICKLES = ("*.bin", "*.pt", "*.pth")
PREPROCESSOR = "preprocessor_config.json"  # how pictures are prepared; newer folders have
PROCESSOR = "processor_config.json"  # it in here


def recognise(
    path: Path,
    backend: str,
    format_of: Callable[[str | None], str | None],
    sees: Callable[[Path, Fields], bool],
) -> ModelFiles | None:
    """The folder as a model of `backend`, if it has a `config.json` of a text generating model,
    safetensors, and a quantization (None: none) for which `format_of` knows a format.

    Raises LoadFailed for a broken folder, UnsupportedModel for one that has only pickled weights
    or an encoder before its decoder.
    """
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    kind, format_ = architecture(config), format_of(quantization(config))
    if kind is None or format_ is None:
        return None
    if (path / "modules.json").is_file():
        raise UnsupportedModel(
            f"{path} makes embeddings, which {backend} can't do; transformers can"
        )
    if config.get("is_encoder_decoder"):  # T5's class has a vision model's name
        raise UnsupportedModel(
            f"{path} holds an encoder and a decoder ({kind}); only models that go on with a text "
            "can be run"
        )
    if not (files := weights(path)):
        return None
    seen: tuple[Modality, ...] = ("text", "image") if sees(path, config) else ("text",)
    return msgspec.structs.replace(
        described(path, config, files, backend=backend, format_=format_, kind=kind),
        modalities=seen,
    )


def described(
    path: Path, config: Fields, files: Sequence[Path], *, backend: str, format_: str, kind: str
) -> ModelFiles:
    """The model in the folder, as `config` describes it: `path`, whose weights are `files`."""
    text = text_config(config)
    return ModelFiles(
        path=path,
        backend=backend,
        format=format_,
        architecture=kind,
        size_bytes=sum(file.stat().st_size for file in files),
        context_length=context_length(text),
        cache_bytes_per_token=cache_bytes(text),
        state_bytes=state_bytes(text),
        recurrent_layers=_layers(text) - _attending(text),
        scan_bytes=scan_bytes(text),
        chat_template=chat_template(path),
        parts=tuple(sorted((*files, *path.glob("*.json"), *path.glob("*.jinja")))),
        vocab_size=_first(text, ("vocab_size",), 0),
        heads=_first(text, HEADS, 0),
        activation_bytes=activation_bytes(text),
        generation_defaults=generation_config.read(path),
    )


def encodes_images(folder: Path, config: Fields, prepared: Collection[str]) -> bool:
    """Whether the model has a vision part and one of the files `prepared`, which say how pictures
    are made ready for it.
    """
    return "vision_config" in config and any((folder / name).is_file() for name in prepared)


def of_class(config: Fields, names: Collection[str]) -> bool:
    """Whether `config` names one of these classes."""
    return any(name in names for name in config.get("architectures") or ())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file. Raises LoadFailed when it holds anything else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{path} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise LoadFailed(f"{path} holds no JSON object")
    return content


def read_json_if_there(path: Path) -> dict[str, Any]:
    """As `read_json`; nothing where there is no such file."""
    return read_json(path) if path.is_file() else {}


def architecture(config: Fields) -> str | None:
    """The model type ("llama"), if the class that `config` names writes text."""
    names = config.get("architectures") or ()
    kind = config.get("model_type")
    if not isinstance(kind, str) or not any(name.endswith(GENERATES) for name in names):
        return None
    return kind


def quantization(config: Fields) -> str | None:
    """How the weights are quantized ("exl2"), if they are."""
    method = (config.get("quantization_config") or {}).get("quant_method")
    return method if isinstance(method, str) else None


def text_config(config: Fields) -> Fields:
    """The language model's part, which a model of several modalities nests."""
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(nested := config.get(name), dict):
            return nested
    return config


def weights(folder: Path) -> Sequence[Path]:
    """The safetensors files, by the index where there is one (others are another model's).

    Raises LoadFailed when some are missing, UnsupportedModel when there are only pickles.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return _unindexed(folder)
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    if outside := [name for name in names if ".." in Path(name).parts or Path(name).is_absolute()]:
        raise LoadFailed(f"{index} names files outside of its folder: {', '.join(outside)}")
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


def context_length(text: Fields) -> int:
    """Tokens the model was trained for."""
    return _first(text, LENGTHS, UNKNOWN_LENGTH)


def cache_bytes(text: Fields) -> int:
    """Keys and values of one token over all layers, at 16 bits each."""
    heads = _first(text, HEADS, 1)
    kv_heads = _first(text, ("num_key_value_heads", "num_kv_heads"), heads)
    width = _first(text, WIDTHS, 0) // heads
    value = _first(text, ("v_head_dim", "head_dim"), width)
    key = _first(text, ("head_dim",), width)
    if rope := text.get("qk_rope_head_dim"):  # DeepSeek's attention, its keys decompressed
        key = int(text.get("qk_nope_head_dim") or 0) + int(rope)
    return _attending(text) * kv_heads * (key + value) * 2


def activation_bytes(text: Fields) -> int:
    """What one token of a pass holds at its widest, at 32 bits: the feed-forward (gate, up and
    their product) or the queries, keys and values, besides the residual stream.
    """
    width, heads = _first(text, WIDTHS, 0), _first(text, HEADS, 1)
    experts = _first(text, ("moe_intermediate_size",), 0) * _first(text, EXPERTS_USED, 1)
    inner = max(_first(text, INNER, 4 * width), experts)
    attention = 3 * heads * _first(text, ("head_dim",), width // heads)
    return 4 * (4 * width + max(3 * inner, attention))


def state_bytes(text: Fields) -> int:
    """What one sequence keeps in one recurrent layer (a Mamba's), at 32 bits."""
    inner, state = _scanned(text)
    seen = inner + 2 * _first(text, ("n_groups",), 0) * state
    return 4 * (inner * state + seen * _first(text, ("conv_kernel",), 0))


def scan_bytes(text: Fields) -> int:
    """What one token of a pass holds while a state space is scanned without kernels of its own, at
    32 bits: three numbers for each of the state (`mamba_selective_scan`), and a score for each that
    goes in (measured).
    """
    inner, state = _scanned(text)
    return 4 * (3 * inner * state + 20 * inner) if state else 0


def _scanned(text: Fields) -> tuple[int, int]:
    """How wide a state space is, and the values of its state for each."""
    inner = _first(text, ("expand",), 2) * _first(text, WIDTHS, 0)
    return _first(text, ("intermediate_size",), inner), _first(text, ("state_size",), 0)


def _layers(text: Fields) -> int:
    """Raises LoadFailed for more than anyone would wait for: all are made before weights are
    compared.
    """
    count = _first(text, ("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1)
    if count > MOST_LAYERS:
        raise LoadFailed(f"config.json: {count:,} layers; at most {MOST_LAYERS:,} are believed")
    return count


def _attending(text: Fields) -> int:
    """The layers that keep keys and values: not the recurrent ones of hybrid models."""
    if kinds := text.get("layer_types"):
        return sum("attention" in kind and "linear" not in kind for kind in kinds)
    return _layers(text) if any(text.get(name) for name in HEADS) else 0


def _first(config: Fields, names: Sequence[str], default: int) -> int:
    """Raises LoadFailed for what is no number."""
    for name in names:
        if value := config.get(name):
            try:
                return int(value)
            except (ValueError, TypeError, OverflowError) as error:
                reason = f"{name} is {str(value)[:40]}, which is no number"
                raise LoadFailed(f"config.json: {reason}") from error
    return default


def chat_template(folder: Path) -> str | None:
    """From the first place that has one, in the order of Hugging Face's tokenizers."""
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = _default_template(read_json_if_there(folder / name).get("chat_template"))
        if found:
            return found
    return None


def _default_template(template: object) -> str | None:
    """A template, or the one called "default" of several: `[{"name": …, "template": …}]`."""
    if isinstance(template, str):
        return template
    if not isinstance(template, list):
        return None
    return {entry.get("name"): entry.get("template") for entry in template}.get("default")
