"""JSON Schema's keywords: what each holds, since which draft, and what the grammar makes of it.

After `drafts.modern` all are those of draft 2020-12. What isn't in the table is an annotation or
nobody's: it says nothing of what is valid, and goes.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

# What stands there. `schema`: one; `schemas`: a list of them; `members`: an object of them.
Holds: TypeAlias = Literal[
    "schema", "schemas", "members", "count", "number", "divisor", "flag", "text", "texts",
    "names", "types", "values", "value", "reference",
]  # fmt: skip
# `carried`: by the grammar, where llguidance takes it. `left`: to the check afterwards.
Handling: TypeAlias = Literal["carried", "left"]


class Keyword(msgspec.Struct, frozen=True):
    """`since`: the draft that brought it. `opens`: what must go with it where the grammar can't
    carry it, because without it that would refuse more. `became`: what the grammar has instead; ""
    where another keyword says it.
    """

    holds: Holds
    grammar: Handling = "carried"
    since: int = 4
    opens: tuple[str, ...] = ()
    became: str = "any"
    checked: bool = True


KEYWORDS: Mapping[str, Keyword] = {
    # What holds of the value itself. The order is the one in which a node that llguidance can't
    # take is relaxed: what costs least first.
    "multipleOf": Keyword("divisor", became="any number"),
    "minProperties": Keyword("count", became="any number of properties"),
    "maxProperties": Keyword("count", became="any number of properties"),
    "uniqueItems": Keyword("flag", "left", became="items that may repeat"),
    "maxLength": Keyword("count", became="any length"),
    "minLength": Keyword("count", became="any length"),
    "pattern": Keyword("text", became="any string"),
    "format": Keyword("text", became="any string", checked=False),
    "minItems": Keyword("count", became="any number of items"),
    "maxItems": Keyword("count", became="any number of items"),
    "minimum": Keyword("number", became="any number"),
    "maximum": Keyword("number", became="any number"),
    "exclusiveMinimum": Keyword("number", became="any number"),
    "exclusiveMaximum": Keyword("number", became="any number"),
    "required": Keyword("texts", became="properties that may be missing"),
    "dependentRequired": Keyword("names", "left", 2019, became="properties that may be missing"),
    # What holds of its parts.
    "patternProperties": Keyword(
        "members", opens=("additionalProperties",), became="any properties"
    ),
    "additionalProperties": Keyword("schema", became="any further properties"),
    "propertyNames": Keyword("schema", "left", 6, became="any names"),
    "unevaluatedProperties": Keyword("schema", "left", 2019, became="any further properties"),
    "contains": Keyword("schema", "left", 6, became="any items"),
    "minContains": Keyword("count", "left", 2019, became=""),
    "maxContains": Keyword("count", "left", 2019, became=""),
    "unevaluatedItems": Keyword("schema", "left", 2019, became="any further items"),
    "prefixItems": Keyword("schemas", since=2020, opens=("items",), became="any items"),
    "items": Keyword("schema", became="any items"),
    "properties": Keyword("members", opens=("additionalProperties",), became="any properties"),
    # Several schemas for one value.
    "not": Keyword("schema", "left"),
    "if": Keyword("schema", "left", 7),
    "then": Keyword("schema", "left", 7, became=""),
    "else": Keyword("schema", "left", 7, became=""),
    "dependentSchemas": Keyword("members", "left", 2019),
    "oneOf": Keyword("schemas", became="anyOf"),
    "allOf": Keyword("schemas"),
    "anyOf": Keyword("schemas"),
    "$ref": Keyword("reference"),
    "enum": Keyword("values", became="any value"),
    "const": Keyword("value", since=6, became="any value"),
    "type": Keyword("types", became="any type"),
}

# llguidance's (parser/src/json/formats.rs): a grammar for each.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
