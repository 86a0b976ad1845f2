"""Which engine runs on which platform, what installs it there, and what was tried: the README's
table, and `roundhouse doctor`'s for this machine.
"""

import os
import platform
from collections.abc import Collection, Mapping
from pathlib import Path

from backends.catalog import BACKENDS
from backends.gpus import memory
from backends.installing import IN_WSL, PLATFORMS, Platform, Way

KFD = Path("/dev/kfd")  # the kernel's door to AMD's cards (amdkfd)


TABLE: Mapping[Platform, Mapping[str, Way]] = {
    row: {
        backend.name: wanted.ways[row]
        for backend in BACKENDS.values()
        if (wanted := backend.naming.INSTALLATION) is not None
    }
    for row in PLATFORMS
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
    engines = list(TABLE[PLATFORMS[0]])
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
