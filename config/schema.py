"""The JSON Schema of the configuration file, for editors, and what it says of each option, for
settings forms: kind, bounds, default, and its reason. `python -m config.schema` prints it.

The shape comes from the structs, each description from the comment above it in default.yaml.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec
import yaml

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
    unit_of,
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
    kinds = options(section)
    properties = _definitions().get(section.__name__)
    if properties is None:  # a section that the configuration file doesn't have
        properties = msgspec.json.schema(section)["$defs"][section.__name__]
    return {
        name: _facts(schema)
        for name, schema in properties.get("properties", {}).items()
        if not is_section(kinds[name])
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


def _facts(schema: Schema) -> OptionFacts:
    # A number with a unit is the same number to whoever fills in a form.
    accepted = schema.get("anyOf", [schema])
    forms = [form for form in accepted if form.get("pattern") not in PATTERNS.values()]
    kinds = [form for form in forms if form.get("type") != "null"]
    choices = [word for form in kinds for word in form.get("enum", ())]
    types = {form.get("type", "string" if "enum" in form else "object") for form in kinds}
    bounds = kinds[0] if len(kinds) == 1 else {}
    return OptionFacts(
        type=types.pop() if len(types) == 1 else SEVERAL,
        nullable=len(kinds) < len(forms) or None in choices,
        choices=tuple(word for word in choices if word is not None) or None,
        minimum=_bound(bounds, "minimum", "exclusiveMinimum", 1),
        maximum=_bound(bounds, "maximum", "exclusiveMaximum", -1),
        default=schema.get("default"),
        description=schema.get("description", ""),
    )


def _bound(form: Schema, name: str, exclusive: str, inside: int) -> float | None:
    """The bound itself, or of whole numbers the first that an exclusive one lets in."""
    if name in form or exclusive not in form:
        return form.get(name)
    bound: float = form[exclusive]
    return bound + inside if form.get("type") == "integer" else bound
