"""What `roundhouse` runs, here and in a wheel, where everything stands below this name."""

import sys
from importlib.util import find_spec
from pathlib import Path

# A wheel brings llama-cpp-python's bindings along (scripts/bindings), for xllamacpp's library.
# They are looked for last: what is installed comes before them.
if find_spec("xllamacpp"):
    sys.path.append(str(Path(__file__).parent / "bindings"))


def main() -> int:
    """The command line; its exit status."""
    from gateway.cli import main as command  # noqa: PLC0415 - the import is the program's start

    return command()


if __name__ == "__main__":
    raise SystemExit(main())
