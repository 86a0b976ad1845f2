"""GGUF on disk: the memory it will need, where it may lie, what its options are called elsewhere.

Imports no engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.contract.catalog import (
    CPU,
    DRAFT_LOAD_OPTIONS,
    IN_WSL,
    SUITE,
    Cards,
    Fitted,
    Installation,
    LoadFacts,
    ModelFiles,
    Placement,
    Room,
    Translation,
    Way,
    adapters,
    divided,
    renamed,
    smallest_first,
)
from backends.contract.errors import LoadFailed
from backends.contract.placement import (
    Device,
    Fit,
    LayerWeights,
    ModelWeights,
    Variant,
    reads,
    sentence,
)
from backends.contract.placement import fit as best_fit
from backends.contract.protocol import MemoryNeed
from backends.engines.draft_model import draft_files
from backends.engines.llamacpp import libraries, memory, projectors, recognition
from backends.engines.llamacpp.gguf import BrokenFile, metadata_alone
from backends.engines.llamacpp.layout import (
    CACHE_BITS,
    Layout,
    cache_layout,
    context_length,
    padded,
    part_of_16_bits,
    pass_bytes,
    snapshot_bytes,
    states_back,
    states_of_one,
    undrafted,
    window_cells,
    workspace,
)
from backends.engines.llamacpp.libraries import on_cpu
from backends.engines.llamacpp.recognition import recognise
from backends.machine import devices, ggml, ik, prebuilt
from config.engines import DraftOptions, LlamaCppOptions, SpeculationOptions

SUFFIX = recognition.SUFFIX
COMPANIONS = (f"*{projectors.MARK}*[fF]16*",)  # it comes in several precisions; one is enough
# Matrices in main memory that a card holds a copy of while it computes a prompt with them.
MOVED = 1


def fitted(files: ModelFiles, options: LlamaCppOptions) -> ModelFiles:
    """With the projector that the options name, or without any; for vectors where they say so."""
    if options.pooling is not None:
        return msgspec.structs.replace(files, task="embed", projector=None, modalities=("text",))
    if not options.vision:
        return msgspec.structs.replace(files, projector=None, modalities=("text",))
    if options.mmproj is None:
        return files
    projector = projectors.named(Path(options.mmproj).expanduser())
    return msgspec.structs.replace(files, projector=projector, modalities=("text", "image"))


def placements(
    files: ModelFiles | None, options: LlamaCppOptions, cards: Cards
) -> Sequence[Placement]:
    """In main memory where this build of llama.cpp knows no cards; else see `spread`."""
    usable = {name: cards[name] for name in devices.of_llamacpp() if name in cards}
    return spread(files, options, usable)


def spread(files: ModelFiles | None, options: LlamaCppOptions, cards: Cards) -> Sequence[Placement]:
    """As `tensor_split` or `main_gpu` says, else any of the cards, or several of them; and in main
    memory the layers that `gpu_layers` leaves there.
    """
    away = _away(files, options)
    if not cards or not away:
        return ({CPU: 1.0},)
    if away == 1:
        return tuple(_on_cards(options, cards))
    parts = ({card: part * away for card, part in one.items()} for one in _on_cards(options, cards))
    return tuple({**one, CPU: 1 - away} for one in parts)


def _on_cards(options: LlamaCppOptions, cards: Cards) -> Iterable[Placement]:
    if any(options.tensor_split):
        return (divided(options.tensor_split, cards),)
    if options.main_gpu is None:
        return smallest_first(cards)
    return ({list(cards)[min(options.main_gpu, len(cards) - 1)]: 1.0},)


def _away(files: ModelFiles | None, options: LlamaCppOptions) -> float:
    """The part of a model that isn't left in main memory: all of it where the number of its layers
    isn't known. llama.cpp counts what is behind the last one as a layer.
    """
    count = layers_on_cards(options)
    if files is None or not files.layers:
        return float(count != 0)
    part = 1.0 if count < 0 else min(1.0, count / (files.layers + 1))
    if not part or files.weights is None:
        return part
    layers = files.weights.layers
    experts = sum(layers[number].experts for number in layers_without_experts(files, options))
    return max(0.0, part - experts / files.size_bytes)


def layers_on_cards(options: LlamaCppOptions) -> int:
    """As llama.cpp is told; -1: all, which `auto` is where nothing gave way."""
    return -1 if options.gpu_layers == "auto" else options.gpu_layers


def layers_without_experts(files: ModelFiles, options: LlamaCppOptions) -> Sequence[int]:
    """Those whose experts lie in main memory, though the rest of them may not."""
    count = 0 if options.cpu_experts == "auto" else options.cpu_experts
    return files.weights.experts[-count:] if files.weights is not None and count else ()


def placed(options: LlamaCppOptions, placement: Placement, cards: Cards) -> LlamaCppOptions:
    """With numbers for the cards of the placement, as llama.cpp counts them."""
    usable = [name for name in devices.of_llamacpp() if name in cards]
    if len(usable) < 2 or any(options.tensor_split) or options.main_gpu is not None:
        return options
    split = tuple(placement.get(name, 0.0) for name in usable)
    return msgspec.structs.replace(options, tensor_split=split)


def fit(files: ModelFiles, options: LlamaCppOptions, cards: Cards, room: Room) -> Fitted | None:
    """See `FilesModule.fit`: where `gpu_layers` is `auto`, and no card was chosen."""
    usable = [name for name in devices.of_llamacpp() if name in cards] if ggml.offloads() else []
    return fit_on(files, options, usable, room)


def fit_on(
    files: ModelFiles, options: LlamaCppOptions, usable: Sequence[str], room: Room
) -> Fitted | None:
    """As `fit`, on the `usable` cards, in llama.cpp's order."""
    weights = files.weights
    decided = options.gpu_layers != "auto" or options.cpu_experts != "auto"
    if decided or any(options.tensor_split) or weights is None or files.task != "generate":
        return None
    chosen = usable if options.main_gpu is None else usable[options.main_gpu :][:1] or usable[-1:]
    forms = list(_variants(files, options, weights))
    snapshots = snapshot_bytes(files, options)
    there = [_device(name, room, workspace()) for name in chosen]
    main = _device(CPU, room, snapshots)
    found = best_fit(weights, forms, there, main)
    if found is None or (found.variant == forms[0] and found.is_whole(weights)):
        return None
    if not chosen and found.variant == forms[0]:
        return None  # there is no card
    return _fitted(files, options, weights, forms[0], found, usable)


