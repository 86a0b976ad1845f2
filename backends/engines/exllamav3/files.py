"""Folders exllamav3 can load: recognising them, the memory they will need, and what its options are
called elsewhere. Imports no engine.

It reads EXL3 and unquantized safetensors. The latter are transformers' too, which comes before it
in `backends.contract.catalog`: a user who wants them here names the backend. What memory and drafts
depend on of a folder's `config.json` is as exllamav3 1.6.5 has it (its `architecture/`).
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from backends.contract.catalog import (
    CPU,
    Cards,
    Installation,
    LoadFacts,
    ModelFiles,
    Placement,
    Translation,
    Way,
    alike,
    as_it_is,
    renamed,
)
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.protocol import MemoryNeed
from backends.engines import model_folder
from backends.engines.exllama import files as shared
from backends.engines.exllama.files import PagedCacheSize
from backends.engines.model_folder import Fields, first_number, number
from backends.machine import devices
from config.engines import ExLlamaV3Options

SUFFIX = None  # folders
COMPANIONS: tuple[str, ...] = ()
FORMATS = {None: "safetensors", "exl3": "exl3"}  # by quantization
MEGABYTE = 1 << 20
ENDS = 1  # tokens kept free behind the longest request: the generator needs its last one to fit
# Sequences' states lie on the cards whether they are used or not: as many as these bytes hold.
STATES_BY_DEFAULT, FEWEST_AT_ONCE = 1 << 30, 4
EXPERT = re.compile(r"layers\.(\d+)\..*\bexperts\.")  # a routed expert's tensor, and its layer
COUNTS_OF_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")


def recognise(path: Path) -> ModelFiles | None:
    """See `model_folder.recognise`. A model that can only draft for others is none."""
    files = model_folder.recognise(path, "exllamav3", FORMATS.get, seeing=SEES)
    if files is None:
        return None
    config = _config(path)
    return None if kind_of(config).drafts else with_states(files, config)


def _config(folder: Path) -> Fields:
    return model_folder.read_json(folder / "config.json")


def cache_size(files: ModelFiles, options: ExLlamaV3Options) -> PagedCacheSize:
    """See `shared.files.cache_size`."""
    return shared.cache_size(files, options, _drafted(files, options), spare=ENDS)


def together(files: ModelFiles, options: ExLlamaV3Options) -> int:
    """How many requests are computed together: as many as `max_concurrent`, but of a model whose
    sequences keep states no more than there is room for.
    """
    models = filter(None, (files, draft(files, options)))
    size = sum(bytes_of_sequence(one) for one in models)
    if not size:
        return options.max_concurrent
    return min(options.max_concurrent, max(FEWEST_AT_ONCE, STATES_BY_DEFAULT // size))


def draft(files: ModelFiles, options: ExLlamaV3Options) -> ModelFiles | None:
    """The model that guesses ahead, if there is one: another, or the heads that `files` has for it.

    Raises LoadFailed.
    """
    chosen = shared.drafts(options)
    if not chosen.heads:
        return shared.draft(options, _recognise_draft, "exllamav3")
    if chosen.model or chosen.repeats:
        raise LoadFailed("mtp, a draft model and n-gram speculation exclude each other; choose one")
    config = _config(files.path)
    if not heads_of(config):
        raise UnsupportedModel(f"{files.path.name} has no MTP heads, which mtp requires")
    return msgspec.structs.replace(
        files,
        size_bytes=0,  # they lie in the model's own files
        cache_bytes_per_token=cache_bytes_of_heads(config),
        sliding_bytes_per_token=0,
        recurrent_layers=0,
    )


def _recognise_draft(path: Path) -> ModelFiles | None:
    """Any model, or one that can only draft."""
    if (files := recognise(path)) is not None or not (path / "config.json").is_file():
        return files
    config, weights = _config(path), model_folder.weights(path)
    format_ = FORMATS.get(model_folder.quantization(config))
    if not weights or format_ is None or not kind_of(config).drafts:
        return None
    described = model_folder.described(
        path, config, weights, backend="exllamav3", format_=format_, kind="draft"
    )
    return with_states(described, config)


def _drafted(files: ModelFiles, options: ExLlamaV3Options) -> int:
    """How many tokens are drafted at a time."""
    chosen = shared.drafts(options)
    if chosen.heads:
        return chosen.tokens or kind_of(_config(files.path)).heads or DRAFTED
    if chosen.model:
        guess = draft(files, options)
        assert guess is not None
        return chosen.tokens or drafted_by(_config(guess.path))
    return (chosen.tokens or DRAFTED) if chosen.repeats else 0


def fitted(files: ModelFiles, options: ExLlamaV3Options) -> ModelFiles:
    """See `shared.files.fitted`. Raises LoadFailed for options that contradict each other."""
    if options.disk_cache_dir and not options.cpu_cache_size:
        raise LoadFailed("disk_cache_dir requires cpu_cache_size: pages reach the disk through it")
    if shared.drafts(options).heads:
        return msgspec.structs.replace(files, modalities=("text",))
    return shared.fitted(files, options)


def estimate(files: ModelFiles, options: ExLlamaV3Options) -> MemoryNeed:
    """The draft model's need is in it, and what lies in main memory."""
    guess = draft(files, options)
    found = shared.need(files, guess, cache_size(files, options).cells, options)
    states = sum(bytes_of_sequence(one) for one in (files, guess) if one is not None)
    kept = together(files, options) * states + _kept(files, guess, options)
    return msgspec.structs.replace(found, cache=found.cache + kept)


