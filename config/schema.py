"""The JSON Schema of the configuration file, for editors, and what it says of each option, for
settings forms: kind, bounds, default, and its reason. `python -m config.schema` prints it.

The shape comes from the structs, each description from the comment above it in default.yaml.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import NoneType
from typing import Any, TypeAlias

import msgspec
import yaml
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

from config.document import entries, path_of
from config.models import ENGINES
from config.settings import Config
from config.shape import (
    Kind,
    Option,
    is_section,
    list_item,
    mapping_in,
    mapping_item,
    options,
    said,
    takes_none,
    types,
    unit_of,
    words,
)
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
    return {
        path_of(steps, ""): _comment_above(key.start_mark.line, lines)
        for steps, key, _ in entries(node)
        if isinstance(steps[-1], str)
    }


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
    whole["$defs"]["Config"]["patternProperties"] = {"^x-": {}}
    heading = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://www.schemastore.org/roundhouse.json",
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
    within = mapping_in(kind)
    forms = [
        _with_units(form, within) if form.get("type") == "object" else form
        for form in number.get("anyOf", [number])
    ]
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


def _comment_above(line: int, lines: list[str]) -> str:
    """The comment that ends right above `line`, as one text."""
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(found)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2, ensure_ascii=False))


SEVERAL = "any"  # the kind of an option that takes several


class OptionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One option. `type` in the words of JSON's schemas; `choices`: the texts it may be."""

    type: str
    nullable: bool
    choices: tuple[str, ...] | None
    minimum: float | None
    maximum: float | None
    default: Any
    description: str


def facts(section: type[msgspec.Struct]) -> Mapping[str, OptionFacts]:
    """Of what stands directly in `section`, by name, sections in it left out."""
    shown = _definitions().get(section.__name__, {}).get("properties", {})
    return {
        field.name: _facts(field, shown.get(field.name, {}).get("description", ""))
        for field in msgspec.structs.fields(section)
        if not is_section(field.type)
    }


def all_facts(
    section: type[msgspec.Struct] = Config, above: Option = ()
) -> Iterator[tuple[Option, OptionFacts]]:
    """Every option that holds a value, in the order of the file."""
    own = facts(section)
    for name, kind in options(section).items():
        if is_section(kind):
            yield from all_facts(kind, (*above, name))
        else:
            yield (*above, name), own[name]


@cache
def _definitions() -> Mapping[str, Schema]:
    text = files("config").joinpath("schema.json").read_text(encoding="utf-8")
    definitions: Mapping[str, Schema] = msgspec.json.decode(text)["$defs"]
    return definitions


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_TYPES |= {tuple: "array", dict: "object"}


def _facts(field: FieldInfo, description: str) -> OptionFacts:
    kind, default = field.type, field.default
    one, *others = types(kind) - {NoneType}
    if default is NODEFAULT:
        default = field.default_factory() if field.default_factory is not NODEFAULT else None
    return OptionFacts(
        type=SEVERAL if others else _TYPES[one],
        nullable=takes_none(kind),
        choices=words(kind) or None,
        minimum=None if others else said(kind, "ge", "gt"),
        maximum=None if others else said(kind, "le"),
        default=msgspec.to_builtins(default),
        description=description,
    )
