"""The split of a model's layers between its card and main memory, from where accelerate copies each
to the card when its turn comes (accelerate 1.15, `big_modeling.dispatch_model`: the execution
device of what lies on `cpu` is the card).

Pure: tensors' names and sizes in, a map of devices out. Nothing is left to accelerate's own choice,
which would use a disk.
"""

import re
from collections.abc import Iterable, Mapping

from backends.contract.placement import LayerWeights, ModelWeights

LAYER = re.compile(r"(.*?\blayers)\.(\d+)\.")  # of the text model; the first in a name
COPIED = (
    12e9  # bytes a second that a card gets from main memory: PCIe 4.0 with 8 lanes, 3.0 with 16
)


def weights_of(tensors: Mapping[str, int], count: int, share: float) -> ModelWeights | None:
    """By the tensors' names and bytes, for `backends.contract.placement`; None where no modules
    hold `count` layers. `share`: of the stored bytes, what is held.
    """
    found: dict[str, dict[int, int]] = {}
    for name, size in tensors.items():
        if match := LAYER.match(name):
            there = found.setdefault(match[1], {})
            there[int(match[2])] = there.get(int(match[2]), 0) + size
    for layers in found.values():
        if count and sorted(layers) == list(range(count)):
            sizes = [int(layers[number] * share) for number in range(count)]
            rest = sum(tensors.values()) - sum(layers.values())
            return ModelWeights(
                layers=tuple(LayerWeights(size) for size in sizes),
                output=int(rest * share),
                largest=max(sizes, default=0),
            )
    return None


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
