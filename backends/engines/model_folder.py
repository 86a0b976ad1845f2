"""Hugging Face folders on disk: a model's description by their JSON files, for every backend that
reads such folders.

Imports no engine and reads no weights: `config.json`, the templates' files and the sizes of the
weight files. It does not know which backend can run what it finds. Families name alike things
differently; the configuration classes of transformers are the source.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.contract import bounds
from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.protocol import Modality
from backends.contract.samplers import Sampling

Fields = Mapping[str, Any]

KINDS = ("layer_types", "layers_block_type")
PATTERN = "hybrid_override_pattern"  # Nemotron-H: M is a Mamba's, * attention, - and E neither
MAMBA_INNER = (
    "mamba_d_ssm",
    "intermediate_size",
)  # how wide a Mamba is, where it isn't by its heads
HEAD_COUNTS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
HEAD_WIDTHS = ("mamba_head_dim", "mamba_d_head", "mamba_headdim")
EXPANDS = ("mamba_expand", "expand")
STATES = ("mamba_d_state", "ssm_state_size", "state_size")
GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
KERNELS = ("mamba_d_conv", "linear_conv_kernel_dim", "conv_kernel", "conv_L_cache")


def _kept(text: Fields) -> tuple[int, int]:
    """How many layers keep keys and values, and how many a state; one may keep both. Raises
    LoadFailed.
    """
    layers, heads = _layers(text), any(text.get(name) for name in HEADS)
    if kinds := next((text[name] for name in KINDS if text.get(name)), None):
        return _of_kinds(kinds)
    if pattern := text.get(PATTERN):
        return str(pattern).count("*"), str(pattern).count("M")
    attending = _interspersed(text, layers)
    if attending is not None:
        return attending, layers - attending
    if _state(text) and heads:  # Falcon-H1's layers keep both
        return layers, layers
    return (layers, 0) if heads else (0, layers)


def _of_kinds(kinds: Sequence[str]) -> tuple[int, int]:
    both = sum(kind.startswith("hybrid") for kind in kinds)
    recurring = sum(kind in ("linear_attention", "mamba", "conv", "recurrent") for kind in kinds)
    attending = sum("attention" in kind and "linear" not in kind for kind in kinds)
    return attending + both, recurring + both


def _interspersed(text: Fields, layers: int) -> int | None:
    """How many attend, where they are numbered or stand at regular distances; None: neither."""
    for name in ("attn_layer_indices", "full_attn_idxs"):
        if isinstance(numbered := text.get(name), list):
            return len(numbered)
    if period := number(text, "full_attention_interval"):
        return layers // period
    if period := number(text, "attn_layer_period"):
        return len(range(number(text, "attn_layer_offset"), layers, period))
    if number(text, "linear_num_value_heads"):
        return layers // 4  # as Qwen3-Next and Qwen3.5 have them where nothing is said
    return None


def state_bytes(text: Fields) -> int:
    """What one sequence keeps in one recurrent layer, at 32 bits."""
    return 4 * sum(state_values(text))


def state_values(text: Fields) -> tuple[int, int]:
    """What one sequence keeps in one recurrent layer: values of the state, and of the last inputs
    of the convolution before it.
    """
    kernel = first_number(text, KERNELS, 4)
    if heads := number(text, "linear_num_value_heads"):  # a gated delta rule
        key, value = (number(text, f"linear_{one}_head_dim") for one in ("key", "value"))
        keys = number(text, "linear_num_key_heads") * key
        return heads * key * value, (2 * keys + heads * value) * kernel
    if "conv_L_cache" in text or "block_multiple_of" in text:  # LFM2: a convolution alone
        return 0, number(text, "hidden_size") * first_number(text, ("conv_L_cache",), 3)
    inner, state = _inner(text), _state(text)
    seen = inner + 2 * first_number(text, GROUPS, 0) * state
    return (inner * state, seen * kernel) if state else (0, 0)


def scan_bytes(text: Fields) -> int:
    """What one token of a pass holds while a state space is scanned without kernels of its own, at
    32 bits: three numbers for each of the state (`mamba_selective_scan`), and a score for each that
    goes in (measured).
    """
    inner, state = _inner(text), _state(text)
    return 4 * (3 * inner * state + 20 * inner) if state else 0


def _state(text: Fields) -> int:
    """Values of the state for each of what goes in; 0: the model has no state space."""
    return first_number(text, STATES, 0)


def _inner(text: Fields) -> int:
    """How wide a state space is."""
    width = text.get(next((name for name in HEAD_WIDTHS if text.get(name)), ""))
    if isinstance(width, int):
        return first_number(text, HEAD_COUNTS, 0) * width
    expanded = first_number(text, EXPANDS, 2) * first_number(text, ("hidden_size", "d_model"), 0)
    named = (
        MAMBA_INNER[:1] if "mamba_d_state" in text else MAMBA_INNER
    )  # else that of the feed-forward
    return first_number(text, named, expanded)


def first_number(config: Fields, names: Sequence[str], default: int) -> int:
    """Of the first of the fields that is there and not 0. Raises LoadFailed for what is no
    number.
    """
    for name in names:
        if value := config.get(name):
            try:
                return int(value)
            except (ValueError, TypeError, OverflowError) as error:
                reason = f"{name} is {str(value)[:40]}, which is not a number"
                raise LoadFailed(f"config.json: {reason}") from error
    return default


GENERATION_CONFIG = "generation_config.json"

Reading = Callable[[Any], Any]


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    """`[[[token], bias], …]`, as JSON must write it; longer sequences have no counterpart here."""
    return tuple((int(word[0]), float(bias)) for word, bias in value if len(word) == 1)


# Their name, our field, how its value is read.
NAMES: Mapping[str, tuple[str, Reading]] = {
    "temperature": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "typical_p": ("typical_p", float),
    "repetition_penalty": ("repetition_penalty", float),
    "suppress_tokens": ("banned_tokens", lambda value: tuple(map(int, value))),
    "sequence_bias": ("logit_bias", _biases),
}


def sampling_named(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `config` says about sampling, by our fields: a model's own `generation_config.json`, or
    what a client sends as one. The names are those of transformers' `GenerationConfig`; what isn't
    sampling (lengths, end tokens, beams) is not read.

    `do_sample: false` is greedy. Raises ValueError or TypeError for a value of the wrong kind.
    """
    named = {
        field: reading(config[name])
        for name, (field, reading) in NAMES.items()
        if config.get(name) is not None
    }
    if config.get("do_sample") is False:
        named["temperature"] = 0.0
    return named


