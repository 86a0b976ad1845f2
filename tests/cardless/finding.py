"""Lets modules of some packages find what a machine with cards has: torch that sees cards, the
packages' extensions, flash-attn. Other modules of the process notice nothing.

Python looks an import up in the builtins of the module that it stands in, so modules of those
packages get builtins of their own.
"""

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.cardless import triton_names
from tests.cardless.cards import TorchWithCards

SEEING = ("exllamav2", "exllamav3", "backends.engines.exllama", "tests.gpu", "tests.cardless.test_")
MODULES = Path(__file__).parent / "modules"  # found first: flash_attn, exllamav2_ext, …

# Where a module would only believe a real card: its words, and what is said in their place.
CHANGED = {"exllamav3.generator.cpu_cache": ('t.device.type == "cuda"', 't.device.type != "meta"')}
REPLACED = {"exllamav3.modules.attention_fn.triton_paged": "triton_paged.py"}


def install(cards: int) -> None:
    """From now on; before any module of those packages is imported."""
    present = [name for name in sys.modules if name.startswith(SEEING)]
    assert not present, f"too late: {present[0]} is here already"
    sys.path.insert(0, str(MODULES))
    sys.meta_path.insert(0, Finder(TorchWithCards(cards)))


class Finder(MetaPathFinder):
    """Finds modules as they are found, and gives them their builtins."""

    def __init__(self, torch: TorchWithCards) -> None:
        self._builtins = vars(builtins) | {"__import__": importing(torch)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "exllamav3_ext":  # it must look compiled, or it is compiled
            spec = spec_from_file_location(fullname, MODULES / "exllamav3_ext.py")
            assert spec is not None
            spec.origin = str(MODULES / f"exllamav3_ext{EXTENSION_SUFFIXES[0]}")
            return spec
        if fullname in REPLACED:
            return spec_from_file_location(fullname, MODULES / REPLACED[fullname])
        if not fullname.startswith(SEEING) or fullname.endswith("_ext"):
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)):
                if spec.loader is not None:
                    spec.loader = WithBuiltins(spec.loader, self._builtins)
                return spec
        return None


class WithBuiltins(Loader):
    """`loader`, but the module is given `builtins` before its code runs."""

    def __init__(self, loader: Loader, builtins: Mapping[str, Any]) -> None:
        self._loader: Any = loader
        self._builtins = builtins

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = dict(self._builtins)
        if change := CHANGED.get(module.__name__):
            source = self._loader.get_source(module.__name__)
            assert change[0] in source
            exec(compile(source.replace(*change), str(module.__file__), "exec"), module.__dict__)
        else:
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def importing(torch: TorchWithCards) -> Any:
    """`__import__`, for which `torch` is torch, and triton is there."""

    def imported(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0 and name.partition(".")[0] == "triton":
            return triton_names
        found = builtins.__import__(name, globals, locals, fromlist, level)
        return torch if level == 0 and found.__name__ == "torch" else found

    return imported
