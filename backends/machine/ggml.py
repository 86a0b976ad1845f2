"""The devices that ggml finds, llama.cpp's library of kernels: CUDA's, ROCm's, Vulkan's, Metal's
and SYCL's alike. Knows no model.

Its registry is read through the installed library (ctypes), so that llama_cpp needn't be imported.
The first reading is another process's: a broken driver may end whoever loads it, CUDA's takes some
hundred megabytes of each card for it, and a gateway that loads no model needs neither. What changes
is read here once llama.cpp is loaded here.
"""

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import structlog

from backends.machine import prebuilt

LIBRARIES = ("libggml.so", "libggml.dylib", "ggml.dll", "libggml.dll", prebuilt.LIBRARY)
FOR_CARDS = ("ggml-cuda", "ggml-hip", "ggml-vulkan", "ggml-metal", "ggml-sycl", "ggml-musa")
# ggml_backend_dev_type (ggml-backend.h); main memory's are others
PROCESSORS, GPU, INTEGRATED = 0, 1, 2
METAL = "MTL"
HALVES = 1  # ggml_type: 16 bits
SMALL = 4096  # bytes, which hold a tensor without its data
PATIENCE = 60.0  # seconds for drivers to start

log = structlog.get_logger(__name__)


class GgmlDevice(msgspec.Struct, frozen=True, kw_only=True):
    """As the registry has it. Bytes; `free` is `total` where the driver doesn't say."""

    name: str  # "CUDA0", "Vulkan1"
    description: str
    shared: bool  # its memory is the machine's: integrated graphics, Apple's chips
    bus: str | None  # its PCI address, "0000:c1:00.0"; None: unknown
    total: int
    free: int


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props, with room for what later versions add."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("free", ctypes.c_size_t),
        ("total", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("bus", ctypes.c_char_p),
        ("capabilities", ctypes.c_char * 128),
    )


class _ContextParameters(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("buffer", ctypes.c_void_p),
        ("without_data", ctypes.c_bool),
    )


POINTER = ctypes.c_void_p
# The functions that are called: what they return, and take.
SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "ggml_backend_dev_count": (ctypes.c_size_t,),
    "ggml_backend_dev_get": (POINTER, ctypes.c_size_t),
    "ggml_backend_dev_name": (ctypes.c_char_p, POINTER),
    "ggml_backend_dev_type": (ctypes.c_int, POINTER),
    "ggml_backend_dev_get_props": (None, POINTER, POINTER),
    "ggml_backend_dev_by_type": (POINTER, ctypes.c_int),
    "ggml_backend_dev_buffer_type": (POINTER, POINTER),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, POINTER, POINTER),
    "ggml_init": (POINTER, _ContextParameters),
    "ggml_free": (None, POINTER),
    "ggml_new_tensor_1d": (POINTER, POINTER, ctypes.c_int, ctypes.c_int64),
}


