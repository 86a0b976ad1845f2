"""A library that doesn't fit its bindings is refused before anything is read by them."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.engines.llamacpp.library import DEFAULTS, Prebuilt, api, differences
from backends.machine import prebuilt

ROOT = Path(__file__).parents[4]
LIBRARY = vars(api)["_lib"]
CONTEXT = "llama_context_default_params"


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    found = (line.partition(" #")[0].partition("==") for line in lines if "==" in line)
    return {name: version for name, _, version in found}


def test_the_installed_library_fits() -> None:
    assert differences(api) == []


def bindings_with(struct: type[ctypes.Structure]) -> Any:
    """The bindings, which believe that the context's parameters look like that."""
    functions = {name: getattr(api, name) for name in DEFAULTS}
    return SimpleNamespace(**{**functions, CONTEXT: SimpleNamespace(restype=struct)}, _lib=LIBRARY)


def test_a_struct_with_a_field_more_is_found() -> None:
    fields = list(api.llama_context_params._fields_)
    place = [name for name, *_ in fields].index("embeddings")
    for changed in (
        [*fields[:place], ("more", ctypes.c_void_p), *fields[place:]],
        [*fields[: place - 1], *fields[place:]],
    ):
        other = type("Other", (ctypes.Structure,), {"_fields_": changed})
        wrong = differences(bindings_with(other))
        assert any(f"{CONTEXT}().offload_kqv is" in line for line in wrong)


def test_a_small_struct_is_read_where_it_is_returned() -> None:
    """Elsewhere lies anything: one process in 256 found that the library doesn't fit."""
    process = ctypes.CDLL(None)
    returned = type("Returned", (ctypes.Structure,), {"_fields_": [("number", ctypes.c_int)]})
    believed = SimpleNamespace(getppid=SimpleNamespace(restype=returned), _lib=process)
    fields = {"getppid": {"number": os.getppid()}}
    assert differences(believed, fields) == []


def test_a_function_that_is_not_there_fails_when_it_is_called() -> None:
    library = Prebuilt(LIBRARY._name)  # noqa: SLF001 - its path
    assert library.llama_max_devices() > 0
    absent = library.llama_of_another_release
    absent.argtypes, absent.restype = [], None
    with pytest.raises(NotImplementedError, match="llama_of_another_release"):
        absent()


def test_the_pair_that_is_installed_is_the_one_that_was_tried() -> None:
    known = pins()
    assert prebuilt.FITTING[known[prebuilt.BINDINGS]].wheel == known[prebuilt.WHEEL]


def test_a_build_without_mtmd_reads_texts() -> None:
    without = "import sys; sys.modules['llama_cpp.mtmd_cpp'] = None; "
    code = f"{without}import backends.engines.llamacpp.container"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_what_reads_pictures_may_be_imported_before_all_else() -> None:
    pytest.importorskip("llama_cpp.mtmd_cpp")
    code = "import backends.engines.llamacpp.pictures"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
