"""The common part of the `files` of exllamav2 and exllamav3: the memory a folder will need, and
what their options are called elsewhere. Imports no engine.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backends.contract.catalog import (
    CPU,
    DRAFT_LOAD_OPTIONS,
    IN_WSL,
    Cards,
    LoadFacts,
    ModelFiles,
    Placement,
    Platform,
    Translation,
    Way,
    adapters,
    alike,
    divided,
    renamed,
    smallest_first,
)
from backends.contract.errors import LoadFailed, UnsupportedModel
from backends.contract.protocol import MemoryNeed
from backends.machine import devices
from config.engines import ExLlamaOptions, ExLlamaV2Options, ExLlamaV3Options

Options = TypeVar("Options", ExLlamaV2Options, ExLlamaV3Options)

GIB = 1 << 30
ADAPTER = "adapter_model.safetensors"
PAGE = 256  # tokens; the cache's size is a multiple of it
LONGEST_BY_DEFAULT = 32_768  # tokens; models trained for more would claim all memory for the cache
CACHE_BY_DEFAULT = 4 << 30  # bytes of KV cache for all requests, where one full context takes less
SCRATCH = 768 << 20  # bytes: CUDA context, dequantizing, a prompt chunk's activations; a guess


class PagedCacheSize(msgspec.Struct, frozen=True):
    """How much KV cache there will be: `cells` tokens in all, `length` for one request, of which
    `drafted` positions behind it are for draft tokens.
    """

    cells: int
    length: int
    drafted: int

    @property
    def positions(self) -> int:
        """Positions the model must have, draft tokens included; whole pages."""
        return pages(self.length + self.drafted)


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


def cache_size(
    files: ModelFiles,
    options: ExLlamaV2Options | ExLlamaV3Options,
    drafted: int,
    spare: int = 0,
) -> PagedCacheSize:
    """As `cache_tokens` says, else `CACHE_BY_DEFAULT`; one full context always fits, with `spare`
    tokens behind it. `drafted`: tokens at a time.
    """
    share = cache_share(options.cache_type)
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    affordable = int(CACHE_BY_DEFAULT / max(paged_bytes(files) * share, 1))
    cells = options.cache_tokens or min(affordable, length * options.max_concurrent)
    return PagedCacheSize(pages(max(cells, length + drafted + spare)), length, drafted)


def paged_bytes(files: ModelFiles) -> int:
    """What a token takes in pages of the cache, at 16 bits. Rings of sliding windows lie apart."""
    return files.cache_bytes_per_token - files.sliding_bytes_per_token


def pages(tokens: int) -> int:
    """As many tokens, in whole pages."""
    return -(-tokens // PAGE) * PAGE


def draft_cache_type(options: ExLlamaV2Options | ExLlamaV3Options) -> str:
    """Of the draft model's cache."""
    return options.draft_cache_type or options.cache_type


class Drafts(msgspec.Struct, frozen=True):
    """What drafts, by whichever of its names an option was given. `model`: a path; `repeats`: what
    is repeated; `heads`: the model's own; `tokens`: at a time, None: as `auto`.
    """

    model: str | None = None
    repeats: bool = False
    heads: bool = False
    tokens: int | None = None


def drafts(options: ExLlamaV2Options | ExLlamaV3Options) -> Drafts:
    """`auto` takes the draft model, if there is one: n-gram speculation of the libraries isn't
    measured, so it has to be asked for.
    """
    mode = options.speculation.mode
    if mode == "off":
        return Drafts()
    model = options.draft.model if mode in {"auto", "model"} else None
    heads = mode == "mtp" or (isinstance(options, ExLlamaV3Options) and options.mtp)
    numbers = options.draft.tokens, options.speculation.tokens
    tokens = next((number for number in numbers if isinstance(number, int)), None)
    return Drafts(model, options.ngram_speculation or mode == "ngram", heads, tokens)


def without_drafts(options: Options) -> Options:
    """The same model alone."""
    speculation = msgspec.structs.replace(options.speculation, mode="off")
    return msgspec.structs.replace(options, speculation=speculation)


def draft(
    options: ExLlamaV2Options | ExLlamaV3Options,
    recognise: Callable[[Path], ModelFiles | None],
    name: str,
) -> ModelFiles | None:
    """The draft model, if there is one. Raises LoadFailed."""
    chosen = drafts(options)
    if chosen.model is None:
        return None
    if chosen.repeats:
        raise LoadFailed("a draft model and n-gram speculation exclude each other; choose one")
    path = Path(chosen.model).expanduser()
    files = recognise(path)
    if files is None:
        raise UnsupportedModel(f"the draft model {path} is not a model that {name} can read")
    return files


def fitted(files: ModelFiles, options: ExLlamaV2Options | ExLlamaV3Options) -> ModelFiles:
    """Neither library can use a draft model where pictures are."""
    chosen = drafts(options)
    if chosen.model or chosen.repeats or not options.vision:
        return msgspec.structs.replace(files, modalities=("text",))
    return files


