"""JSON Schema's keywords: what each contains, since which draft, and how the grammar treats it; and
one node of any draft in the keywords of draft 2020-12.

Drafts 4 to 2020-12 are known by `$schema`. Without it a node may use the words of all of them,
since most who leave it out don't know which they write. What isn't in the table is an annotation or
unknown: it doesn't affect validity, and is dropped.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from gateway.constraints.grammars import Relaxation, lookaheads

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


def relaxation(place: str, key: str, *, usable: bool = True) -> Relaxation:
    """The grammar has something else in place of `key`. `usable`: the check can have it."""
    row = KEYWORDS[key]
    return Relaxation(place, key, row.became, checked=row.checked and usable)


def with_parts(key: str, value: Any, make: Callable[[Any], Any]) -> Any:
    """`value` of a keyword, with what `make` gives for each schema in it."""
    match KEYWORDS[key].holds if key in KEYWORDS else None:
        case "schema":
            return make(value)
        case "schemas":
            return [make(each) for each in value]
        case "members":
            return {name: make(each) for name, each in value.items()}
        case _:
            return value


# llguidance's (parser/src/json/formats.rs): a grammar for each.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))


Node: TypeAlias = Mapping[str, Any]
Draft: TypeAlias = int | None  # 4, 6, 7, 2019, 2020; None: not said

DRAFTS: Mapping[str, int] = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
# Where one of these stands beside it, `unevaluatedProperties` sees more than `properties`.
IN_PLACE = frozenset(
    ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "$ref", "not")
)


def draft_of(document: Any) -> Draft:
    """The draft that a schema says it is written in; None where it names none, or another."""
    named = document.get("$schema") if isinstance(document, dict) else None
    if not isinstance(named, str):
        return None
    bare = named.rstrip("#").replace(
        "https://json-schema.org/draft-", "http://json-schema.org/draft-"
    )
    return DRAFTS.get(bare)


def modern(node: Node, draft: Draft) -> Node:
    """`node` in the words of draft 2020-12, in its order; its parts as they are."""
    for applies, step in STEPS:
        if applies(draft):
            node = step(node)
    return node


def too_new(node: Node, draft: Draft) -> list[str]:
    """The keywords that `draft`, where it is named, doesn't know yet."""
    if draft is None:
        return []
    return [key for key in node if key in KEYWORDS and KEYWORDS[key].since > draft]


def _without_siblings(node: Node) -> Node:
    """Up to draft 7 a reference stands alone, whatever is written beside it."""
    return {"$ref": node["$ref"]} if isinstance(node.get("$ref"), str) else node


def _references(node: Node) -> Node:
    """What a dynamic reference leads to if nothing outside the schema takes part."""
    old = [key for key in ("$recursiveRef", "$dynamicRef") if isinstance(node.get(key), str)]
    if not old:
        return node
    rest = {key: value for key, value in node.items() if key not in old}
    if len(old) == 1 and "$ref" not in node:
        return rest | {"$ref": node[old[0]]}
    return _also(rest, *({"$ref": node[key]} for key in old))


def _tuples(node: Node) -> Node:
    """`items` with a list, and `additionalItems`, which says nothing without one."""
    if not isinstance(node.get("items"), list):
        return {key: value for key, value in node.items() if key != "additionalItems"}
    names = {"items": "prefixItems", "additionalItems": "items"}
    return {names.get(key, key): value for key, value in node.items() if key != "prefixItems"}


def _exclusive(node: Node) -> Node:
    """Draft 4 has a flag beside the limit."""
    changed = dict(node)
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = node.get(exclusive)
        if isinstance(flag, bool):
            del changed[exclusive]
            if flag and limit in node:
                changed[exclusive] = changed.pop(limit)
    return changed


def _dependencies(node: Node) -> Node:
    """Lists of names and schemas, in one object; 2019-09 made two of it."""
    both = node.get("dependencies")
    if not isinstance(both, dict):
        return node
    changed = {key: value for key, value in node.items() if key != "dependencies"}
    lists = {name: value for name, value in both.items() if isinstance(value, list)}
    schemas = {name: value for name, value in both.items() if not isinstance(value, list)}
    for key, members in (("dependentRequired", lists), ("dependentSchemas", schemas)):
        if members:
            changed.setdefault(key, members)
    return changed


def _sealed(node: Node) -> Node:
    """`unevaluatedProperties`, where it says what `additionalProperties` does."""
    if "additionalProperties" in node or IN_PLACE & node.keys():
        return node
    names = {"unevaluatedProperties": "additionalProperties"}
    return {names.get(key, key): value for key, value in node.items()}


def _lookaheads(node: Node) -> Node:
    """A pattern's lookaheads, as schemas of their own: `grammars.lookaheads`."""
    pattern = node.get("pattern")
    parts = lookaheads(pattern) if isinstance(pattern, str) else []
    if not parts:
        return node
    rest = {key: value for key, value in node.items() if key != "pattern"}
    wanted = ({"pattern": part} if has else {"not": {"pattern": part}} for has, part in parts)
    return _also(rest, *wanted)


def _also(node: Node, *schemas: Node) -> Node:
    """`node`, and each of `schemas` too."""
    given = node.get("allOf", [])
    return {**node, "allOf": [*given, *schemas]} if isinstance(given, list) else node


def _nullable(node: Node) -> Node:
    """OpenAPI's word, which draft 2020-12 doesn't have."""
    if node.get("nullable") is not True:
        return node
    rest = {key: value for key, value in node.items() if key != "nullable"}
    return {"anyOf": [rest, {"type": "null"}]}


STEPS: tuple[tuple[Callable[[Draft], bool], Callable[[Node], Node]], ...] = (
    (lambda draft: draft in (4, 6, 7), _without_siblings),
    (lambda draft: draft in (None, 2019, 2020), _references),
    (lambda draft: draft != 2020, _tuples),
    (lambda draft: draft in (None, 4), _exclusive),
    (lambda _: True, _dependencies),
    (lambda _: True, _lookaheads),
    (lambda draft: draft in (None, 2019, 2020), _sealed),
    (lambda draft: draft is None, _nullable),
)
