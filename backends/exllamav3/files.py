"""Folders exllamav3 can load: recognising them, the memory they will need, and what its options are
called elsewhere. Imports no engine.

It reads EXL3 and unquantized safetensors. The latter are transformers' too, which comes before it
in `backends.catalog`: a user who wants them here names the backend.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.catalog import (
    CPU,
    Cards,
    Installation,
    LoadFacts,
    ModelFiles,
    Placement,
    Translation,
    Way,
    renamed,
)
from backends.errors import LoadFailed, UnsupportedModel
from backends.exllama import files as shared
from backends.exllama.files import PagedCacheSize
from backends.exllamav3 import architectures
from backends.huggingface import model_folder, torch_devices
from backends.huggingface.model_folder import Fields
from backends.protocol import MemoryNeed
from config.engines import EngineOptions, ExLlamaV3Options

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
    files = model_folder.recognise(path, "exllamav3", FORMATS.get, _sees)
    if files is None:
        return None
    config = _config(path)
    if model_folder.of_class(config, architectures.DRAFTERS):
        return None
    return architectures.with_states(files, config)


def _config(folder: Path) -> Fields:
    return model_folder.read_json(folder / "config.json")


def _sees(folder: Path, config: Fields) -> bool:
    prepared = model_folder.encodes_images(
        folder, config, (model_folder.PREPROCESSOR, model_folder.PROCESSOR)
    )
    return prepared and model_folder.of_class(config, architectures.SEES)


# -- caches ----------------------------------------------------------------------------------------


def cache_bits(cache_type: str) -> tuple[int, int] | None:
    """Bits of a key's and of a value's number; None where they are not quantized."""
    if cache_type == "fp16":
        return None
    keys, _, values = cache_type.removeprefix("q").partition(",")
    return int(keys), int(values or keys)


def cache_share(cache_type: str) -> float:
    """Of a 16-bit cache, what is left: the bits of a number plus a 16-bit scale for each 32."""
    bits = cache_bits(cache_type)
    return 1.0 if bits is None else (sum(bits) / 2 + 16 / 32) / 16


def draft_cache_type(options: ExLlamaV3Options) -> str:
    """Of the draft model's cache."""
    return options.draft_cache_type or options.cache_type


def cache_size(files: ModelFiles, options: ExLlamaV3Options) -> PagedCacheSize:
    """See `shared.files.cache_size`."""
    share = cache_share(options.cache_type)
    return shared.cache_size(files, options, share, _drafted(files, options), spare=ENDS)


