"""The gateway names no engine: what differs between them its folder says, through the catalog."""

import ast
from collections.abc import Iterator
from pathlib import Path

import gateway
from backends.contract.catalog import BACKENDS
from config.engines import EngineOptions

NAMES = {*BACKENDS}
STRUCTS = {
    kind.__name__
    for one in BACKENDS.values()
    for kind in one.options.__mro__
    if issubclass(kind, EngineOptions) and kind is not EngineOptions
}


def named(tree: ast.AST) -> Iterator[str]:
    """Engines' names as whole texts, and the structs of their options."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if text in NAMES:
                yield text
            case ast.Name(id=name) | ast.alias(name=name) if name in STRUCTS:
                yield name


def test_no_module_of_the_gateway_names_an_engine() -> None:
    root = Path(gateway.__file__).parent
    modules = {path: ast.parse(path.read_text("utf-8")) for path in root.rglob("*.py")}
    assert len(modules) > 100
    for path, tree in modules.items():
        # What a shell runs is a `command`, too, in OpenAI's API.
        allowed = {"command"} if "dialects" in path.parts else set()
        assert {*named(tree)} <= allowed, path
