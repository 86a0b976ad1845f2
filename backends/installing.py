"""How what is missing is installed where this code runs: in a checkout, or from an index."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "install"


def command(extra: str, *, script: Path = SCRIPT) -> str:
    """What installs an extra of this project. A checkout's script keeps to its constraints."""
    return f"scripts/install {extra}" if script.is_file() else f"pip install 'roundhouse[{extra}]'"


def absent(packages: tuple[str, ...]) -> Iterator[str]:
    """Those that are not installed. Imports none."""
    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            yield package
