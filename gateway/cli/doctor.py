"""`roundhouse doctor`: the engines, devices and compilers of this machine, and what is missing."""

import platform
import shutil
from argparse import Namespace
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from backends.catalog import BACKENDS, CPU, Backend, Installation
from backends.errors import BackendError
from backends.gpus import memory
from backends.installing import command
from gateway.cli.listing import size, table
from gateway.registry.gauges import SystemGauge

TOOLS = ("cc", "c++", "cmake", "nvcc", "hipcc")


def run(_arguments: Namespace) -> int:
    """Prints three tables."""
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}\n")
    table(("ENGINE", "VERSION", "USABLE"), list(_engines()))
    print()
    table(
        ("DEVICE", "SIZE"), [(name, size(amount)) for name, amount in SystemGauge().total().items()]
    )
    print()
    table(("TOOL", "FOUND"), [(tool, shutil.which(tool) or "no") for tool in TOOLS])
    return 0


def _engines() -> Iterator[tuple[str, str, str]]:
    for backend in BACKENDS.values():
        if (wanted := backend.naming.INSTALLATION) is None:
            continue
        try:
            number = version(wanted.package)
        except PackageNotFoundError:
            yield backend.name, "-", f"no: {command(backend.name)}"
        else:
            yield backend.name, number, _usable(backend, wanted, number)


def _usable(backend: Backend, wanted: Installation, number: str) -> str:
    """Whether it runs here, and on what."""
    try:
        _ = backend.container
    except BackendError as error:
        return f"no: {error}"
    cards = len(memory())
    if not _knows_cards(backend, number):
        return "on CPUs" + (f"; for the card: {wanted.for_cards}" if cards else "")
    if cards:
        return f"on {cards} cards"
    if wanted.needs_card:
        return "no: it needs a CUDA card, none was found"
    return "on CPUs; built for cards, none was found"


def _knows_cards(backend: Backend, number: str) -> bool:
    """Torch's builds carry theirs in the version: 2.13.0+cpu, 2.13.0+cu128."""
    placed = backend.files.placement(backend.options(), {"cuda:0": 2**40})
    return CPU not in placed and not number.endswith("+cpu")
