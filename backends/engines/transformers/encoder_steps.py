"""From texts to vectors or scores: the steps that a folder's JSON files name, and how long a text
may be. Imports no engine and reads no weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.protocol import Task
from backends.engines.model_folder import Fields, read_json_if_there

RANKS = "ForSequenceClassification"
# Families that read a text in both directions; a bare one of them is an embedding model, of which
# the mean is taken, as sentence-transformers does.
ENCODERS = frozenset(
    {
        *("albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert"),
        *("electra", "ernie", "esm", "eurobert", "flaubert", "funnel", "gte", "jina_bert_v2"),
        *("mobilebert", "modernbert", "mpnet", "neobert", "new", "nomic_bert", "nomic_bert_moe"),
        *("roberta", "roformer", "squeezebert", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)
# Positions are counted from behind the padding token's id, so that some can't be used.
OFFSET = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "xmod"})
# Poolings; before release 5 each had a switch of its own.
SWITCHES: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
LENGTH_FILES = (
    "sentence_bert_config.json",
    *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert")),
    *(f"sentence_{kind}_config.json" for kind in ("albert", "xlm-roberta", "xlnet")),
)
ACTIVATIONS = ("Identity", "Tanh", "Sigmoid", "ReLU", "GELU")
LONGEST = 1 << 20  # tokens; a tokenizer without a limit names a number far beyond


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """A layer behind the pooling: its folder, and the name of its activation in `torch.nn`."""

    folder: Path
    width: int
    bias: bool
    activation: str


class EncoderSteps(msgspec.Struct, frozen=True, kw_only=True):
    """From a text to its vector, or from a pair to its score.

    sentence-transformers' `modules.json` lists the steps from tokens to a vector: a transformer, a
    pooling (`1_Pooling`), dense layers, a normalization; `config_sentence_transformers.json` has
    the prompts. A cross-encoder is a folder whose class has one label.
    """

    task: Task
    length: int | None = None  # tokens of one text; None: as many as the model has positions
    lower: bool = False  # the text in lower case
    pooling: tuple[str, ...] = ()  # their vectors one after the other
    dense: tuple[Dense, ...] = ()
    normalized: bool = False
    prompts: Mapping[str, str] = {}
    prompt: str = ""  # in front of every text
    activation: str = "Sigmoid"  # of a score


def steps(folder: Path, config: Fields) -> EncoderSteps | None:
    """None: it is no such model. Raises UnsupportedModel for one with a step that isn't known,
    LoadFailed for broken files.
    """
    if (folder / "modules.json").is_file():
        return _of_modules(folder)
    names = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith(RANKS) for name in names):
        return _of_pairs(folder, config)
    if config.get("model_type") in ENCODERS and any(name.endswith("Model") for name in names):
        return EncoderSteps(task="embed", length=_length(folder), pooling=("mean",))
    return None


def positions(config: Fields, trained: int) -> int:
    """How many positions the model has, of `trained` that it names."""
    if config.get("model_type") not in OFFSET:
        return trained
    padding = config.get("pad_token_id")
    return trained - (padding if isinstance(padding, int) else 1) - 1


def _of_modules(folder: Path) -> EncoderSteps:
    made = EncoderSteps(task="embed", length=_length(folder), lower=_lower(folder))
    for module in _modules(folder):
        kind = str(module.get("type", "")).rpartition(".")[2]
        path = folder / str(module.get("path", ""))
        if not path.resolve().is_relative_to(folder.resolve()):
            raise LoadFailed(
                f"{folder} refers to a module outside its folder: {module.get('path')!r}"
            )
        made = _with(made, kind, path, folder)
    if not made.pooling:
        raise UnsupportedModel(f"{folder} has no pooling module, which embeddings require")
    prompts = read_json_if_there(folder / "config_sentence_transformers.json")
    named = _texts(prompts.get("prompts"))
    default = named.get(str(prompts.get("default_prompt_name")), "")
    return msgspec.structs.replace(made, prompts=named, prompt=default)


def _with(made: EncoderSteps, kind: str, path: Path, folder: Path) -> EncoderSteps:
    replace = msgspec.structs.replace
    match kind:
        case "Transformer" if path == folder and not made.pooling:
            return made
        case "Pooling" if not made.pooling:
            return replace(made, pooling=_pooling(path))
        case "Dense" if made.pooling and not made.normalized:
            return replace(made, dense=(*made.dense, _dense(path)))
        case "Normalize" if made.pooling:
            return replace(made, normalized=True)
        case "Dropout":  # for training alone
            return made
    raise UnsupportedModel(f"{folder} has an unsupported module: {kind} ({path.name})")


def _modules(folder: Path) -> Sequence[Fields]:
    try:
        return msgspec.json.decode((folder / "modules.json").read_bytes(), type=list[Fields])
    except (OSError, msgspec.DecodeError) as error:
        raise LoadFailed(f"{folder / 'modules.json'} can't be read: {error}") from error


def _pooling(path: Path) -> tuple[str, ...]:
    config = read_json_if_there(path / "config.json")
    if config.get("include_prompt") is False:
        raise UnsupportedModel(f"{path} excludes prompts from pooling, which is not supported")
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named
    if modes is None:
        modes = [mode for switch, mode in SWITCHES.items() if config.get(switch)] or ["mean"]
    if (
        not isinstance(modes, list)
        or not modes
        or any(mode not in SWITCHES.values() for mode in modes)
    ):
        raise UnsupportedModel(f"{path} has an unsupported pooling: {named!r}")
    return tuple(modes)


def _dense(path: Path) -> Dense:
    config = read_json_if_there(path / "config.json")
    activation = str(config.get("activation_function", "torch.nn.Tanh")).rpartition(".")[2]
    inner = config.get("module_input_name", "sentence_embedding")
    if activation not in ACTIVATIONS or config.get("use_residual") or inner != "sentence_embedding":
        raise UnsupportedModel(f"{path} is an unsupported kind of dense layer")
    if not (path / "model.safetensors").is_file():
        raise UnsupportedModel(f"{path} has no safetensors weights")
    width = config.get("out_features")
    if not isinstance(width, int):
        raise LoadFailed(f"{path / 'config.json'} lacks out_features")
    bias = config.get("bias") is not False
    return Dense(folder=path, width=width, bias=bias, activation=activation)


def _of_pairs(folder: Path, config: Fields) -> EncoderSteps:
    labels = config.get("id2label") or {}
    count = config.get("num_labels") or len(labels) or 2
    if count != 1:
        raise UnsupportedModel(
            f"{folder} is a classifier with {count} labels; reranking requires one label"
        )
    own = config.get("sentence_transformers")
    named: Any = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    activation = str(named).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{folder} has an unsupported activation: {named!r}")
    return EncoderSteps(task="rank", length=_length(folder), activation=activation)


def _length(folder: Path) -> int | None:
    found = next((file for name in LENGTH_FILES if (file := folder / name).is_file()), None)
    named = read_json_if_there(found).get("max_seq_length") if found else None
    if not isinstance(named, int):
        named = read_json_if_there(folder / "tokenizer_config.json").get("model_max_length")
    return named if isinstance(named, int) and 0 < named <= LONGEST else None


def _lower(folder: Path) -> bool:
    return any(
        read_json_if_there(folder / name).get("do_lower_case") is True for name in LENGTH_FILES
    )


def _texts(named: object) -> Mapping[str, str]:
    if not isinstance(named, dict):
        return {}
    return {str(name): text for name, text in named.items() if isinstance(text, str)}
