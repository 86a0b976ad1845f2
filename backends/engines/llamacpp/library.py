"""llama.cpp's library behind llama-cpp-python's bindings: compiled with them, or prebuilt
(`backends.machine.prebuilt`). All modules here take the bindings from this one.

The bindings read the library's structs by their own layout. Another layout would be no error but
other values, so what the library says of its defaults is compared, before anything is used.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.machine import ggml, prebuilt

# The loader of the bindings, which runs when they are imported.
EXTENSIONS = "llama_cpp._ctypes_extensions"
# What llama.cpp gives without being asked for anything else: the fields that are no pointers
# (llama-context.cpp, llama-model.cpp, mtmd.cpp).
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama_context_default_params": {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "flash_attn_type": -1,
        "yarn_ext_factor": -1.0,
        "defrag_thold": -1.0,
        "type_k": 1,
        "type_v": 1,
        "embeddings": False,
        "offload_kqv": True,
        "no_perf": True,
        "op_offload": True,
        "swa_full": True,
        "kv_unified": False,
        "n_samplers": 0,
    },
    "llama_model_default_params": {
        "n_gpu_layers": -1,
        "split_mode": 1,
        "main_gpu": 0,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_host": False,
        "no_alloc": False,
    },
    "llama_sampler_chain_default_params": {"no_perf": True},
}
SPARE = 512  # bytes that a newer library's struct may have more
IN_REGISTERS = 16  # bytes of a struct that a function returns so (System V's ABIs, AAPCS64)


@cache
def imported() -> Any:
    """The bindings, `llama_cpp.llama_cpp`. Raises ImportError where they or a library are missing,
    or don't fit together.
    """
    library = prebuilt.library()
    if library is not None:
        if reason := prebuilt.misfit():
            raise ImportError(reason)
        _load(library)
    bindings = import_module("llama_cpp.llama_cpp")
    if ggml.has_variants():
        ggml.here()  # which takes the one for this processor
    if library is not None:
        renew(bindings, prebuilt.fitting())
    if wrong := differences(bindings):
        raise ImportError(f"llama.cpp's library doesn't match its bindings: {'; '.join(wrong)}")
    return bindings


def renew(bindings: Any, pair: prebuilt.Pair) -> None:
    """Constants and structs become those of the library, where it is newer than the bindings; a
    struct's functions give it, or take it as their last argument.
    """
    vars(bindings).update(pair.constants)
    for name, one in pair.structs.items():
        fields = list(getattr(bindings, name)._fields_)
        fields.insert([known for known, *_ in fields].index(one.before), one.field)
        struct = type(name, (ctypes.Structure,), {"_fields_": fields})
        setattr(bindings, name, struct)
        getattr(bindings, one.given_by).restype = struct
        taking = getattr(bindings, one.taken_by)
        taking.argtypes = [*taking.argtypes[:-1], struct]


class Prebuilt(ctypes.CDLL):
    """A library that lacks some of what the bindings declare: a function that isn't there fails
    when it is called, not when it is declared.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return _absent(name)


def _absent(name: str) -> Callable[..., Any]:
    def absent(*_arguments: object) -> Any:
        raise NotImplementedError(f"the prebuilt llama.cpp has no {name}")

    absent.__name__ = name
    return absent


def _load(library: Path) -> None:
    """From now on the bindings find all of their libraries in this one."""
    package = find_spec("llama_cpp")
    assert package is not None
    assert package.origin is not None
    spec = spec_from_file_location(
        EXTENSIONS, Path(package.origin).parent / "_ctypes_extensions.py"
    )
    assert spec is not None
    assert spec.loader is not None
    loader: ModuleType = module_from_spec(spec)
    spec.loader.exec_module(loader)
    vars(loader)["load_shared_library"] = lambda _name, _path: Prebuilt(str(library))
    sys.modules[EXTENSIONS] = loader


def differences(
    bindings: Any, defaults: Mapping[str, Mapping[str, object]] = DEFAULTS
) -> list[str]:
    """Where the library's defaults aren't read as they are written."""
    library = ctypes.CDLL(bindings._lib._name)  # noqa: SLF001 - of the loaded library
    found = []
    for function, fields in defaults.items():
        read = _read(library, function, getattr(bindings, function).restype)
        found += [
            f"{function}().{name} is {getattr(read, name)!r}, not {value!r}"
            for name, value in fields.items()
            if getattr(read, name) != value
        ]
    return found


def _read(library: ctypes.CDLL, function: str, kind: type[ctypes.Structure]) -> Any:
    """What it returns. A struct that is larger than we know has room. A small one comes in
    registers: read as a larger one it would be whatever lay in memory.
    """
    more = {"_fields_": [("more", ctypes.c_char * SPARE)]}
    called = library[function]
    called.restype = type("Padded", (kind,), more) if ctypes.sizeof(kind) > IN_REGISTERS else kind
    called.argtypes = ()
    return called()


class Context:
    """A context, and the library that it is of: C functions take it as its pointer."""

    def __init__(self, library: Any, pointer: int) -> None:
        self.api = library
        self._as_parameter_ = pointer

    def row(self, row: int, size: int) -> npt.NDArray[np.float32]:
        """The logits of the last batch's `row`, where they are kept until the next; `size`: of the
        vocabulary.
        """
        address = ctypes.addressof(self.api.llama_get_logits_ith(self, row).contents)
        there: Any = (ctypes.c_float * size).from_address(address)
        logits: npt.NDArray[np.float32] = np.frombuffer(there, np.float32)
        return logits


api: Any = imported()