def _device(name: str, room: Room, kept: int) -> Device:
    """A page less than there is, for what is rounded."""
    free = max(0, room.free.get(name, 0) - kept - 4096)
    usual = devices.MAIN_BANDWIDTH if name == CPU else devices.CARD_BANDWIDTH
    return Device(name, free, room.bandwidths.get(name, usual))


def _variants(
    files: ModelFiles, options: LlamaCppOptions, weights: ModelWeights
) -> Iterable[Variant]:
    """The context and the cache that are wanted, then what is allowed in their place."""
    for length in _lengths(files, options):
        for kind in _cache_types(options):
            changed = msgspec.structs.replace(options, **_cache_of(options, length, kind))
            yield _variant(files, changed, weights)
            if options.cache_tokens is None and cache_layout(files, changed).cells > length:
                pooled = msgspec.structs.replace(changed, cache_tokens=length)
                pool = _variant(files, pooled, weights)
                yield msgspec.structs.replace(pool, is_pool=True)


def _lengths(files: ModelFiles, options: LlamaCppOptions) -> Iterable[int]:
    """Tokens: the context's, and halves of it, where no number was set."""
    length = context_length(files, options)
    yield length
    if options.context_length is None and options.cache_tokens is None:
        while (length := length // 2) >= options.context_floor:
            yield length


def _cache_types(options: LlamaCppOptions) -> Iterable[str]:
    """That of the keys, where values have it too; then `cache_floor`, if it is smaller."""
    yield options.cache_type_k
    floor = options.cache_floor
    alike = options.cache_type_k == options.cache_type_v
    if floor is not None and alike and CACHE_BITS[floor] < CACHE_BITS[options.cache_type_k]:
        yield floor


def _cache_of(options: LlamaCppOptions, length: int, kind: str) -> Mapping[str, Any]:
    changes: dict[str, Any] = {}
    if kind != options.cache_type_k:
        changes = {"cache_type_k": kind, "cache_type_v": kind}
    return {**changes, "context_length": length}


def _variant(files: ModelFiles, options: LlamaCppOptions, weights: ModelWeights) -> Variant:
    layout = cache_layout(files, options)
    return Variant(
        context=context_length(files, options),
        cache_type=options.cache_type_k,
        caches=tuple(_kept(files, options, layout, one) for one in weights.layers),
        buffers=pass_bytes(files, options, layout),
        moved=weights.largest * MOVED,
        added=files.added_bytes,
        beside=_beside(files, options).total,
    )


def _fitted(
    files: ModelFiles,
    options: LlamaCppOptions,
    weights: ModelWeights,
    wanted: Variant,
    found: Fit,
    usable: Sequence[str],
) -> Fitted:
    form, count = found.variant, found.on_cards
    beside = workspace()
    sizes = {name: size + beside * (name in found.layers) for name, size in found.sizes.items()}
    changes: dict[str, Any] = {"gpu_layers": count, "cpu_experts": found.away}
    if form != wanted:
        changes |= _cache_of(options, form.context, form.cache_type)
    if form.is_pool:
        changes["cache_tokens"] = form.context
    if count and len(usable) > 1:
        changes["tensor_split"] = tuple(float(found.layers.get(name, 0)) for name in usable)
        changes["main_gpu"] = None
    total, cache = sum(sizes.values()), sum(form.caches)
    computing = len(sizes) * form.buffers + len(found.layers) * form.moved
    computing = min(computing + beside * len(found.layers), total - cache)
    changed = msgspec.structs.replace(options, **changes)
    return Fitted(
        options=changed,
        need=MemoryNeed(
            weights=total - cache - computing,
            cache=cache,
            engine=computing,
            snapshots=snapshot_bytes(files, changed),
        ),
        placement={name: size / total for name, size in sizes.items()},
        speed=found.speed,
        note=sentence(found, weights, wanted),
        reasons=found.reasons,
        reads=reads(weights, found, CPU),
    )


def draft(files: ModelFiles, options: LlamaCppOptions) -> ModelFiles | None:
    """The draft model, if the model in `files` has one and can take drafts back.

    Raises LoadFailed.
    """
    return None if undrafted(files, options) else draft_files(options, recognise, "llamacpp")


def draft_options(files: ModelFiles, options: LlamaCppOptions) -> LlamaCppOptions:
    """What the draft model in `files` is loaded with, for a model with these options: on the cards,
    where the model has layers on any.
    """
    longest = context_length(files, msgspec.structs.replace(options, context_length=None))
    return msgspec.structs.replace(
        options,
        context_length=min(options.context_length or longest, longest),
        cache_tokens=None,
        gpu_layers=0 if options.gpu_layers == 0 else -1,
        cpu_experts=0,
        rope_freq_base=None,
        rope_freq_scale=None,
        vision=False,
        mmproj=None,
        adapters={},
        adapter_scaling={},
        library="llama.cpp",
        snapshot_memory=0,
        speculation=SpeculationOptions(mode="off"),
        draft=DraftOptions(),
    )


def estimate(files: ModelFiles, options: LlamaCppOptions) -> MemoryNeed:
    """Weights as on disk, but for what the CPU's layouts add; the cache by its types; the buffers
    of the graph by their dimensions; and what lies beside the model.
    """
    beside = _beside(files, options)
    weights = files.size_bytes + (files.added_bytes if on_cpu(options) else 0)
    if files.task != "generate":
        return memory.estimate(files, options, weights + beside.weights)
    layout, sliding = cache_layout(files, options), files.sliding_bytes_per_token
    cell, states = files.cache_bytes_per_token - sliding, states_of_one(files)
    alone = MemoryNeed(
        weights=weights,
        cache=_kept(files, options, layout, LayerWeights(0, 0, cell, sliding, states)),
        engine=pass_bytes(files, options, layout) + (0 if on_cpu(options) else workspace()),
        snapshots=snapshot_bytes(files, options),
    )
    return alone.plus(beside)


def _kept(files: ModelFiles, options: LlamaCppOptions, layout: Layout, of: LayerWeights) -> int:
    """Bytes of all cells and states of a layer, or of all together."""
    cells = padded(layout) * of.cache + window_cells(files, options, layout) * of.sliding
    states = layout.slots * (1 + states_back(files, options)) * of.state
    return int(cells * part_of_16_bits(options)) + states


def _beside(files: ModelFiles, options: LlamaCppOptions) -> MemoryNeed:
    """Of adapters, of the image encoder, and of a draft model."""
    projector, scores = fitted(files, options).projector, options.flash_attention == "off"
    there = [path for path in adapter_paths(options) if path.is_file()]
    need = MemoryNeed(
        weights=sum(path.stat().st_size for path in (*there, *filter(None, [projector]))),
        cache=0,
        engine=projectors.buffer(projector, scores=scores) if projector else 0,
    )
    if files.task != "generate" or (drafting := draft(files, options)) is None:
        return need
    return need.plus(estimate(drafting, draft_options(drafting, options)))


def adapter_paths(options: LlamaCppOptions) -> Sequence[Path]:
    """The files of its LoRA adapters."""
    return [Path(path).expanduser() for path in options.adapters.values()]


_CACHE_TYPES = {  # by TabbyAPI's names, and by bits
    "fp16": "f16",
    "q8": "q8_0",
    "q4": "q4_0",
    "8": "q8_0",
    "5": "q5_1",
    "4": "q4_0",
}


def _cache(mode: str) -> Mapping[str, Any]:
    """`Q8`, or keys and values apart, by bits: `8,4`."""
    parts = [part.strip().lower() for part in mode.split(",")]
    if len(parts) not in (1, 2) or not all(part in _CACHE_TYPES for part in parts):
        raise ValueError(
            "available in llamacpp: FP16, Q8, Q4, or bits of keys and values such as '8,4'"
        )
    keys, values = parts[0], parts[-1]
    return {"cache_type_k": _CACHE_TYPES[keys], "cache_type_v": _CACHE_TYPES[values]}


def described_here() -> str:
    """What is installed, for people: llama.cpp, and ik_llama.cpp where it is."""
    return prebuilt.described() if ik.missing() else f"{prebuilt.described()}; {ik.described()}"


INSTALLATION = Installation(
    package="llama-cpp-python",
    described=described_here,
    for_cards=prebuilt.compiling("-DGGML_CUDA=on"),
    uses_shared=True,
    library=libraries.choice,
    ways={
        "Linux, CPUs": Way("make run", SUITE),
        "Linux, CUDA": Way(
            "make run", tried="most of its tests, on an H200", note="prebuilt; nvcc to compile"
        ),
        "Linux, ROCm": Way("make run", note="prebuilt for Vulkan; hipcc to compile"),
        "Linux, Vulkan": Way(
            "CMAKE_ARGS=-DGGML_VULKAN=on make run",
            tried="`make test-vulkan`, on Mesa's software device only (llvmpipe)",
            note="Vulkan's headers and glslc",
        ),
        "macOS (Metal)": Way("make run"),
        "Windows": IN_WSL,
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    "cache_size": renamed("cache_tokens"),
    "cache_mode": _cache,
    "gpu_split": renamed("tensor_split"),
    "chunk_size": renamed("batch_size"),
    # llama.cpp scales frequencies, TabbyAPI positions.
    "rope_scale": lambda scale: {"rope_freq_scale": 1 / scale},
    "cpu_moe_offload_layers": renamed("cpu_experts"),
    "vision": renamed("vision"),
    **DRAFT_LOAD_OPTIONS,
}


def facts(options: LlamaCppOptions) -> LoadFacts:
    """See `FilesModule.facts`."""
    scale = options.rope_freq_scale
    return LoadFacts(
        cache_tokens=options.cache_tokens,
        cache_mode=_cache_mode(options.cache_type_k, options.cache_type_v),
        rope_scale=1 / scale if scale else None,
        chunk_size=options.batch_size,
        draft_model=options.draft.model,
        adapters=adapters(options.adapters, options.adapter_scaling),
    )


def vocabulary(path: Path) -> Mapping[str, bytes]:
    """See `FilesModule.vocabulary`."""
    try:
        return {path.name: metadata_alone(path)}
    except (BrokenFile, OSError) as error:
        raise LoadFailed(f"the vocabulary of {path.name} can't be read: {error}") from error


def _cache_mode(keys: str, values: str) -> str:
    both = (keys,) if keys == values else (keys, values)
    return ",".join(kind.upper().replace("F16", "FP16").removesuffix("_0") for kind in both)
