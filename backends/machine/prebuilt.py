"""llama.cpp as it comes compiled in the wheel of xllamacpp, for llama-cpp-python's bindings, which
are installed without a library then. Imports neither.

The wheel's one extension module is llama.cpp, mtmd and ggml together.
"""

import ctypes
import mmap
import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from backends.contract.catalog import RECEIPT, SCRIPT

BINDINGS, WHEEL = "llama-cpp-python", "xllamacpp"
LIBRARY = "xllamacpp.abi3.so"
# What the library exports where it was built for cards. ROCm's names are CUDA's.
FOR_CARDS = tuple(b"\0ggml_backend_%b_init\0" % kind for kind in (b"cuda", b"vk", b"metal"))


class Newer(msgspec.Struct, frozen=True):
    """A struct that has a field more than the bindings know: before which one it stands, and the
    functions that return the struct and take it.
    """

    field: tuple[str, type]
    before: str
    given_by: str
    taken_by: str


class Pair(msgspec.Struct, frozen=True):
    """A release of the wheel, which ends in llama.cpp's build number, and where its headers are
    newer than the bindings: `scripts/layout` finds that.
    """

    wheel: str
    structs: Mapping[str, Newer]
    constants: Mapping[str, int]


# By release of the bindings, the wheel that was tried with it: neither package says of the other.
FITTING: Mapping[str, Pair] = {
    "0.3.36": Pair(
        "2026.10.11549",
        {
            "llama_context_params": Newer(
                ("moe_cache_size", ctypes.c_size_t),
                "abort_callback",
                "llama_context_default_params",
                "llama_init_from_model",
            )
        },
        {"LLAMA_STATE_SEQ_VERSION": 4},
    )
}


@cache
def library() -> Path | None:
    """The wheel's; None where that is not installed, the bindings have a library of their own, or
    LLAMA_CPP_LIB_PATH names one.
    """
    if "LLAMA_CPP_LIB_PATH" in os.environ:
        return None
    bindings, wheel = find_spec("llama_cpp"), find_spec(WHEEL)
    if bindings is None or wheel is None or bindings.origin is None or wheel.origin is None:
        return None
    own, found = Path(bindings.origin).parent, Path(wheel.origin).parent / LIBRARY
    return found if found.exists() and not list(own.glob("lib/libllama.*")) else None


def holds(path: Path, text: bytes) -> bool:
    """Whether it stands anywhere in the file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(text) >= 0


def misfit() -> str:
    """Why the installed wheel can't be used with the installed bindings; "" where it can."""
    bindings, wheel = version(BINDINGS), version(WHEEL)
    if (pair := FITTING.get(bindings)) is None:
        return f"no release of {WHEEL} is known to fit {BINDINGS} {bindings}"
    if wheel.partition("+")[0] != pair.wheel:
        return f"{WHEEL} {wheel} doesn't fit {BINDINGS} {bindings}; install {WHEEL}=={pair.wheel}"
    return ""


def fitting() -> Pair:
    """What fits the installed bindings. Raises KeyError: see `misfit`."""
    return FITTING[version(BINDINGS)]


def ggml_version(loaded: ctypes.CDLL) -> str:
    """Of the loaded library, also of one that was compiled."""
    loaded.ggml_version.restype = ctypes.c_char_p
    return bytes(loaded.ggml_version()).decode()


def described() -> str:
    """What the installed llama.cpp is, for people, and what another one would gain."""
    if library() is None:
        return "compiled for this machine, or taken from an index"
    return f"prebuilt in {WHEEL} {version(WHEEL)}; {gain()}"


# Instructions that the prebuilt library doesn't use, by the kernel's names.
UNUSED = {"avx512f": "AVX-512", "amx_tile": "AMX"}
# Tokens per second of processor time in a bare loop on such a processor (docs/installation.md).
GAINED = "compiled, the bundled model gave 1.2 times the tokens at one stream, 2.3 times at 16"


def gain(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What compiling would gain on this processor, and how it is done."""
    flags = cpuinfo.read_text("utf-8").split() if cpuinfo.exists() else []
    unused = " and ".join(name for flag, name in UNUSED.items() if flag in flags)
    if not unused:
        return f"this processor has no AVX-512, so compiling gains little (`{compiling()}`)"
    return f"it doesn't use this processor's {unused}: {GAINED} (`{compiling()}`)"


def compiling(build: str = "", *, script: Path = SCRIPT, receipt: Path = RECEIPT) -> str:
    """What compiles llama.cpp for this machine. `build`: CMake's arguments; "" for what is here."""
    arguments = f"CMAKE_ARGS={build} " if build else ""
    if script.is_file():
        return f"{arguments}scripts/install {'' if build else '--build '}llamacpp"
    anew = f"--no-cache-dir --no-binary {BINDINGS} {BINDINGS}=={next(iter(FITTING))}"
    if receipt.is_file():  # an environment of uv's, which has no pip
        return f"{arguments}uv pip install --python {receipt.parent} --reinstall {anew}"
    return f"{arguments}pip install --force-reinstall {anew}"
