"""What llama.cpp's log says of a load: where each layer lies, the buffers, why something failed.

Its C functions give the size of the weights alone; its log has that of every buffer:

    load_tensors: layer   0 assigned to device CUDA0, is_swa = 0
    load_tensors:   CPU_Mapped model buffer size =     1.63 MiB
    llama_kv_cache:        CPU KV buffer size =    64.00 MiB
"""

import ctypes
import re
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from backends.contract.catalog import CPU, ModelFiles
from backends.contract.protocol import MemoryNeed
from backends.engines.llamacpp.layout import workspace
from backends.engines.llamacpp.library import api
from backends.machine import devices
from backends.machine.devices import own_name

LEVELS = {1: b"assigned to device", 2: b"buffer size"}  # ggml_log_level (ggml.h): debug, info
TROUBLE = (3, 4)  # warning, error
FEW = 3  # lines that are quoted

# Recurrent layers have a state (RS) where others have keys and values (KV).
_BUFFER = re.compile(r"(?P<buffer>\w+) +(?P<kind>\w+) buffer size\s*=\s*(?P<size>[\d.]+) MiB")
_LAYER = re.compile(r"layer +\d+ assigned to device (?P<device>\w+)")
USES: Mapping[str, str] = {"model": "weights", "KV": "cache", "RS": "cache"}  # others: "engine"
MAPPED = "CPU_Mapped"
REPACKED = frozenset({"AMX", "CPU_REPACK"})  # buffers whose weights were copied from the mapping

_here = threading.local()  # on the thread that loads: its lines of errors, and of sizes


@api.llama_log_callback  # type: ignore[untyped-decorator]
def LISTENER(level: int, text: bytes, _data: ctypes.c_void_p) -> None:  # noqa: N802 - a C function
    """Takes every line; a load begins with `listen`.

    llama.cpp filters no levels and has no function that could stand here and do nothing. Where
    slots have caches of their own a copy of one writes some 35 lines, each of which takes the GIL:
    up to a tenth of the copy.
    """
    if level in TROUBLE:
        errors = _here.__dict__.setdefault("errors", deque(maxlen=FEW))
        errors.append(text.decode(errors="replace").strip())
    elif (wanted := LEVELS.get(level)) is not None and wanted in text:
        _here.__dict__.setdefault("lines", []).append(text.decode(errors="replace"))


def listen() -> None:
    """Forget this thread's lines, and collect new ones."""
    api.llama_log_set(LISTENER, None)
    _here.__dict__.clear()


def last_errors() -> str:
    """Why something failed, as far as llama.cpp's log has it."""
    return "; ".join(getattr(_here, "errors", ())) or "it gave no reason"


def memory_taken(files: ModelFiles) -> MemoryNeed | None:
    """By this thread's lines, which don't list what a context takes besides."""
    projector = files.projector.stat().st_size if files.projector else 0
    taken = counted(said(), files.size_bytes + files.added_bytes, projector)
    cards = layers().keys() - {CPU}
    return taken and taken.plus(MemoryNeed(weights=0, cache=0, engine=workspace() * len(cards)))


def layers() -> Mapping[str, int]:
    """How many lie on which device, by this thread's lines; empty: there were none."""
    ours = {library: name for name, library in devices.of_llamacpp().items()}
    return {ours.get(name, own_name(name)): count for name, count in layers_in(said()).items()}


def said() -> list[str]:
    """This thread's lines about buffers and layers."""
    return list(getattr(_here, "lines", ()))


def counted(lines: Iterable[str], weights: int, projector: int) -> MemoryNeed | None:
    """The buffers that `lines` of the log list, over all devices; None where they list no weights.
    `projector`: bytes of its file; the log has no line for them.

    Of a mapped file the log has the span from the first to the last tensor used there. Where others
    between them were repacked, or lie on a card, that is too much, and no more than `weights` bytes
    are used.
    """
    sizes, places, holding = {"weights": 0, "cache": 0, "engine": 0}, set(), set()
    for buffer, size in buffers_in(lines).items():
        place, kind = buffer.split()
        sizes[USES.get(kind, "engine")] += size
        places.add(place)
        holding |= {place} if kind == "model" else set()
    if not sizes["weights"]:
        return None
    if places & REPACKED or (MAPPED in places and len(holding) > 1):
        sizes["weights"] = min(sizes["weights"], weights)
    sizes["weights"] += projector
    return MemoryNeed(**sizes)


def buffers_in(lines: Iterable[str]) -> Mapping[str, int]:
    """Bytes of what `lines` of the log list, as they call it: `Vulkan0 model`, `CPU KV`."""
    found: Counter[str] = Counter()
    for line in lines:
        if (match := _BUFFER.search(line)) is not None:
            found[f"{match['buffer']} {match['kind']}"] += int(float(match["size"]) * 2**20)
    return found


def layers_in(lines: Iterable[str]) -> Mapping[str, int]:
    """How many layers lie on each device, by ggml's name for it, the output layer counted as one,
    as llama.cpp does.
    """
    return Counter(match["device"] for line in lines if (match := _LAYER.search(line)) is not None)
