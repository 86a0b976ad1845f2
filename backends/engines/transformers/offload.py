"""The split of a model's layers between its card and main memory, from where accelerate copies each
to the card when its turn comes (accelerate 1.15, `big_modeling.dispatch_model`: the execution
device of what lies on `cpu` is the card).

Pure: tensors' names and sizes in, a map of devices out. Nothing is left to accelerate's own choice,
which would use a disk.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from backends.contract.placement import LayerWeights, ModelWeights

LAYER = re.compile(r"(.*?\blayers)\.(\d+)\.")  # of the text model; the first in a name
COPIED = (
    12e9  # bytes a second that a card gets from main memory: PCIe 4.0 with 8 lanes, 3.0 with 16
)


class Layers(msgspec.Struct, frozen=True):
    """The modules that hold a model's layers, and the bytes of each layer and of the rest."""

    prefix: str
    sizes: tuple[int, ...]
    rest: int


def layers_of(tensors: Mapping[str, int], count: int) -> Layers | None:
    """By the tensors' names and bytes; None where no modules hold `count` layers."""
    found: dict[str, dict[int, int]] = {}
    for name, size in tensors.items():
        if match := LAYER.match(name):
            there = found.setdefault(match[1], {})
            there[int(match[2])] = there.get(int(match[2]), 0) + size
    for prefix, sizes in found.items():
        if count and sorted(sizes) == list(range(count)):
            rest = sum(tensors.values()) - sum(sizes.values())
            return Layers(prefix, tuple(sizes[number] for number in range(count)), rest)
    return None


def weights_of(layers: Layers, share: float) -> ModelWeights:
    """For `backends.contract.placement`; `share`: of the stored bytes, what is held."""
    sizes = [int(size * share) for size in layers.sizes]
    return ModelWeights(
        layers=tuple(LayerWeights(size) for size in sizes),
        output=int(layers.rest * share),
        largest=max(sizes, default=0),
    )


def device_map(names: Iterable[str], away: int, card: str) -> Mapping[str, str]:
    """Where each module lies that holds one of the parameters or buffers called `names`: the first
    `away` layers of the model in main memory, all else on `card`.
    """
    found: dict[str, str] = {}
    for name in names:
        if match := LAYER.match(name):
            found[f"{match[1]}.{match[2]}"] = "cpu" if int(match[2]) < away else card
        else:
            found[name.rpartition(".")[0]] = card
    return found
