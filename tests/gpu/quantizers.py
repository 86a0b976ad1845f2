"""SmolLM2 as EXL2 and the bundled model as EXL3 (docs/hardware.md says why not SmolLM2), made by
the packages' own quantizers, which need a card: once, into the folder of the lab.

    python -m tests.gpu.quantizers exl2 exl3
"""

import subprocess
import sys
from pathlib import Path

import bundled
from tests.real import lab

BITS = "6.0"
FEW = {  # rows of calibration: enough for a model that says what it said
    "exl2": "-r 8 -l 512 -mr 2 -ml 512",
    "exl3": "-cr 8 -cc 512",
}
MODULES = {
    "exl2": "exllamav2.conversion.convert_exl2",
    "exl3": "exllamav3.conversion.convert_model",
}


def made(kind: str) -> Path:
    """The folder. Raises CalledProcessError, with what the quantizer printed last."""
    whole = source(kind)
    return lab.kept(f"{whole.name}.{kind}", lambda path: _quantize(kind, whole, path))


def source(kind: str) -> Path:
    """The same model at 16 bits."""
    return lab.smollm2_folder() if kind == "exl2" else bundled.SAFETENSORS


def _quantize(kind: str, source: Path, path: Path) -> None:
    work = path.with_suffix(".work")
    work.mkdir()
    given = ["-i", str(source), "-b", BITS, *FEW[kind].split()]
    places = {
        "exl2": ["-o", str(work), "-cf", str(path)],
        "exl3": ["-w", str(work), "-o", str(path)],
    }
    command = [sys.executable, "-m", MODULES[kind], *given, *places[kind]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (path / "config.json").is_file():
        raise RuntimeError(f"{kind}: {done.stdout[-1500:]}\n{done.stderr[-1500:]}")


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        sys.stdout.write(f"{made(kind)}\n")