def together(files: ModelFiles, options: ExLlamaV3Options) -> int:
    """How many requests are computed together: as many as `max_concurrent`, but of a model whose
    sequences keep states no more than there is room for.
    """
    models = filter(None, (files, draft(files, options)))
    size = sum(architectures.bytes_of_sequence(one) for one in models)
    if not size:
        return options.max_concurrent
    return min(options.max_concurrent, max(FEWEST_AT_ONCE, STATES_BY_DEFAULT // size))


# -- drafts ----------------------------------------------------------------------------------------


def draft(files: ModelFiles, options: ExLlamaV3Options) -> ModelFiles | None:
    """The model that guesses ahead, if there is one: another, or the heads that `files` has for it.

    Raises LoadFailed.
    """
    if not options.mtp:
        return shared.draft(options, _recognise_draft, "exllamav3")
    if options.draft_model or options.ngram_speculation:
        raise LoadFailed("mtp, a draft model and n-gram speculation exclude each other; choose one")
    config = _config(files.path)
    if not architectures.heads_of(config):
        raise UnsupportedModel(f"{files.path.name} has no MTP heads, which mtp requires")
    return msgspec.structs.replace(
        files,
        size_bytes=0,  # they lie in the model's own files
        cache_bytes_per_token=architectures.cache_bytes_of_heads(config),
        sliding_bytes_per_token=0,
        recurrent_layers=0,
    )


def _recognise_draft(path: Path) -> ModelFiles | None:
    """Any model, or one that can only draft."""
    if (files := recognise(path)) is not None or not (path / "config.json").is_file():
        return files
    config, weights = _config(path), model_folder.weights(path)
    format_ = FORMATS.get(model_folder.quantization(config))
    if not weights or format_ is None or not model_folder.of_class(config, architectures.DRAFTERS):
        return None
    described = model_folder.described(
        path, config, weights, backend="exllamav3", format_=format_, kind="draft"
    )
    return architectures.with_states(described, config)


def _drafted(files: ModelFiles, options: ExLlamaV3Options) -> int:
    """How many tokens are drafted at a time."""
    if options.mtp:
        return shared.drafted(options, architectures.drafted_with_heads(_config(files.path)))
    if options.draft_model:
        guess = draft(files, options)
        assert guess is not None
        return shared.drafted(options, architectures.drafted_by(_config(guess.path)))
    return shared.drafted(options, architectures.DRAFTED) if options.ngram_speculation else 0


def fitted(files: ModelFiles, options: EngineOptions) -> ModelFiles:
    """See `shared.files.fitted`. Raises LoadFailed for options that contradict each other."""
    assert isinstance(options, ExLlamaV3Options)
    if options.disk_cache_dir and not options.cpu_cache_size:
        raise LoadFailed("disk_cache_dir requires cpu_cache_size: pages reach the disk through it")
    if options.mtp:
        return msgspec.structs.replace(files, modalities=("text",))
    return shared.fitted(files, options)


# -- memory ----------------------------------------------------------------------------------------


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    """The draft model's need is in it, and what lies in main memory."""
    assert isinstance(options, ExLlamaV3Options)
    guess = draft(files, options)
    models = [(files, cache_share(options.cache_type))]
    if guess is not None:
        models.append((guess, cache_share(draft_cache_type(options))))
    found = shared.need(models, cache_size(files, options).cells)
    states = sum(architectures.bytes_of_sequence(one) for one, _ in models)
    kept = together(files, options) * states + _kept(files, guess, options)
    return msgspec.structs.replace(found, cache=found.cache + kept)


def _kept(files: ModelFiles, guess: ModelFiles | None, options: ExLlamaV3Options) -> int:
    """Bytes of main memory for what had to leave the cards: pages, and states of sequences."""
    models = filter(None, (files, guess))
    recurs = any(architectures.bytes_of_sequence(one) for one in models)
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
    counts = (model_folder.number(text, name) for name in COUNTS_OF_EXPERTS)
    count = next(filter(None, counts), options.moe_cpu_split)
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
    files: ModelFiles | None,
    options: EngineOptions,
    cards: Cards,
) -> Sequence[Placement]:
    """All cards alike where a tensor is spread over them, else see `shared.files.placements`; and
    in main memory what is kept there.
    """
    assert isinstance(options, ExLlamaV3Options)
    kept = drafting = 0.0
    if files is not None:
        total, guess = estimate(files, options).total, draft(files, options)
        kept = (_kept(files, guess, options) + experts_apart(files, options)) / total
        if guess is not None:
            alone = msgspec.structs.replace(options, draft_model=None, mtp=False)
            drafting = 1 - estimate(files, alone).total / total
    found = shared.placements(options, cards, drafting)
    if options.tensor_parallel and not any(options.gpu_split):
        usable = torch_devices.cards(cards)
        found = (dict.fromkeys(usable, 1 / len(usable)) or {CPU: 1.0},)
    if not kept:
        return found
    return tuple(shared.joined(placement, {CPU: 1.0}, kept) for placement in found)


def placed(options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
    """See `shared.files.placed`."""
    assert isinstance(options, ExLlamaV3Options)
    if options.tensor_parallel:
        return options
    on_cards = {device: share for device, share in placement.items() if device != CPU}
    return shared.placed(options, on_cards or placement, cards)


CACHE = re.compile(r"fp16|q[2-8]|[2-8],[2-8]")


def _cache(option: str) -> Translation:
    """`Q8`, or bits of keys and values apart: `8,4`."""

    def translated(mode: str) -> Mapping[str, Any]:
        kind = mode.lower().replace(" ", "")
        if not CACHE.fullmatch(kind):
            raise ValueError(
                "available in exllamav3: FP16, Q8 to Q2, or bits of keys and values such as '8,4'"
            )
        return {option: kind}

    return translated


INSTALLATION = Installation(
    package="exllamav3",
    needs_card=True,
    ways={
        **shared.WAYS,
        "Linux, CUDA": Way("scripts/install exllamav3", note=shared.EXTENSION),
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    **shared.LOAD_OPTIONS,
    "cache_mode": _cache("cache_type"),
    "draft_mode": shared.drafting({**shared.NO_DRAFTS, "mtp": False}, "mtp"),
    "draft_cache_mode": _cache("draft_cache_type"),
    "dynamic_draft": renamed("dynamic_draft_tokens"),
    "ngram_match_min": renamed("ngram_match_min"),
    "sysmem_kv_cache": renamed("cpu_cache_size"),
    "sysmem_recurrent_cache": renamed("recurrent_cache_size"),
    "cpu_moe_offload_layers": renamed("moe_cpu_offload"),
    "tensor_parallel": renamed("tensor_parallel"),
    "tensor_parallel_backend": renamed("tensor_parallel_backend"),
}


def facts(options: EngineOptions) -> LoadFacts:
    """See `FilesModule.facts`."""
    assert isinstance(options, ExLlamaV3Options)
    return shared.facts(options, options.cache_type)