def _kept(files: ModelFiles, guess: ModelFiles | None, options: ExLlamaV3Options) -> int:
    """Bytes of main memory for what had to leave the cards: pages, and states of sequences."""
    models = filter(None, (files, guess))
    recurs = any(bytes_of_sequence(one) for one in models)
    return MEGABYTE * (options.cpu_cache_size + options.recurrent_cache_size * recurs)


def experts_apart(files: ModelFiles, options: ExLlamaV3Options) -> int:
    """Bytes of the experts that lie in main memory. Raises LoadFailed where there can't be any."""
    if not options.moe_cpu_offload and not options.moe_cpu_split:
        return 0
    if options.moe_cpu_offload and options.moe_cpu_split:
        raise LoadFailed("moe_cpu_offload and moe_cpu_split exclude each other; choose one")
    if options.tensor_parallel:
        raise LoadFailed("experts of a tensor_parallel model can't be computed on the CPU")
    by_layer = _experts(files)
    if not by_layer:
        raise LoadFailed(f"{files.path.name} has no experts that can be computed on the CPU")
    if options.moe_cpu_offload:
        return sum(by_layer[layer] for layer in sorted(by_layer)[: options.moe_cpu_offload])
    text = model_folder.text_config(_config(files.path))
    count = first_number(text, COUNTS_OF_EXPERTS, options.moe_cpu_split)
    return int(sum(by_layer.values()) * min(1, options.moe_cpu_split / count))


def _experts(files: ModelFiles) -> Mapping[int, int]:
    """By layer, the bytes of its routed experts."""
    found: dict[int, int] = {}
    for path in model_folder.weights(files.path):
        for name, size in model_folder.tensor_bytes(path).items():
            if match := EXPERT.search(name):
                layer = int(match[1])
                found[layer] = found.get(layer, 0) + size
    return found


def placements(
    files: ModelFiles | None, options: ExLlamaV3Options, cards: Cards
) -> Sequence[Placement]:
    """All cards alike where a tensor is spread over them, else see `shared.files.placements`; and
    in main memory what is kept there.
    """
    kept = drafting = 0.0
    if files is not None:
        total, guess = estimate(files, options).total, draft(files, options)
        kept = (_kept(files, guess, options) + experts_apart(files, options)) / total
        if guess is not None:
            alone = shared.without_drafts(options)
            drafting = 1 - estimate(files, alone).total / total
    found = shared.placements(options, cards, drafting)
    if options.tensor_parallel and not any(options.gpu_split):
        usable = devices.torch_cards(cards)
        found = (dict.fromkeys(usable, 1 / len(usable)) or {CPU: 1.0},)
    if not kept:
        return found
    return tuple(shared.joined(placement, {CPU: 1.0}, kept) for placement in found)


