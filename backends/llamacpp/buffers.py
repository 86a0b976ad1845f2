"""How much memory llama.cpp says that it took. Its C functions tell the size of the weights alone;
its log tells that of every buffer:

    load_tensors:   CPU_Mapped model buffer size =     1.63 MiB
    llama_kv_cache:        CPU KV buffer size =    64.00 MiB
"""

import re
from collections.abc import Iterable, Mapping

from backends.protocol import MemoryNeed

# Recurrent layers have a state (RS) where others have keys and values (KV).
_LINE = re.compile(r"(?P<kind>\w+) buffer size\s*=\s*(?P<size>[\d.]+) MiB")
USES: Mapping[str, str] = {"model": "weights", "KV": "cache", "RS": "cache"}  # others: "engine"


def counted(lines: Iterable[str], projector: int) -> MemoryNeed | None:
    """The buffers that `lines` of the log tell of, over all devices; None where they tell of no
    weights. `projector`: bytes of its file; the log has no line for them.
    """
    sizes = {"weights": 0, "cache": 0, "engine": 0}
    for line in lines:
        if (match := _LINE.search(line)) is not None:
            sizes[USES.get(match["kind"], "engine")] += int(float(match["size"]) * 2**20)
    if not sizes["weights"]:
        return None
    sizes["weights"] += projector
    return MemoryNeed(**sizes)
