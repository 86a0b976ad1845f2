"""The memory a folder will need, estimated for either of the two libraries.

Imports no engine.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from backends.catalog import CPU, Cards, ModelFiles, Placement, divided, smallest_first
from backends.errors import LoadFailed, UnsupportedModel
from backends.huggingface import torch_devices
from backends.protocol import MemoryNeed
from config.engines import ExLlamaOptions

Split = TypeVar("Split", bound=ExLlamaOptions)

GIB = 1 << 30
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


def cache_size(
    files: ModelFiles, options: ExLlamaOptions, share: float, spare: int = 0
) -> PagedCacheSize:
    """As `cache_tokens` says, else `CACHE_BY_DEFAULT`; one full context always fits, with `spare`
    tokens behind it. `share`: of a 16-bit cache, what this one takes.
    """
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    drafted = options.draft_tokens if options.draft_model or options.ngram_speculation else 0
    affordable = int(CACHE_BY_DEFAULT / max(files.cache_bytes_per_token * share, 1))
    cells = options.cache_tokens or min(affordable, length * options.max_concurrent)
    return PagedCacheSize(pages(max(cells, length + drafted + spare)), length, drafted)


def pages(tokens: int) -> int:
    """As many tokens, in whole pages."""
    return -(-tokens // PAGE) * PAGE


def draft(
    options: ExLlamaOptions, recognise: Callable[[Path], ModelFiles | None], name: str
) -> ModelFiles | None:
    """The draft model, if there is one. Raises LoadFailed."""
    if options.draft_model is None:
        return None
    if options.ngram_speculation:
        raise LoadFailed("a draft model and n-gram speculation exclude each other; choose one")
    path = Path(options.draft_model)
    files = recognise(path)
    if files is None:
        raise UnsupportedModel(f"the draft model {path} is not a model that {name} can read")
    return files


def fitted(files: ModelFiles, options: ExLlamaOptions) -> ModelFiles:
    """Neither library can use a draft model where pictures are."""
    if options.draft_model or options.ngram_speculation or not options.vision:
        return msgspec.structs.replace(files, modalities=("text",))
    return files


def placements(options: ExLlamaOptions, cards: Cards) -> Sequence[Placement]:
    """As `gpu_split` says; else one of CUDA's cards, or all of them, by their sizes."""
    usable = torch_devices.cards(cards)
    if not usable:  # the load raises that it needs one
        return ({CPU: 1.0},)
    if any(options.gpu_split):
        return (divided(options.gpu_split, usable),)
    found = tuple(smallest_first(usable))
    return tuple(one for one in found if len(one) in (1, len(usable)))


def placed(options: Split, placement: Placement, cards: Cards) -> Split:
    """With all of a card for it, and nothing of the others. Left alone, both libraries fill one
    card after the other.
    """
    usable = torch_devices.cards(cards)
    if any(options.gpu_split) or len(placement) > 1 or next(iter(usable), CPU) in placement:
        return options
    split = tuple(size / GIB if name in placement else 0.0 for name, size in usable.items())
    return msgspec.structs.replace(options, gpu_split=split)


def need(models: Iterable[ModelFiles], cells: int, share: float) -> MemoryNeed:
    """Weights as they lie on disk, the whole cache, a guess for the rest."""
    models = list(models)
    per_token = sum(model.cache_bytes_per_token for model in models)
    return MemoryNeed(
        weights=sum(model.size_bytes for model in models),
        cache=int(cells * per_token * share),
        engine=SCRATCH,
    )
