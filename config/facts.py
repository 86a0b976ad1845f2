"""Metadata of each option for settings forms: kind, bounds, default, and its reason.

All of it stands in schema.json, which is made of the structs and of default.yaml.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec

from config.settings import Config
from config.shape import Option, is_section, options
from config.values import PATTERNS

Schema: TypeAlias = Mapping[str, Any]  # JSON's own shape

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
