"""Folders exllamav2 can load: recognising them, the memory they will need, and what its options are
called elsewhere. Imports no engine.

It reads EXL2, GPTQ and unquantized safetensors. The last two are transformers' too, which comes
before it in `backends.contract.catalog`: a user who wants them here names the backend.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from backends.contract.catalog import (
    Cards,
    Installation,
    LoadFacts,
    ModelFiles,
    Placement,
    Translation,
    Way,
    alike,
    as_it_is,
)
from backends.contract.errors import LoadFailed
from backends.contract.protocol import MemoryNeed
from backends.engines import model_folder
from backends.engines.exllama import files as shared
from backends.engines.exllama.files import PagedCacheSize
from backends.engines.exllamav2.model_config import ignored_window
from config.engines import ExLlamaV2Options

SUFFIX = None  # folders
COMPANIONS: tuple[str, ...] = ()
FORMATS = {None: "safetensors", "gptq": "safetensors", "exl2": "exl2"}  # by quantization
# Classes whose vision tower exllamav2 0.3.2 has (its architecture.py).
SEES = frozenset(
    f"{name}ForConditionalGeneration"
    for name in ("Llava", "Mistral3", "Qwen2VL", "Qwen2_5_VL", "Gemma3")
)
DRAFTED = 4  # tokens at a time, where the options don't say


def recognise(path: Path) -> ModelFiles | None:
    """See `model_folder.recognise`. A context ends where a window that exllamav2 ignores does."""
    prepared = (model_folder.PREPROCESSOR,)
    files = model_folder.recognise(path, "exllamav2", FORMATS.get, seeing=SEES, prepared=prepared)
    if files is None or (window := _window(path)) is None:
        return files
    length = min(files.context_length, window)
    return msgspec.structs.replace(files, context_length=length)


def _window(folder: Path) -> int | None:
    return ignored_window(model_folder.read_json(folder / "config.json"))


def cache_size(files: ModelFiles, options: ExLlamaV2Options) -> PagedCacheSize:
    """See `shared.files.cache_size`. Raises LoadFailed for a context beyond an ignored window."""
    wanted, window = options.context_length or 0, _window(files.path)
    if window is not None and wanted > window:
        raise LoadFailed(
            f"context_length can be {window} at most for {files.path.name}: its attention reaches "
            "no farther back, which exllamav2 doesn't support"
        )
    chosen = shared.drafts(options)
    drafted = (chosen.tokens or DRAFTED) if chosen.model or chosen.repeats else 0
    return shared.cache_size(files, options, drafted)


def draft(options: ExLlamaV2Options) -> ModelFiles | None:
    """The model that guesses ahead, if there is one. Raises LoadFailed."""
    return shared.draft(options, recognise, "exllamav2")


fitted = shared.fitted
placed = shared.placed


def placements(
    files: ModelFiles | None, options: ExLlamaV2Options, cards: Cards
) -> Sequence[Placement]:
    """See `shared.files.placements`."""
    drafting = 0.0
    if files is not None and shared.drafts(options).model is not None:
        alone = shared.without_drafts(options)
        drafting = 1 - estimate(files, alone).total / estimate(files, options).total
    return shared.placements(options, cards, drafting)


def estimate(files: ModelFiles, options: ExLlamaV2Options) -> MemoryNeed:
    """The draft model's need is in it."""
    return shared.need(files, draft(options), cache_size(files, options).cells, options)


_cache = partial(
    shared.cache_mode,
    modes=re.compile("fp16|q[468]"),
    known="available in exllamav2: FP16, Q8, Q6, Q4",
)


INSTALLATION = Installation(
    package="exllamav2",
    needs_card=True,
    ways={
        **shared.WAYS,
        "Linux, CUDA": Way(
            "scripts/install exllamav2",
            tried="its tests, on an H200",
            note=f"{shared.EXTENSION}; flash-attn to batch",
        ),
    },
)

LOAD_OPTIONS: Mapping[str, Translation] = {
    **shared.LOAD_OPTIONS,
    "cache_mode": _cache("cache_type"),
    "draft_mode": shared.drafting(),
    "draft_cache_mode": _cache("draft_cache_type"),
    **alike("rope_alpha", "rope_scale"),
}


fit = as_it_is


def facts(options: ExLlamaV2Options) -> LoadFacts:
    """See `FilesModule.facts`."""
    return msgspec.structs.replace(
        shared.facts(options, options.cache_type),
        rope_scale=options.rope_scale,
        rope_alpha=options.rope_alpha,
    )


vocabulary = model_folder.vocabulary