def placements(options: ExLlamaOptions, cards: Cards, drafting: float = 0.0) -> Sequence[Placement]:
    """As `gpu_split` says; else one of CUDA's cards, or all of them, by their sizes. `drafting`:
    the draft model's part of all, which lies where `draft_gpu_split` says.
    """
    usable = devices.torch_cards(cards)
    if not usable:  # the load raises that it needs one
        return ({CPU: 1.0},)
    found: Sequence[Placement]
    if any(options.gpu_split):
        found = (divided(options.gpu_split, usable),)
    else:
        found = tuple(one for one in smallest_first(usable) if len(one) in (1, len(usable)))
    if not drafting or not any(options.draft_gpu_split):
        return found
    # The library fills card after card: which ones, only it knows, unless it is told.
    return (joined(found[-1], divided(options.draft_gpu_split, usable), drafting),)


def joined(one: Placement, other: Placement, part: float) -> Placement:
    """Both, of which `other` is that part."""
    devices = [*one, *(device for device in other if device not in one)]
    return {
        device: one.get(device, 0.0) * (1 - part) + other.get(device, 0.0) * part
        for device in devices
    }


def placed(options: Options, placement: Placement, cards: Cards) -> Options:
    """With all of a card for it, and nothing of the others. Left alone, both libraries fill one
    card after the other.
    """
    usable = devices.torch_cards(cards)
    if any(options.gpu_split) or len(placement) > 1 or next(iter(usable), CPU) in placement:
        return options
    split = tuple(size / GIB if name in placement else 0.0 for name, size in usable.items())
    return msgspec.structs.replace(options, gpu_split=split)


def adapter_bytes(options: ExLlamaOptions) -> int:
    """Of the adapters' tensors, as they lie on disk."""
    paths = [Path(folder).expanduser() / ADAPTER for folder in options.adapters.values()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def need(
    files: ModelFiles,
    guess: ModelFiles | None,
    cells: int,
    options: ExLlamaV2Options | ExLlamaV3Options,
) -> MemoryNeed:
    """Weights and adapters as they lie on disk, the whole cache, a guess for the rest. `guess`: the
    draft model.
    """
    models = [(files, cache_share(options.cache_type))]
    if guess is not None:
        models.append((guess, cache_share(draft_cache_type(options))))
    return MemoryNeed(
        weights=sum(files.size_bytes for files, _ in models) + adapter_bytes(options),
        cache=sum(int(cells * paged_bytes(files) * share) for files, share in models),
        engine=SCRATCH,
    )


EXTENSION = "nvcc: the extension is compiled during the installation"
_NEEDS_CUDA = Way("", note="needs CUDA")
WAYS: Mapping[Platform, Way] = {  # an engine adds its own for CUDA
    "Linux, CPUs": _NEEDS_CUDA,
    "Linux, ROCm": _NEEDS_CUDA,
    "Linux, Vulkan": _NEEDS_CUDA,
    "macOS (Metal)": _NEEDS_CUDA,
    "Windows": IN_WSL,
}


def drafting(*others: str) -> Translation:
    """TabbyAPI's `draft_mode`: "disabled", "ngram", or a switch of that name; each is our mode."""
    switches = dict.fromkeys(("ngram_speculation", *others), False)
    ours = {"disabled": "off", "ngram": "ngram", **{name: name for name in others}}

    def translated(mode: object) -> Mapping[str, Any]:
        if not isinstance(mode, str) or mode not in ours:
            raise ValueError(f"the modes are model, {', '.join(ours)}")
        return {**switches, "speculation": {"mode": ours[mode]}}

    return translated


def cache_mode(option: str, *, modes: re.Pattern[str], known: str) -> Translation:
    """TabbyAPI's modes of a cache, as our types of one: `Q8`; bits of keys and values: `8,4`."""

    def translated(mode: str) -> Mapping[str, Any]:
        kind = mode.lower().replace(" ", "")
        if not modes.fullmatch(kind):
            raise ValueError(known)
        return {option: kind}

    return translated


LOAD_OPTIONS: Mapping[str, Translation] = {
    **alike("autosplit_reserve", "chunk_size", "draft_gpu_split", "gpu_split", "vision"),
    "cache_size": renamed("cache_tokens"),
    "draft_model": lambda path: {"draft": {"model": path}, "speculation": {"mode": "auto"}},
    "draft_num_tokens": DRAFT_LOAD_OPTIONS["draft_num_tokens"],
}


def facts(options: ExLlamaV2Options | ExLlamaV3Options, cache_type: str) -> LoadFacts:
    """See `FilesModule.facts`."""
    return LoadFacts(
        cache_tokens=options.cache_tokens,
        cache_mode=cache_type.upper(),
        chunk_size=options.chunk_size,
        draft_model=drafts(options).model,
        adapters=adapters(options.adapters, options.adapter_scaling),
    )