def placed(options: ExLlamaV3Options, placement: Placement, cards: Cards) -> ExLlamaV3Options:
    """See `shared.files.placed`."""
    if options.tensor_parallel:
        return options
    on_cards = {device: share for device, share in placement.items() if device != CPU}
    return shared.placed(options, on_cards or placement, cards)


_cache = partial(
    shared.cache_mode,
    modes=re.compile(r"fp16|q[2-8]|[2-8],[2-8]"),
    known="available in exllamav3: FP16, Q8 to Q2, or bits of keys and values such as '8,4'",
)


INSTALLATION = Installation(
    package="exllamav3",
    needs_card=True,
    ways={
        **shared.WAYS,
        "Linux, CUDA": Way(
            "scripts/install exllamav3",
            tried="most of its tests, on an H200",
            note=shared.EXTENSION,
        ),
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    **shared.LOAD_OPTIONS,
    "cache_mode": _cache("cache_type"),
    "draft_mode": shared.drafting("mtp"),
    "draft_cache_mode": _cache("draft_cache_type"),
    "dynamic_draft": renamed("dynamic_draft_tokens"),
    **alike("ngram_match_min", "tensor_parallel", "tensor_parallel_backend"),
    "sysmem_kv_cache": renamed("cpu_cache_size"),
    "sysmem_recurrent_cache": renamed("recurrent_cache_size"),
    "cpu_moe_offload_layers": renamed("moe_cpu_offload"),
}


fit = as_it_is


def facts(options: ExLlamaV3Options) -> LoadFacts:
    """See `FilesModule.facts`."""
    found = shared.facts(options, options.cache_type)
    return msgspec.structs.replace(
        found,
        kept_memory=MEGABYTE * options.cpu_cache_size,
        kept_states=MEGABYTE * options.recurrent_cache_size,
        kept_disk=1024 * MEGABYTE * options.disk_cache_size if options.disk_cache_dir else 0,
    )


# Classes whose vision tower it has, of those whose chat templates write one known token for a
# picture.
SEES = frozenset(
    f"{name}ForConditionalGeneration"
    for name in (
        *("Gemma3", "Gemma4", "Glm4v", "Glm4vMoe", "Lfm2Vl", "Mistral3", "Qwen2_5_VL", "Qwen3VL"),
        *("Qwen3VLMoe", "Qwen3_5", "Qwen3_5Moe"),
    )
)


class Kind(msgspec.Struct, frozen=True):
    """Of a class of models: what each sequence keeps besides its pages of the cache, rings for
    sliding windows or the states of recurrent layers; whether it only drafts, since it reads the
    inner states of another; how many tokens are drafted with heads of its own.
    """

    keeps: Literal["", "rings", "states"] = ""
    drafts: bool = False
    heads: int = 0


KINDS: Mapping[str, Kind] = {
    "AfmoeForCausalLM": Kind("rings"),
    "BailingMoeV3ForCausalLM": Kind("states", heads=1),
    "DFlash2DraftModel": Kind("rings", drafts=True),
    "DFlashDraftModel": Kind("rings", drafts=True),
    "DFlashLagunaForCausalLM": Kind(drafts=True),
    "DeepseekV4ForCausalLM": Kind("states", heads=4),
    "Gemma4AssistantForCausalLM": Kind(drafts=True),
    "Gemma4ForConditionalGeneration": Kind("rings"),
    "Gemma4UnifiedForConditionalGeneration": Kind("rings"),
    "Glm4MoeLiteForCausalLM": Kind(heads=2),
    "Glm5NextForConditionalGeneration": Kind("states", heads=3),
    "GlmMoeDsaForCausalLM": Kind(heads=2),
    "GptOssForCausalLM": Kind("rings"),
    "HYV3ForCausalLM": Kind(heads=2),
    "KimiLinearForCausalLM": Kind("states"),
    "LagunaForCausalLM": Kind("rings"),
    "Lfm2ForCausalLM": Kind("states"),
    "Lfm2MoeForCausalLM": Kind("states"),
    "Lfm2VlForConditionalGeneration": Kind("states"),
    "MiMoV2ForCausalLM": Kind("rings", heads=1),
    "MuseGlimmerAssistantModel": Kind("rings", drafts=True),
    "MuseGlimmerForConditionalGeneration": Kind("rings"),
    "NemotronHForCausalLM": Kind("states", heads=2),
    "NemotronH_Omni_Reasoning_V3": Kind("states", heads=2),
    "OlmoHybridForCausalLM": Kind("states"),
    "Qwen3NextForCausalLM": Kind("states"),
    "Qwen3_5ForCausalLM": Kind("states"),
    "Qwen3_5ForConditionalGeneration": Kind("states", heads=4),
    "Qwen3_5MoeForCausalLM": Kind("states"),
    "Qwen3_5MoeForConditionalGeneration": Kind("states", heads=4),
    "Qwen4ExpForConditionalGeneration": Kind("states", heads=4),
    "Spark2_5ForCausalLM": Kind("rings"),
    "Step3p5ForCausalLM": Kind("rings"),
    "Step3p7ForConditionalGeneration": Kind("rings"),
}
COUNTS_OF_HEADS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")
DRAFTED = 4  # tokens, where nothing says another number
RING_SPARE = 2 * shared.PAGE  # tokens that a ring holds beyond its window (modules/sliding_attn.py)
ROWS = 2  # of a recurrent state for each sequence (modules/gated_delta_net.py, GDNLayerState)


def kind_of(config: Fields) -> Kind:
    """Of the model's class."""
    names = config.get("architectures") or ()
    return next((KINDS[name] for name in names if name in KINDS), Kind())


def with_states(files: ModelFiles, config: Fields) -> ModelFiles:
    """`files` with what each sequence keeps besides its pages of the cache."""
    text, keeps = model_folder.text_config(config), kind_of(config).keeps
    if keeps == "rings":
        sliding = _share_that_slides(text)
        return msgspec.structs.replace(
            files,
            window=number(text, "sliding_window"),
            sliding_bytes_per_token=int(files.cache_bytes_per_token * sliding),
        )
    if keeps == "states":
        layers = files.recurrent_layers or files.layers  # all, where it isn't known which
        return msgspec.structs.replace(
            files, state_bytes=state_bytes(text), recurrent_layers=layers
        )
    return msgspec.structs.replace(files, state_bytes=0, recurrent_layers=0)


def bytes_of_sequence(files: ModelFiles) -> int:
    """What one sequence keeps besides its pages, on cards; 0: nothing."""
    ring = shared.pages(files.window + RING_SPARE) if files.sliding_bytes_per_token else 0
    return files.state_bytes * files.recurrent_layers + ring * files.sliding_bytes_per_token


def _share_that_slides(text: Fields) -> float:
    kinds = text.get("layer_types")
    if not isinstance(kinds, list) or not kinds or not number(text, "sliding_window"):
        return 0.0
    return kinds.count("sliding_attention") / len(kinds)


def state_bytes(text: Fields) -> int:
    """Of one sequence in one recurrent layer: its rows of the state at 16 bits (Mamba's at 32), and
    what its convolution has seen, of which something is there in any case.
    """
    state, seen = model_folder.state_values(text)
    width = 2 if number(text, "linear_num_value_heads") else 4
    seen = seen or number(text, "hidden_size") * first_number(text, model_folder.KERNELS, 4)
    return ROWS * state * width + 2 * seen


def drafted_by(config: Fields) -> int:
    """How many tokens this draft model drafts at a time: one less than its block."""
    own = config.get("dflash_config")
    block = number(config, "block_size") or number(
        own if isinstance(own, dict) else {}, "block_size"
    )
    return max(1, block - 1) if block else DRAFTED


def heads_of(config: Fields) -> int:
    """How many heads for tokens ahead the model has; 0: none that exllamav3 can use."""
    text = model_folder.text_config(config)
    return first_number(text, COUNTS_OF_HEADS, 0) if kind_of(config).heads else 0


def cache_bytes_of_heads(config: Fields) -> int:
    """Their keys and values of one token, at 16 bits: each has a layer that attends to all."""
    text = model_folder.text_config(config)
    return model_folder.cache_bytes(
        {**text, "layer_types": None, "num_hidden_layers": heads_of(config)}
    )


vocabulary = model_folder.vocabulary
