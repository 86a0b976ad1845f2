"""Commands that install missing packages where this code runs: in a checkout, or from an index; and
an engine's installation by platform.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

Platform: TypeAlias = Literal[
    "Linux, CPUs", "Linux, CUDA", "Linux, ROCm", "Linux, Vulkan", "macOS (Metal)", "Windows"
]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)


class Way(msgspec.Struct, frozen=True):
    """`command`: what installs an engine. `tried`: what the tests of this project ran there; ""
    nothing. `note`: what else it needs, or why it isn't possible where `command` is "".
    """

    command: str
    tried: str = ""
    note: str = ""


IN_WSL = Way("as Linux, in WSL2")
SUITE = "the whole suite"

SCRIPT = Path(__file__).parent.parent / "scripts" / "install"


# Set before pip: llama-cpp-python's bindings alone, for the library that comes prebuilt.
FIRST = {"llamacpp": "CMAKE_ARGS=-DLLAMA_BUILD=OFF "}


def command(extra: str, *, script: Path = SCRIPT) -> str:
    """What installs an extra of this project. A checkout's script keeps to its constraints."""
    if script.is_file():
        return f"scripts/install {extra}"
    return f"{FIRST.get(extra, '')}pip install 'roundhouse[{extra}]'"


def absent(packages: tuple[str, ...]) -> Iterator[str]:
    """Those that are not installed. Imports none."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - for a start alone

    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            yield package
