"""Which engine runs on which platform, what installs it there, and what was tried: the README's
table, and `roundhouse doctor`'s for this machine.
"""

import os
import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from backends.gpus import memory

Platform: TypeAlias = Literal[
    "Linux, CPUs", "Linux, CUDA", "Linux, ROCm", "Linux, Vulkan", "macOS (Metal)", "Windows"
]
KFD = Path("/dev/kfd")  # the kernel's door to AMD's cards (amdkfd)


class Way(msgspec.Struct, frozen=True):
    """`command`: what installs it. `tried`: what the tests of this project ran there; "" nothing.
    `note`: what else it needs, or why it isn't possible where `command` is "".
    """

    command: str
    tried: str = ""
    note: str = ""


NEEDS_CUDA = Way("", note="it needs CUDA")
IN_WSL = Way("as Linux, in WSL2")
SUITE = "the whole suite"
EXTENSION = "nvcc; its extension is compiled at the installation"

TABLE: Mapping[Platform, Mapping[str, Way]] = {
    "Linux, CPUs": {
        "llamacpp": Way("make run", SUITE),
        "transformers": Way("scripts/install transformers", SUITE),
        "exllamav2": NEEDS_CUDA,
        "exllamav3": NEEDS_CUDA,
    },
    "Linux, CUDA": {
        "llamacpp": Way("make run", note="nvcc, or LLAMA_INDEX"),
        "transformers": Way("TORCH_INDEX=… scripts/install transformers"),
        "exllamav2": Way("scripts/install exllamav2", note=f"{EXTENSION}; flash-attn to batch"),
        "exllamav3": Way("scripts/install exllamav3", note=EXTENSION),
    },
    "Linux, ROCm": {
        "llamacpp": Way("make run", note="hipcc"),
        "transformers": Way("TORCH_INDEX=… scripts/install transformers"),
        "exllamav2": NEEDS_CUDA,
        "exllamav3": NEEDS_CUDA,
    },
    "Linux, Vulkan": {
        "llamacpp": Way("CMAKE_ARGS=-DGGML_VULKAN=on make run", note="Vulkan's SDK"),
        "transformers": Way("", note="torch has no build for it"),
        "exllamav2": NEEDS_CUDA,
        "exllamav3": NEEDS_CUDA,
    },
    "macOS (Metal)": {
        "llamacpp": Way("make run"),
        "transformers": Way("scripts/install transformers", note="on CPUs: MPS is not used"),
        "exllamav2": NEEDS_CUDA,
        "exllamav3": NEEDS_CUDA,
    },
    "Windows": dict.fromkeys(("llamacpp", "transformers", "exllamav2", "exllamav3"), IN_WSL),
}


def this_platform() -> tuple[Platform, str]:
    """The row for this machine, and what was found that says so."""
    return row_of(platform.system(), tuple(memory(os.environ)), amd=KFD.exists())


def row_of(system: str, cards: Collection[str], *, amd: bool) -> tuple[Platform, str]:
    """`cards`: those that NVIDIA's driver tells of. `amd`: whether an AMD card is there."""
    match system:
        case "Darwin":
            return "macOS (Metal)", "this is macOS"
        case "Windows":
            return "Windows", "this is Windows"
    if cards:
        return "Linux, CUDA", f"the NVIDIA driver tells of {', '.join(cards)}"
    if amd:
        return "Linux, ROCm", f"{KFD} is an AMD card's"
    return "Linux, CPUs", "no card was found"


def markdown() -> str:
    """The README's table."""
    engines = list(TABLE["Linux, CPUs"])
    lines = [f"| platform | {' | '.join(engines)} |", "|---" * (1 + len(engines)) + "|"]
    for name, ways in TABLE.items():
        cells = " | ".join(_cell(ways[engine]) for engine in engines)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def _cell(way: Way) -> str:
    if not way.command:
        return way.note
    tried = f"**tried**: {way.tried}" if way.tried else "not tried"
    command = way.command if way == IN_WSL else f"`{way.command}`"
    return f"{command}{f' ({way.note})' * bool(way.note)}: {tried}"
