"""Which of this machine's devices torch can use, and under which names. No torch.

Its builds for AMD's cards call them as CUDA's: `cuda:0` there is `rocm:0` everywhere else.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

AMD, CUDA = "rocm", "cuda"


@cache
def built_for_cards() -> bool:
    """Whether the installed torch is; its builds say so in their versions: 2.13.0+cpu."""
    try:
        return not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return True


def cards(known: Mapping[str, int]) -> Mapping[str, int]:
    """Those of `known` that torch can use, with their bytes, in its order."""
    return {name: size for name, size in known.items() if name.partition(":")[0] in (CUDA, AMD)}


def card_of(device: str, known: Mapping[str, int]) -> str:
    """The name that the card has which torch calls `device`."""
    kind, _, number = device.partition(":")
    named = f"{AMD}:{number or 0}"
    return named if kind == CUDA and named in known and device not in known else device


def torch_name(card: str) -> str:
    """What torch calls `card`."""
    kind, colon, number = card.partition(":")
    return f"{CUDA}{colon}{number}" if kind == AMD else card
