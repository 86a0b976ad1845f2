"""Compiles exllamav2's own sampler and string matcher for the CPU, once: it takes half a minute,
and the library is kept in the user's cache under a digest of all that goes into it.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

NAME = "exllamav2_sampling"
BINDINGS = Path(__file__).with_name(f"{NAME}.cpp")
# What the sources include and don't need on a CPU: empty files.
HEADERS = ("cuda_runtime.h", "cuda_fp16.h", "c10/cuda/CUDAGuard.h", "ATen/cuda/CUDAContext.h")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-w")
LIBRARIES = ("torch_python", "torch", "torch_cpu", "c10")


def exllamav2_sampling() -> ModuleType:
    """The module; compiled if need be. Raises RuntimeError with the compiler's words."""
    package = _package() / "exllamav2_ext"
    sources = sorted(package.glob("cpp/*")) + sorted(package.glob("*sampling*"))
    made = _cache() / f"exllamav2-{_digest([BINDINGS, *sources])}"
    made.mkdir(parents=True, exist_ok=True)
    library = made / f"{NAME}.so"
    with (made / "lock").open("w") as lock:  # several workers of the suite want it at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(package, made, library)
    spec = spec_from_file_location(NAME, library, loader=ExtensionFileLoader(NAME, str(library)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _package() -> Path:
    """exllamav2's folder, found without importing it."""
    spec = find_spec("exllamav2")
    assert spec is not None, "exllamav2's source is installed by `make test`"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "roundhouse"


def _digest(sources: list[Path]) -> str:
    found: Any = hashlib.sha256(f"{torch.__version__} {sys.version} {FLAGS}".encode())
    for path in sources:
        found.update(path.read_bytes())
    return str(found.hexdigest())[:16]


def _compile(package: Path, folder: Path, library: Path) -> None:
    for header in HEADERS:
        (folder / header).parent.mkdir(parents=True, exist_ok=True)
        (folder / header).touch()
    python = sysconfig.get_path("include")
    includes = (folder, package, *cpp_extension.include_paths(), python)
    [found] = cpp_extension.library_paths()
    unfinished = library.with_suffix(".unfinished")
    command = [
        os.environ.get("CXX", "c++"),
        *FLAGS,
        *(f"-I{path}" for path in includes),
        str(BINDINGS),
        "-o",
        str(unfinished),
        f"-L{found}",
        f"-Wl,-rpath,{found}",
        *(f"-l{name}" for name in LIBRARIES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exllamav2's sampler could not be compiled:\n{done.stderr[-4000:]}")
    unfinished.rename(library)
