"""Hugging Face folders on disk, models that generate, embed or rank: recognising them, what their
JSON files say, the memory they will need, and what the options are called elsewhere.

Imports no engine, reads no weights: `config.json`, the templates' files and the sizes of the weight
files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

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
    renamed,
    smallest_first,
)
from backends.contract.placement import Device, Fit, ModelWeights, Variant, reads, sentence
from backends.contract.placement import fit as best_fit
from backends.contract.protocol import MemoryNeed
from backends.engines import model_folder, snapshots
from backends.engines.draft_model import draft_files
from backends.engines.prefill import ALONE_SECONDS, BLOCK
from backends.engines.transformers import encoder_steps
from backends.engines.transformers.offload import COPIED, weights_of
from backends.machine import devices
from backends.machine.control_groups import main_memory
from config.engines import DraftOptions, SpeculationOptions, TransformersOptions

LONGEST_TEXT = 8_192  # tokens of one text: a pass takes it as a whole
MOST_ROWS = 256  # texts of one pass
PASS_TOKENS = 16_384  # of one pass, padding included, if a single text doesn't take more
CPU_PASS_TOKENS = 4_096


class EncoderShape(msgspec.Struct, frozen=True):
    """Tokens of one text, and of one pass."""

    length: int
    tokens: int


def recognise_encoder(path: Path) -> ModelFiles | None:
    """A folder with safetensors whose files describe such a model. Raises LoadFailed for a broken
    one, UnsupportedModel for one that can't be run.
    """
    if not (path / "config.json").is_file():
        return None
    config = model_folder.read_json(path / "config.json")
    steps = encoder_steps.steps(path, config)
    if steps is None or not (files := model_folder.weights(path)):
        return None
    kind = str(config.get("model_type") or "")
    found = model_folder.described(
        path, config, files, backend="transformers", format_="safetensors", kind=kind
    )
    trained = encoder_steps.positions(config, found.context_length)
    further = (file for file in path.rglob("*") if file.suffix in (".json", ".safetensors"))
    return msgspec.structs.replace(
        found,
        task=steps.task,
        context_length=min(steps.length or trained, trained),
        cache_bytes_per_token=0,
        chat_template=None,
        parts=tuple(sorted({*found.parts, *further})),
    )


def encoder_shape(files: ModelFiles, options: TransformersOptions, *, cpu: bool) -> EncoderShape:
    """A text may be as long as the folder says, or the options, but has no more tokens than the
    model has positions.
    """
    config = model_folder.read_json(files.path / "config.json")
    trained = encoder_steps.positions(config, model_folder.context_length(config))
    length = min(files.context_length, LONGEST_TEXT)
    if options.context_length is not None:
        length = min(options.context_length, trained)
    return EncoderShape(length, max(length, CPU_PASS_TOKENS if cpu else PASS_TOKENS))


def encoder_buffers(files: ModelFiles, size: EncoderShape, number: int) -> int:
    """Bytes of the largest pass: its activations, and the attention mask (as booleans, and as
    numbers inside the attention). `number`: bytes of one value.
    """
    mask = size.tokens * size.length * (1 + number)
    return size.tokens * files.activation_bytes * number // 4 + mask


AUTOMATIC = ("auto", "cuda")  # devices of the options that name no card

SUFFIX = None  # folders
COMPANIONS: tuple[str, ...] = ()
LONGEST_BY_DEFAULT = (
    32_768  # tokens; models trained for a million would claim all memory for their cache
)
# Of KV cache for all requests, where one full context takes less: bytes, and a part of main memory.
CACHE_BY_DEFAULT, CACHE_SHARE = 2 << 30, 0.25
SHORTEST = 2_048  # tokens of a context that is cut to fit
LARGEST_CHUNK = 4096  # prompt tokens in one pass
# Operations a second, at a guess: from it follow the tokens that a pass of `ALONE_SECONDS` takes.
CPU_SPEED, CARD_SPEED = 2.5e10, 1e14
# Of 16-bit weights, what quantizing leaves; embeddings and norms stay as they are.
LEFT = {"bnb-4bit": 0.35, "bnb-8bit": 0.6, None: 1.0}
LOGIT_COPIES = 10  # at 32 bits, while tokens are drawn: sorted, summed, masked (measured)
FIXED = 4 << 20  # bytes: the tokenizer, Python's own objects (measured)
# Bytes of torch's interpreter for recorded passes, and of what is recorded of a layer: toys of 4
# layers take 25 MiB once they are used, the 30 of SmolLM2 60 to 80.
RECORDER, RECORDED = 17 << 20, 2 << 20
OTHERS = frozenset({"exl2", "exl3"})  # quantizations that another backend reads
CARD = Path("/dev/nvidiactl")  # exists with the driver; asking torch would import it


class CacheSize(msgspec.Struct, frozen=True):
    """How much KV cache there may be: `tokens` in all, `length` for one request of up to `rows`."""

    rows: int
    tokens: int
    length: int


def recognise(path: Path) -> ModelFiles | None:
    """A folder with a `config.json` of a text generating model, or of one that makes vectors or
    ranks, and its safetensors.

    Raises LoadFailed for a broken folder, UnsupportedModel for one that has only pickled weights.
    """
    return recognise_encoder(path) or model_folder.recognise(path, "transformers", _format)


def _format(quantization: str | None) -> str | None:
    return None if quantization in OTHERS else "safetensors"


def cache_size(files: ModelFiles, options: TransformersOptions) -> CacheSize:
    """The cache's size: as `cache_tokens` says, else `CACHE_BY_DEFAULT`; one full context always
    fits.
    """
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    affordable = CACHE_BY_DEFAULT // cell_bytes(files, number_bytes(files, options))
    tokens = options.cache_tokens or min(affordable, length * options.max_concurrent)
    return CacheSize(options.max_concurrent, max(tokens, length), length)


def cell_bytes(files: ModelFiles, number: int) -> int:
    """Of one token's cache; `number`: bytes of one value."""
    return max(1, files.cache_bytes_per_token * number // 2)


def fitted(files: ModelFiles, options: TransformersOptions) -> ModelFiles:
    """No option changes what the model can do."""
    return files


def placements(
    files: ModelFiles | None, options: TransformersOptions, cards: Cards
) -> Sequence[Placement]:
    """In main memory where this build of torch knows no cards; else see `singly`."""
    ways = singly(options, cards if devices.torch_is_for_cards() else {})
    decided = options.gpu_layers != "auto" and options.gpu_layers >= 0
    if files is None or not decided:
        return ways
    part = 1 - layers_away(files.layers, options) / (files.layers + 1)
    if part == 1:
        return ways
    return tuple({**{card: part for card in way if card != CPU}, CPU: 1 - part} for way in ways)


def singly(options: TransformersOptions, cards: Cards) -> Sequence[Placement]:
    """All on one device: the one that is named, or any card, or main memory where there is none."""
    if options.device not in AUTOMATIC:
        return ({devices.torch_card(options.device, cards): 1.0},)
    singles = (one for one in smallest_first(devices.torch_cards(cards)) if len(one) == 1)
    return tuple(singles) or ({CPU: 1.0},)


def placed(options: TransformersOptions, placement: Placement, cards: Cards) -> TransformersOptions:
    """On the card of the placement."""
    card = next((one for one in placement if one != CPU), CPU)
    if options.device not in AUTOMATIC or card not in cards:
        return options
    return msgspec.structs.replace(options, device=devices.torch_name(card))


def draft(options: TransformersOptions) -> ModelFiles | None:
    """The draft model, if there is one. Raises LoadFailed."""
    return draft_files(options, recognise, "transformers")


def draft_options(files: ModelFiles, options: TransformersOptions) -> TransformersOptions:
    """What the draft model in `files` is loaded with, for a model with these options."""
    longest = min(files.context_length, LONGEST_BY_DEFAULT)
    length = min(options.context_length or longest, longest)
    return msgspec.structs.replace(
        options,
        context_length=length,
        cache_tokens=length * options.max_concurrent,
        quantization=None,
        gpu_layers=-1,
        adapters={},
        snapshot_memory=0,
        speculation=SpeculationOptions(mode="off"),
        draft=DraftOptions(),
    )


def estimate(files: ModelFiles, options: TransformersOptions) -> MemoryNeed:
    """Of the model, and of its draft model."""
    alone, drafting = _estimate(files, options), draft(options)
    if drafting is None or files.task != "generate" or files.recurrent_layers:
        return alone
    return alone.plus(_estimate(drafting, draft_options(drafting, options)))


def _estimate(files: ModelFiles, options: TransformersOptions) -> MemoryNeed:
    """Weights as they will be held; the cache when it is full; activations by the dimensions."""
    number = number_bytes(files, options)
    weights = files.size_bytes * LEFT[options.quantization] * number / _stored_bytes(files)
    if files.task != "generate":
        size = encoder_shape(files, options, cpu=on_cpu(options.device))
        engine = FIXED + encoder_buffers(files, size, number)
        apart = (file for file in files.parts if file.parent != files.path)  # dense layers'
        dense = sum(file.stat().st_size for file in apart if file.suffix == ".safetensors")
        return MemoryNeed(weights=int(weights) + dense, cache=0, engine=engine)
    cache = cache_bytes(files, options, number)
    return MemoryNeed(
        weights=int(weights),
        cache=cache,
        engine=buffers(files, options),
        snapshots=snapshot_bytes(files, options),
    )


def cache_bytes(files: ModelFiles, options: TransformersOptions, number: int) -> int:
    """Of the cache when it is full, and of all states; `number`: bytes of one value."""
    cells = cache_size(files, options).tokens * cell_bytes(files, number)
    states = files.state_bytes * files.recurrent_layers * number // 4
    return cells + options.max_concurrent * states


def snapshot_bytes(files: ModelFiles, options: TransformersOptions) -> int:
    """Main memory for snapshots of sequences that can't be cut."""
    size = files.state_bytes * files.recurrent_layers * number_bytes(files, options) // 4
    wanted = options.snapshot_memory
    return snapshots.room(size, options.max_concurrent, main_memory(), wanted)


def buffers(files: ModelFiles, options: TransformersOptions) -> int:
    """Bytes of the largest pass: of a state space, which is scanned over a whole prompt; or of a
    prompt chunk, its activations and the attention's mask (as booleans, and as numbers inside the
    attention). And the logits of all answers.
    """
    size, number = cache_size(files, options), number_bytes(files, options)
    speed = CPU_SPEED if on_cpu(options.device) else CARD_SPEED
    parameters = max(files.size_bytes // _stored_bytes(files), 1)
    timely = int(speed * ALONE_SECONDS / (2 * parameters))  # two operations for each parameter
    tokens = min(size.tokens, LARGEST_CHUNK, max(BLOCK, timely))
    mask = tokens * min(size.length, size.tokens) * (1 + number)
    logits = options.max_concurrent * files.vocab_size * 4 * LOGIT_COPIES
    activations = max(tokens * files.activation_bytes * number // 4, size.length * files.scan_bytes)
    recorded = RECORDER + RECORDED * files.layers if on_cpu(options.device) else 0
    return FIXED + recorded + activations + mask + logits


def number_bytes(files: ModelFiles, options: TransformersOptions) -> int:
    """Of one number that is computed with, and kept in the cache."""
    if options.dtype == "auto":
        return 4 if computes_wide(files, options.device) else _stored_bytes(files)
    return 4 if options.dtype == "float32" else 2


def _stored_bytes(files: ModelFiles) -> int:
    return 4 if stored_dtype(files) == "float32" else 2


def on_cpu(device: str) -> bool:
    """Whether the option `device` means the CPU on this machine."""
    return device == "cpu" or (device == "auto" and not CARD.exists())


def computes_wide(files: ModelFiles, device: str) -> bool:
    """Half precision is slower than float32 on a CPU, which converts at every operation (measured:
    1.3 times).
    """
    return on_cpu(device) and stored_dtype(files) == "float16"


def stored_dtype(files: ModelFiles) -> str | None:
    """The dtype `config.json` names, if any."""
    config = model_folder.read_json(files.path / "config.json")
    text = model_folder.text_config(config)
    named = config.get("dtype") or config.get("torch_dtype") or text.get("dtype")
    return str(named) if named else None


INSTALLATION = Installation(
    package="torch",
    others=("transformers", "accelerate", "safetensors"),
    for_cards="TORCH_INDEX=… scripts/install transformers",
    ways={
        "Linux, CPUs": Way("scripts/install transformers", SUITE),
        "Linux, CUDA": Way(
            "TORCH_INDEX=… scripts/install transformers", "a part of its tests, on an H200"
        ),
        "Linux, ROCm": Way("TORCH_INDEX=… scripts/install transformers"),
        "Linux, Vulkan": Way("", note="torch has no build for it"),
        "macOS (Metal)": Way("scripts/install transformers", note="on CPUs: MPS is not used"),
        "Windows": IN_WSL,
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    "cache_size": renamed("cache_tokens"),
    **DRAFT_LOAD_OPTIONS,
}


def fit(files: ModelFiles, options: TransformersOptions, cards: Cards, room: Room) -> Fitted | None:
    """See `FilesModule.fit`: where `gpu_layers` is `auto` and no card was named, layers in main
    memory; all of it there, where that is better.
    """
    usable = devices.torch_cards(cards) if devices.torch_is_for_cards() else {}
    return (
        fit_on(files, options, tuple(usable), room) if usable else _shortened(files, options, room)
    )


def _shortened(files: ModelFiles, options: TransformersOptions, room: Room) -> Fitted | None:
    """In main memory, with a shorter cache than by default, where all of it would be too much."""
    if (
        options.cache_tokens is not None
        or files.task != "generate"
        or files.cache_bytes_per_token == 0
    ):
        return None
    size, free = cache_size(files, options), room.free.get(CPU, 0)
    cell = cell_bytes(files, number_bytes(files, options))
    beside = estimate(files, options).total - size.tokens * cell
    tokens = min(free - beside, max(int(free * CACHE_SHARE), size.length * cell)) // cell
    length = min(size.length, tokens)
    least = options.context_length or min(size.length, SHORTEST)
    if tokens >= size.tokens or length < least:
        return None
    changed = msgspec.structs.replace(options, cache_tokens=tokens, context_length=length)
    return Fitted(
        options=changed,
        need=estimate(files, changed),
        placement={CPU: 1.0},
        speed=1.0,
        note=f"a cache of {tokens:,} tokens, {length:,} for one request",
    )


def fit_on(
    files: ModelFiles, options: TransformersOptions, usable: Sequence[str], room: Room
) -> Fitted | None:
    """As `fit`, on one of the `usable` cards."""
    if not usable or not _may_be_cut(files, options):
        return None
    tensors = [model_folder.tensor_bytes(path) for path in model_folder.weights(files.path)]
    named = {name: size for part in tensors for name, size in part.items()}
    need, number = _estimate(files, options), number_bytes(files, options)
    weights = weights_of(named, files.layers, number / _stored_bytes(files))
    if weights is None:
        return None
    size = cache_size(files, options)
    form = Variant(  # what is kept of a sequence stays on the card, which computes all layers
        context=size.length,
        cache_type="",
        caches=(0,) * len(weights.layers),
        buffers=need.cache + need.engine,
        moved=weights.largest,
    )
    there = [Device(one, room.free.get(one, 0), _bandwidth(one, room)) for one in usable]
    main = Device(CPU, room.free.get(CPU, 0), COPIED)
    ways = [found for card in there if (found := best_fit(weights, (form,), [card], main))]
    if any(way.is_whole(weights) for way in ways):
        return None
    ways += _on_cpu(weights, form, there, main, room)
    found = max(ways, key=lambda way: way.speed, default=None)
    return None if found is None else _cut(options, need, weights, form, found)


def _on_cpu(
    weights: ModelWeights, form: Variant, cards: Sequence[Device], main: Device, room: Room
) -> Sequence[Fit]:
    """All of it in main memory, if it fits there, which the CPU reads itself then: as fast as that,
    compared with the fastest card.
    """
    alone = msgspec.structs.replace(
        main, bandwidth=room.bandwidths.get(CPU, devices.MAIN_BANDWIDTH)
    )
    found = best_fit(weights, (form,), [], alone)
    fastest = max(card.bandwidth for card in cards)
    speed = alone.bandwidth / fastest
    return [] if found is None else [msgspec.structs.replace(found, speed=speed)]


def _bandwidth(card: str, room: Room) -> float:
    return room.bandwidths.get(card, devices.CARD_BANDWIDTH)


def _may_be_cut(files: ModelFiles, options: TransformersOptions) -> bool:
    changed = options.adapters or options.quantization or options.compile or options.draft.model
    free = options.gpu_layers == "auto" and options.device in AUTOMATIC
    return free and not changed and files.task == "generate" and files.modalities == ("text",)


def _cut(
    options: TransformersOptions, need: MemoryNeed, weights: ModelWeights, form: Variant, found: Fit
) -> Fitted:
    """Layers are counted as of the model: what is behind the last one is on the card as well."""
    on_card = max(0, found.on_cards - 1)
    held = dict(found.sizes)
    if found.layers and CPU in held:  # its buffers are the card's alone
        held[CPU] = max(1, held[CPU] - form.buffers)
    changed = msgspec.structs.replace(options, gpu_layers=on_card)
    for card in found.layers:
        changed = msgspec.structs.replace(changed, device=devices.torch_name(card))
    if not found.layers:
        changed = msgspec.structs.replace(changed, device="cpu", gpu_layers=-1)
    total = sum(held.values())
    cache = min(need.cache, total)
    engine = min(need.engine + (form.moved if found.layers else 0), total - cache)
    return Fitted(
        options=changed,
        need=MemoryNeed(
            weights=total - cache - engine, cache=cache, engine=engine, snapshots=need.snapshots
        ),
        placement={name: size / total for name, size in held.items()},
        speed=found.speed,
        note=sentence(found, weights, form),
        reasons=found.reasons,
        reads=reads(weights, found, CPU),
    )


def layers_away(layers: int, options: TransformersOptions) -> int:
    """Of so many layers, those in main memory that a card computes with."""
    count = options.gpu_layers
    return 0 if count == "auto" or count < 0 else max(0, layers - count)


def facts(options: TransformersOptions) -> LoadFacts:
    """See `FilesModule.facts`."""
    return LoadFacts(
        cache_tokens=options.cache_tokens,
        draft_model=options.draft.model,
        adapters=adapters(options.adapters),
    )


vocabulary = model_folder.vocabulary
