"""A library's own source, read without importing it: importing needs CUDA. Compared with what the
stand-in for it says.
"""

import ast
import inspect
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch


def source(name: str, version: str) -> Path:
    """The package's folder. Skips the test where it isn't installed."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name}'s source is not installed: pip install --no-deps {name}=={version}")
    return Path(next(iter(spec.submodule_search_locations)))


def class_of(package: Path, module: str, name: str) -> ast.ClassDef:
    tree = ast.parse((package / module).read_text(encoding="utf-8"))
    return next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name
    )


def method_of(package: Path, module: str, name: str, method: str) -> list[tuple[str, object]]:
    """The parameters of a method that the class itself defines."""
    body = class_of(package, module, name).body
    return parameters(
        next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == method)
    )


def parameters(function: ast.FunctionDef) -> list[tuple[str, object]]:
    """Names with their defaults; a default with other names in it is its source."""
    given = function.args.args
    defaults = [None] * (len(given) - len(function.args.defaults)) + list(function.args.defaults)
    return [(name.arg, read(default)) for name, default in zip(given, defaults, strict=True)]


def read(default: ast.expr | None) -> object:
    if default is None:
        return inspect.Parameter.empty
    text = ast.unparse(default)
    try:
        value: object = eval(text, {"__builtins__": {"int": int}, "torch": torch})  # 4 * 1024**3
    except NameError:
        return text
    return value


def ours(function: object) -> list[tuple[str, object]]:
    assert callable(function)
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    return [(p.name, p.default) for p in named]


def methods(
    standin: ModuleType, names: Iterable[str], own: Collection[str] = ()
) -> list[tuple[str, str]]:
    """What the stand-in's classes define for the outside. `own`: no methods of the library."""
    return [
        (name, method)
        for name in names
        for method, function in vars(getattr(standin, name)).items()
        if inspect.isroutine(function) and method not in own
        if method == "__init__" or not method.startswith("_")
    ]
