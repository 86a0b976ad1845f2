"""How many processors this process may use. Knows no engine."""

import os


def count() -> int:
    """Those that its affinity leaves it, where the system tells; else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
