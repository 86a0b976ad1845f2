"""`roundhouse doctor`: the engines, devices and compilers of this machine, and what is missing."""

import platform
import shutil
from argparse import Namespace
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from backends.catalog import BACKENDS, CPU
from backends.errors import BackendError
from backends.gpus import memory
from gateway.cli.listing import size, table
from gateway.registry.gauges import SystemGauge

PACKAGES = {
    "llamacpp": "llama-cpp-python",
    "transformers": "torch",
    "exllamav2": "exllamav2",
    "exllamav3": "exllamav3",
}
ADVICE = {
    "llamacpp": "; for the card: CMAKE_ARGS=-DGGML_CUDA=on scripts/install llamacpp",
    "transformers": "; for the card: TORCH_INDEX=… scripts/install transformers",
}
NO_CARD = {
    "llamacpp": "on CPUs; built for cards, none was found",
    "transformers": "on CPUs; built for cards, none was found",
    "exllamav2": "no: it needs a CUDA card, none was found",
    "exllamav3": "no: it needs a CUDA card, none was found",
}
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
    for name, package in PACKAGES.items():
        try:
            number = version(package)
        except PackageNotFoundError:
            yield name, "-", f"no: scripts/install {name}"
        else:
            yield name, number, _usable(name, number)


def _usable(name: str, number: str) -> str:
    """Whether it runs here, and on what."""
    try:
        _ = BACKENDS[name].container
    except BackendError as error:
        return f"no: {error}"
    if _knows_cards(name, number):
        return f"on {len(memory())} cards" if memory() else NO_CARD[name]
    advice = ADVICE.get(name, "") if memory() else ""
    return f"on CPUs{advice}"


def _knows_cards(name: str, number: str) -> bool:
    """Torch's builds carry theirs in the version: 2.13.0+cpu, 2.13.0+cu128."""
    backend = BACKENDS[name]
    placed = backend.files.placement(backend.options(), {"cuda:0": 2**40})
    return CPU not in placed and not number.endswith("+cpu")
