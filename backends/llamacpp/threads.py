"""How many threads compute a batch.

A large model is fastest with all processors, always. A tiny one is not: for a few rows the threads
wait for each other longer than they compute, and one of them is taken from the event loop. Measured
with the bundled model on two cores: a second thread wins from about eight rows on.
"""

import os

import msgspec

from backends.catalog import ModelFiles
from config.engines import LlamaCppOptions

TINY_WEIGHTS = 32 * 1024 * 1024  # bytes
MANY_ROWS = 8


class Threads(msgspec.Struct, frozen=True):
    """For a batch of few rows, and for one of `MANY_ROWS` or more."""

    few: int
    many: int

    def for_rows(self, rows: int) -> int:
        return self.many if rows >= MANY_ROWS else self.few


def threads(files: ModelFiles, options: LlamaCppOptions) -> Threads:
    """As configured; else all processors, but one for the few rows of a tiny model."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    many = options.threads_batch or options.threads or cores or 1
    few = 1 if files.size_bytes < TINY_WEIGHTS else many
    return Threads(options.threads or few, many)
