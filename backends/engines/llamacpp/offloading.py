"""Which devices the tensors of a model lie on, as llama.cpp is told."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from backends.contract.catalog import ModelFiles
from backends.engines.llamacpp.files import layers_without_experts
from backends.engines.llamacpp.library import api
from backends.engines.llamacpp.memory import EXPERTS
from backends.machine import devices, ggml
from config.engines import LlamaCppOptions


def spread(params: Any, options: LlamaCppOptions) -> None:
    """Which cards take how much of it, as `files.placements` counts on. llama.cpp is told of no
    other: it would take memory of each for its buffers, even if no layer lies there. And it is told
    how to split, which it would do by what is free at the moment.
    """
    known = devices.of_llamacpp()
    parts = parts_of_cards(options, list(known)) if options.gpu_layers else {}
    if options.gpu_layers and not parts:
        return  # what shares main memory, if anything
    chosen = [handle(name) for name in parts]
    params.chosen = (ctypes.c_void_p * (len(chosen) + 1))(*chosen)  # a null ends it
    params.devices = ctypes.addressof(params.chosen)
    numbers = list(parts.values())[: api.llama_max_devices()]
    params.tensor_split = (ctypes.c_float * api.llama_max_devices())(*numbers)


class Override(ctypes.Structure):
    """llama_model_tensor_buft_override, which the bindings don't have."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def without_experts(
    files: ModelFiles, options: LlamaCppOptions, main_memory: int
) -> list[Override]:
    """Experts that lie there, wherever the rest of their layers does."""
    numbers = "|".join(map(str, layers_without_experts(files, options)))
    return [Override(rf"blk\.({numbers}){EXPERTS}".encode(), main_memory)] if numbers else []


def override(params: Any, overrides: Sequence[Override]) -> None:
    """Where tensors lie; the first that matches one counts."""
    if overrides:
        params.overrides = (Override * (len(overrides) + 1))(*overrides)  # a null pattern ends it
        params.tensor_buft_overrides = ctypes.addressof(params.overrides)


def handle(card: str) -> int:
    """What ggml's functions take a card by."""
    return ggml.here().handles()[devices.of_llamacpp()[card]]


def parts_of_cards(options: LlamaCppOptions, cards: Sequence[str]) -> Mapping[str, float]:
    """A number for each card that is used."""
    if any(options.tensor_split):  # as it is: whole numbers are layers
        return {card: part for card, part in zip(cards, options.tensor_split, strict=False) if part}
    if options.main_gpu is None:
        sizes = {name: one.total for name, one in devices.devices().items()}
        return {name: sizes.get(name, 1) for name in cards}
    return dict.fromkeys(cards[options.main_gpu :][:1] or cards[-1:], 1.0)
