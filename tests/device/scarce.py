"""A card's memory for Mesa's device in software: so many bytes for all programs together, as
`scarce.c` has it, and another program that takes some of them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.served import ROOT

SOURCE = Path(__file__).with_suffix(".c")
LAYER = "VK_LAYER_ROUNDHOUSE_scarce"
# Holds memory of llama.cpp's first device until its stdin is closed.
TAKER = """
import ctypes, sys
from backends.machine import ggml
registry = ggml.GgmlRegistry(ggml.libraries())
library = ctypes.CDLL(registry._library._name)
library.ggml_backend_dev_buffer_type.restype = ctypes.c_void_p
library.ggml_backend_dev_buffer_type.argtypes = (ctypes.c_void_p,)
library.ggml_backend_buft_alloc_buffer.restype = ctypes.c_void_p
library.ggml_backend_buft_alloc_buffer.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
kind = library.ggml_backend_dev_buffer_type(next(iter(registry.handles().values())))
for _ in range(int(sys.argv[1])):
    assert library.ggml_backend_buft_alloc_buffer(kind, 1 << 20), "there is no memory"
print("taken", flush=True)
sys.stdin.read()
"""


class ScarceMemory:
    """Of `size` bytes. `environment`: that of programs which share it, with one device."""

    def __init__(self, folder: Path, size: int) -> None:
        library = folder / "libscarce.so"
        flags = ("-O1", "-shared", "-fPIC", "-fvisibility=hidden")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True)
        manifest = {
            "file_format_version": "1.1.2",
            "layer": {
                "name": LAYER,
                "type": "GLOBAL",
                "library_path": str(library),
                "api_version": "1.3.0",
                "implementation_version": "1",
                "description": "memory that all programs share",
            },
        }
        (folder / "scarce.json").write_bytes(msgspec.json.encode(manifest))
        self.environment: Mapping[str, str] = {
            "VK_LAYER_PATH": str(folder),
            "VK_INSTANCE_LAYERS": LAYER,
            "SCARCE_FILE": str(folder / "taken"),
            "SCARCE_SIZE": str(size),
            "GGML_VK_VISIBLE_DEVICES": "0",
        }

    @contextmanager
    def another_program(self, size: int) -> Iterator[None]:
        """It has `size` bytes, whole MiB."""
        known = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        with subprocess.Popen(
            (sys.executable, "-c", TAKER, str(size >> 20)),
            env={**known, **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as taker:
            assert taker.stdout is not None
            try:
                assert taker.stdout.readline() == "taken\n"
                yield
            finally:
                taker.kill()
