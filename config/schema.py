"""The JSON Schema of the configuration file, for editors. `python -m config.schema` prints it.

The shape comes from the structs, each description from the comment above it in default.yaml.
"""

import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec
import yaml

from config.models import ENGINES
from config.settings import Config
from config.shape import Kind, is_section, list_item, mapping_item, options, unit_of
from config.values import PATTERNS

Schema: TypeAlias = dict[str, Any]  # JSON's own shape; it leaves this module as text only


def documentation() -> str:
    """default.yaml."""
    return files("config").joinpath("default.yaml").read_text(encoding="utf-8")


def uncommented(text: str) -> str:
    """`text` with its examples in force: lines that start with "#" and no space."""
    return re.sub(r"^#(?=[^ #\n])|^#(?= {2,})", "", text, flags=re.MULTILINE)


def descriptions(text: str) -> Mapping[str, str]:
    """The comment above each option, by path without indices: `$.models.name`."""
    lines = uncommented(text).splitlines()
    node = yaml.compose(uncommented(text), Loader=yaml.SafeLoader)
    return {path: _comment_above(line, lines) for path, line in _keys(node, "$")}


def schema() -> Schema:
    """The whole schema (draft 2020-12, as msgspec makes it)."""
    whole = msgspec.json.schema(Config)
    found = descriptions(documentation())
    for path, section in _sections(Config, "$"):
        described = whole["$defs"][section.__name__]["properties"]
        for name, kind in options(section).items():
            accepted = _with_units(described[name], kind)
            described[name] = {"description": found[f"{path}.{name}"], **accepted}
    _narrow(whole["$defs"]["ModelConfig"]["properties"])
    heading = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Roundhouse configuration",
    }
    return heading | whole


def _with_units(option: Schema, kind: Kind) -> Schema:
    """A number with a unit is a text."""
    if (item := mapping_item(kind)) is not None and unit_of(item) is not None:
        return {**option, "additionalProperties": _with_units(option["additionalProperties"], item)}
    if (unit := unit_of(kind)) is None:
        return option
    about: Schema = {name: option[name] for name in ("default", "description") if name in option}
    number = {name: value for name, value in option.items() if name not in about}
    forms = number.get("anyOf", [number])
    return {**about, "anyOf": [*forms, {"type": "string", "pattern": PATTERNS[unit]}]}


def _narrow(model: Schema) -> None:
    """Say what a model's struct can't: which backends there are, and that options are theirs."""
    model["backend"] |= {"enum": [*ENGINES, None]}
    model["options"]["anyOf"] = [
        {"$ref": f"#/$defs/{engine.__name__}"} for engine in ENGINES.values()
    ]


def _sections(section: type[msgspec.Struct], path: str) -> Iterator[tuple[str, Kind]]:
    """Every section below `section` and itself, also those in lists."""
    yield path, section
    for name, kind in options(section).items():
        inner = list_item(kind) or kind
        if is_section(inner):
            yield from _sections(inner, f"{path}.{name}")


def _keys(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    """Every key's path and line, counted from 0."""
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                yield f"{path}.{key.value}", key.start_mark.line
                yield from _keys(value, f"{path}.{key.value}")
        case yaml.SequenceNode():
            for value in node.value:
                yield from _keys(value, path)


def _comment_above(line: int, lines: list[str]) -> str:
    """The comment that ends right above `line`, as one text."""
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(found)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2, ensure_ascii=False))