class GgmlRegistry:
    """That of the library in `folder`, which is loaded into this process."""

    def __init__(self, folder: Path) -> None:
        path = next(folder / name for name in LIBRARIES if (folder / name).exists())
        self._library = library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        if not library.ggml_backend_dev_count():  # its kinds of devices are libraries to be loaded
            library.ggml_backend_load_all_from_path(os.fsencode(folder))

    def handles(self) -> Mapping[str, int]:
        """The graphics devices, as ggml's functions take them, by name."""
        library = self._library
        found = (library.ggml_backend_dev_get(i) for i in range(library.ggml_backend_dev_count()))
        kinds = (GPU, INTEGRATED)
        return {
            library.ggml_backend_dev_name(device).decode(): device
            for device in found
            if library.ggml_backend_dev_type(device) in kinds
        }

    def main_memory(self) -> int:
        """The kind of buffer that lies there (ggml_backend_buffer_type_t)."""
        found: int = self._library.ggml_backend_dev_buffer_type(
            self._library.ggml_backend_dev_by_type(PROCESSORS)
        )
        return found

    def devices(self, names: Collection[str] | None = None) -> Iterator[GgmlDevice]:
        """All that is known now of those called so; None: of all. CUDA takes memory of each card
        for the answer.
        """
        for name, handle in self.handles().items():
            if names is not None and name not in names:
                continue
            found = _Properties()
            self._library.ggml_backend_dev_get_props(handle, ctypes.byref(found))
            apple = name.startswith(METAL) and platform.machine() == "arm64"
            yield GgmlDevice(
                name=name,
                description=(found.description or b"").decode(errors="replace"),
                shared=found.kind == INTEGRATED or apple,
                bus=found.bus.decode() if found.bus else None,
                total=found.total,
                free=found.free,
            )

    def takes(self, name: str, size: int) -> bool:
        """Whether the device called so can work on a tensor of that many bytes. Vulkan's and
        Metal's devices bound it, far below their memory; llama.cpp ends the process where a cache
        doesn't keep to that.
        """
        context = self._library.ggml_init(_ContextParameters(size=SMALL, without_data=True))
        try:
            tensor = self._library.ggml_new_tensor_1d(context, HALVES, -(-size // 2))
            found: bool = self._library.ggml_backend_dev_supports_op(self.handles()[name], tensor)
        finally:
            self._library.ggml_free(context)
        return found


def here() -> GgmlRegistry:
    """That of the library which llama_cpp has loaded into this process."""
    folder = libraries()
    assert folder is not None, "llama_cpp is loaded from nowhere"
    return GgmlRegistry(folder)


@cache
def devices() -> tuple[GgmlDevice, ...]:
    """Those of this machine, as they were at the first call; none where llama.cpp isn't installed,
    or is built for CPUs.
    """
    folder = libraries()
    return read(folder) if folder is not None and built_for_cards(folder) else ()


def free(names: Collection[str]) -> Mapping[str, int]:
    """Bytes that are free now of those devices; nothing while llama.cpp isn't loaded here."""
    loaded = "llama_cpp.llama_cpp" in sys.modules
    return {one.name: one.free for one in here().devices(names)} if loaded and names else {}


def free_anew(names: Collection[str]) -> Mapping[str, int]:
    """As `free`, but where llama.cpp isn't loaded here another process looks, which takes a
    second.
    """
    folder = libraries()
    if (found := free(names)) or not names or folder is None:
        return found
    return {one.name: one.free for one in read(folder) if one.name in names}


@cache
def libraries() -> Path | None:
    """The folder of the installed llama.cpp's, found without importing it."""
    if (named := os.environ.get("LLAMA_CPP_LIB_PATH")) is not None:
        return Path(named)
    if (library := prebuilt.library()) is not None:
        return library.parent
    package = find_spec("llama_cpp")
    folders = package.submodule_search_locations if package else None
    return next((Path(folder, "lib") for folder in folders or ()), None)


def has_variants() -> bool:
    """Whether the processor's kernels are libraries to choose from, by its instructions
    (GGML_CPU_ALL_VARIANTS).
    """
    folder = libraries()
    return folder is not None and any(folder.glob("*ggml-cpu-*"))


def offloads() -> bool:
    """Whether the installed llama-cpp-python was built for cards."""
    folder = libraries()
    return folder is not None and built_for_cards(folder)


@cache  # the prebuilt library is searched whole: a fourteenth of a second
def built_for_cards(folder: Path) -> bool:
    """Every kind of card is a library of its own beside `ggml-base` and `ggml-cpu`, but in the
    prebuilt one, which has them all.
    """
    if (whole := folder / prebuilt.LIBRARY).exists():
        return any(prebuilt.holds(whole, symbol) for symbol in prebuilt.FOR_CARDS)
    names = [file.name for file in folder.glob("*ggml-*")]
    return any(kind in name for name in names for kind in FOR_CARDS)


def read(folder: Path) -> tuple[GgmlDevice, ...]:
    """What another process reads in the registry of the library there; nothing, with a warning,
    where that fails.
    """
    try:
        child = subprocess.run(  # noqa: S603 - this module
            (sys.executable, "-m", __name__, str(folder)),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GGML_NO_BACKTRACE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        said = child.stdout.rpartition(b"\n")[2]  # drivers may write above it
        return msgspec.json.decode(said, type=tuple[GgmlDevice, ...])
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = f"it ended with status {error.returncode} ({last[:200]})"
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        reason = str(error)
    log.warning("no GPU is used: listing llama.cpp's devices failed", reason=reason)
    return ()


if __name__ == "__main__":
    found_here = tuple(GgmlRegistry(Path(sys.argv[1])).devices())
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(found_here))
