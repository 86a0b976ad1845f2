"""`roundhouse doctor`: the engines, devices and compilers of this machine, and what is missing; and
its row of the table in docs/installation.md.
"""

import os
import platform
import shutil
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from backends.contract.catalog import (
    BACKENDS,
    CPU,
    PLATFORMS,
    SCRIPT,
    Backend,
    Installation,
    Platform,
    Way,
    absent,
    command,
)
from backends.contract.errors import BackendError
from backends.machine.devices import devices
from gateway.cli.listing import size, table
from gateway.registry.gauges import Gauge

KFD = Path("/dev/kfd")  # the kernel's device for AMD's cards (amdkfd)


TABLE: Mapping[Platform, Mapping[str, Way]] = {
    row: {
        backend.name: wanted.ways[row]
        for backend in BACKENDS.values()
        if (wanted := backend.files.INSTALLATION) is not None
    }
    for row in PLATFORMS
}


def this_platform() -> tuple[Platform, str]:
    """The row for this machine, and what was found to choose it."""
    return row_of(platform.system(), tuple(devices(os.environ)), amd=KFD.exists())


def row_of(system: str, cards: Collection[str], *, amd: bool) -> tuple[Platform, str]:
    """`cards`: those that NVIDIA's driver or llama.cpp lists. `amd`: whether an AMD card is there.

    What llama.cpp was built for goes before what the card could do with another build.
    """
    match system:
        case "Darwin":
            return "macOS (Metal)", "this is macOS"
        case "Windows":
            return "Windows", "this is Windows"
    for kind, (row, lister) in ROWS.items():
        if found := [name for name in cards if name.partition(":")[0] == kind]:
            return row, f"{lister} lists {', '.join(found)}"
    if amd:
        return "Linux, ROCm", f"{KFD} is an AMD card's"
    return "Linux, CPUs", "no card was found"


# By the kind of a device: its row, and who lists it.
ROWS: Mapping[str, tuple[Platform, str]] = {
    "cuda": ("Linux, CUDA", "the NVIDIA driver"),
    "rocm": ("Linux, ROCm", "llama.cpp"),
    "vulkan": ("Linux, Vulkan", "llama.cpp"),
}


TOOLS = ("cc", "c++", "cmake", "nvcc", "hipcc", "glslc")


def run(_arguments: Namespace) -> int:
    """Prints this machine's row of the table of platforms, then what is on it."""
    here, why = this_platform()
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print(f"{here}: {why}\n")
    table(("ENGINE", "USABLE", "VERSION"), list(_engines(here)))
    print()
    table(("ENGINE", "INSTALLED WITH", "NEEDS", "TRIED THERE"), list(_ways(here)))
    print()
    table(("DEVICE", "SIZE", "FREE FOR MODELS", "WHAT IT IS"), list(_devices()))
    print()
    table(("TOOL", "FOUND"), [(tool, shutil.which(tool) or "no") for tool in TOOLS])
    return 0


def _devices() -> Iterator[tuple[str, str, str, str]]:
    gauge, known = Gauge(), devices(os.environ)
    free = gauge.free()
    for name, whole in gauge.total().items():
        what = known[name].description if name in known else "main memory"
        yield name, size(whole), size(free.get(name)), what
    for name, one in known.items():
        if one.shared:
            yield name, size(one.total), "-", f"{one.description}; its memory is {CPU}'s"


def _ways(here: Platform) -> Iterator[tuple[str, str, str, str]]:
    """The table's commands are a checkout's; elsewhere those that work there."""
    for engine, way in TABLE[here].items():
        if way.command:
            shown = way.command if SCRIPT.is_file() else command(engine)
            yield engine, shown, way.note or "-", way.tried or "no"
        else:
            yield engine, f"not possible: {way.note}", "-", "-"


def _engines(here: Platform) -> Iterator[tuple[str, str, str]]:
    for backend in BACKENDS.values():
        if (wanted := backend.files.INSTALLATION) is None:
            continue
        try:
            number = version(wanted.package)
        except PackageNotFoundError:
            way = TABLE[here][backend.name]
            yield backend.name, f"no: {command(backend.name) if way.command else way.note}", "-"
        else:
            more = wanted.described()
            shown = f"{wanted.package} {number}" + (f" ({more})" if more else "")
            yield backend.name, _usable(backend, wanted), shown


def _usable(backend: Backend, wanted: Installation) -> str:
    """Whether it runs here, and on what."""
    if missing := tuple(absent(wanted.others)):
        return f"no: {', '.join(missing)} missing; {command(backend.name)}"
    try:
        _ = backend.container
    except (BackendError, ImportError) as error:
        return f"no: {error}"
    known = devices(os.environ)
    cards = {name: one.total for name, one in known.items() if not one.shared}
    ways = backend.files.placements(None, backend.options(), cards)
    used = {card for way in ways for card in way if card != CPU}
    if used:
        return f"on {len(used)} card{'s' * (len(used) > 1)}"
    if shared := [name for name, one in known.items() if one.shared and one.library]:
        return f"on {', '.join(shared)}" if wanted.uses_shared else "on CPUs"
    if known:
        return f"on CPUs; for the card: {wanted.for_cards}"
    if wanted.needs_card:
        return "no: it needs a CUDA card, none was found"
    return "on CPUs"