def generation_defaults(folder: Path) -> Sampling:
    """What the makers of the model in `folder` recommend."""
    try:
        named = sampling_named(json.loads((folder / GENERATION_CONFIG).read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        named = {}
    return bounds.recommended(named)


GENERATES = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
HEADS = ("num_attention_heads", "n_head", "n_heads")
WIDTHS = ("hidden_size", "n_embd", "d_model")
INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
MOST_LAYERS = 4096
LONGEST_HEADER = 100_000_000  # bytes of a safetensors file's, as its own library has it
UNKNOWN_LENGTH = 2048  # tokens; what a model is taken to be trained for when it doesn't say
PICKLES = ("*.bin", "*.pt", "*.pth")
PREPROCESSOR = "preprocessor_config.json"  # how pictures are prepared; newer folders have
PROCESSOR = "processor_config.json"  # it in here


def recognise(
    path: Path,
    backend: str,
    format_of: Callable[[str | None], str | None],
    *,
    seeing: Collection[str] | None = None,
    prepared: Sequence[str] = (PREPROCESSOR, PROCESSOR),
) -> ModelFiles | None:
    """The folder as a model of `backend`, if it has a `config.json` of a text generating model,
    safetensors, and a quantization (None: none) for which `format_of` knows a format. `seeing`: the
    classes whose vision part the backend has, None: all; `prepared`: the files that may say how
    pictures are made ready for it.

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
            f"{path} is an embedding model, which {backend} doesn't support; use transformers"
        )
    if config.get("is_encoder_decoder"):  # T5's class has a vision model's name
        raise UnsupportedModel(
            f"{path} is an encoder-decoder model ({kind}); only decoder-only models are supported"
        )
    if not (files := weights(path)):
        return None
    sees = "vision_config" in config and (seeing is None or of_class(config, seeing))
    sees = sees and any((path / name).is_file() for name in prepared)
    seen: tuple[Modality, ...] = ("text", "image") if sees else ("text",)
    return msgspec.structs.replace(
        described(path, config, files, backend=backend, format_=format_, kind=kind), modalities=seen
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
        recurrent_layers=_kept(text)[1],
        scan_bytes=scan_bytes(text),
        chat_template=chat_template(path),
        tool_template=chat_template(path, TOOL_USE),
        parts=tuple(sorted((*files, *path.glob("*.json"), *path.glob("*.jinja")))),
        layers=_layers(text),
        vocab_size=number(text, "vocab_size"),
        heads=first_number(text, HEADS, 0),
        activation_bytes=activation_bytes(text),
        generation_defaults=generation_defaults(path),
    )


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
        raise LoadFailed(f"{path} is not a JSON object")
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
        raise LoadFailed(f"{index} refers to files outside its folder: {', '.join(outside)}")
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


def tensor_bytes(file: Path) -> Mapping[str, int]:
    """The tensors in a safetensors file by name, with their bytes, as its header has them (the
    format: huggingface.co/docs/safetensors). Raises LoadFailed.
    """
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > LONGEST_HEADER:
                raise LoadFailed(f"{file} has a header of {length:,} bytes")
            header = json.loads(opened.read(length))
        return {
            name: entry["data_offsets"][1] - entry["data_offsets"][0]
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise LoadFailed(f"{file} can't be read as safetensors: {error}") from error


def context_length(text: Fields) -> int:
    """Tokens the model was trained for."""
    return first_number(text, LENGTHS, UNKNOWN_LENGTH)


def cache_bytes(text: Fields) -> int:
    """Keys and values of one token over all layers, at 16 bits each."""
    heads = first_number(text, HEADS, 1)
    kv_heads = first_number(text, ("num_key_value_heads", "num_kv_heads"), heads)
    width = first_number(text, WIDTHS, 0) // heads
    value = first_number(text, ("v_head_dim", "head_dim"), width)
    key = first_number(text, ("head_dim",), width)
    if rope := text.get("qk_rope_head_dim"):  # DeepSeek's attention, its keys decompressed
        key = int(text.get("qk_nope_head_dim") or 0) + int(rope)
    return _kept(text)[0] * kv_heads * (key + value) * 2


def activation_bytes(text: Fields) -> int:
    """What one token of a pass holds at its widest, at 32 bits: the feed-forward (gate, up and
    their product) or the queries, keys and values, besides the residual stream.
    """
    width, heads = first_number(text, WIDTHS, 0), first_number(text, HEADS, 1)
    experts = number(text, "moe_intermediate_size") * first_number(text, EXPERTS_USED, 1)
    inner = max(first_number(text, INNER, 4 * width), experts)
    attention = 3 * heads * first_number(text, ("head_dim",), width // heads)
    return 4 * (4 * width + max(3 * inner, attention))


def _layers(text: Fields) -> int:
    """Raises LoadFailed for none, and for more than anyone would wait for: all are made before
    weights are compared.
    """
    count = first_number(text, ("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1)
    if not 0 < count <= MOST_LAYERS:
        raise LoadFailed(f"config.json: {count:,} layers, where there are 1 to {MOST_LAYERS:,}")
    return count


def number(config: Fields, name: str) -> int:
    """0 where there is none. Raises LoadFailed for what is no number."""
    return first_number(config, (name,), 0)


DEFAULT, TOOL_USE = "default", "tool_use"


def chat_template(folder: Path, name: str = DEFAULT) -> str | None:
    """From the first place that has one, in the order of Hugging Face's tokenizers."""
    file = "chat_template" if name == DEFAULT else f"additional_chat_templates/{name}"
    if (path := folder / f"{file}.jinja").is_file():
        return path.read_text(encoding="utf-8")
    for place in ("chat_template.json", "tokenizer_config.json"):
        found = _named(read_json_if_there(folder / place).get("chat_template"), name)
        if found:
            return found
    return None


def _named(template: object, name: str) -> str | None:
    """A template, or that one of several: `[{"name": …, "template": …}]`."""
    if isinstance(template, str):
        return template if name == DEFAULT else None
    if not isinstance(template, list):
        return None
    return {entry.get("name"): entry.get("template") for entry in template}.get(name)


# What `vocabulary.HfVocabulary` reads of a folder.
VOCABULARY = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json")


def vocabulary(path: Path) -> Mapping[str, bytes]:
    """See `catalog.FilesModule.vocabulary`."""
    try:
        files = [file for name in VOCABULARY if (file := path / name).is_file()]
        return {file.name: file.read_bytes() for file in files}
    except OSError as error:
        raise LoadFailed(f"the tokenizer of {path.name} can't be read: {error}") from error
