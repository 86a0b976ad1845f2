"""What Roundhouse takes besides the model: resident memory, and the time until it listens.

The gateway alone is weighed with the scripted engine, which has neither weights nor a cache. With
the bundled model the known sizes of both are taken off; what is left is the gateway, the engine's
library and its compute buffers. Memory is read from Linux' /proc.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from backends.contract.protocol import MemoryNeed
from backends.engines.llamacpp.files import estimate
from backends.engines.llamacpp.recognition import recognise
from benchmarks.answers import Figures
from benchmarks.apart import run
from benchmarks.load import Load
from benchmarks.peers import roundhouse
from config.engines import LlamaCppOptions

STREAMS = 16
SECONDS = 2.0
SCRIPT = {"lines": [{"say": "The quick brown fox jumps over the lazy dog. " * 6}]}


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes resident after 16 streams were served; seconds from the start until it listened."""

    gateway: int  # the whole process, with the scripted engine
    bundled: int  # the whole process, with the GGUF model
    weights: int  # of that model
    cache: int  # of that model
    started_in: float

    @property
    def besides_model(self) -> int:
        """Bytes of the process with the GGUF model that are neither weights nor cache."""
        return self.bundled - self.weights - self.cache


def weigh(model: Path) -> Footprint:
    """Start two servers in turn, put a load on each, and look.

    Raises DidNotStart, and what `benchmarks.apart.run` raises.
    """
    need = _need(model)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "fox.script.json"
        script.write_bytes(msgspec.json.encode(SCRIPT))
        gateway, _ = _serve(script, "fox")
    bundled, started_in = _serve(model, model.stem)
    return Footprint(
        gateway=gateway,
        bundled=bundled,
        weights=need.weights,
        cache=need.cache,
        started_in=started_in,
    )


def _serve(model: Path, name: str) -> tuple[int, float]:
    """The bytes resident after the load, and the seconds until the server listened."""
    with roundhouse(str(model)) as running:
        load = Load(
            port=running.port,
            streams=STREAMS,
            seconds=SECONDS,
            warm_up=0.0,
            max_tokens=200,
            body={"model": name},
        )
        run("benchmarks.load", load, Figures, patience=120.0)
        return _resident(running.pid), running.started_in


def _resident(pid: int) -> int:
    """Bytes, from the second field of statm; see proc_pid_statm(5)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _need(model: Path) -> MemoryNeed:
    files = recognise(model)
    assert files is not None
    return estimate(files, LlamaCppOptions())
