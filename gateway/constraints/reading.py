"""Parses a client's JSON schema once, in the keywords of draft 2020-12, with every reference
leading to one of its own `$defs`: whole for the check, and as the grammar can carry it.

What is no schema is an error that names the place. Nothing is ever fetched: a reference is a URI
(RFC 3986) relative to the nearest `$id` around it, whose fragment is a JSON pointer (RFC 6901) or
an anchor, and leads to a part of the same document.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from gateway.constraints.effort import level_sizes, referred, values_in
from gateway.constraints.grammars import (
    SCHEMA_BYTES,
    SCHEMA_DATA,
    SCHEMA_DEFINITIONS,
    SCHEMA_DEPTH,
    SCHEMA_NODES,
    Relaxation,
)
from gateway.constraints.keywords import (
    FORMATS,
    KEYWORDS,
    TYPES,
    Draft,
    Holds,
    Node,
    draft_of,
    modern,
    relaxation,
    too_new,
    with_parts,
)
from gateway.terms.errors import InvalidRequest

# Their values are data: an `$id` in there is none.
DATA = frozenset(("const", "enum", "default", "examples"))
ROOT = ""


class Part(msgspec.Struct, frozen=True):
    """Where an object or list of a schema stands: inside `parent`, under `key`; `base` is the URI
    of the resource it belongs to, `data` that no schema is inside.
    """

    base: str
    parent: int | None = None
    key: str | int = ""
    data: bool = False


class References:
    """What a document's references lead to, and where each of its parts stands.

    Parts are known by `id`; the document is kept, so they stay what they are.
    """

    def __init__(self, document: Any, draft: Draft, field: str) -> None:
        self.document = document
        self.identifier = "id" if draft == 4 else "$id"
        self.parts: dict[int, Part] = {}
        self.named: dict[str, Any] = {ROOT: document}
        sizes = level_sizes(document, values_in)
        SCHEMA_DEPTH.check(len(sizes) - 1, field)
        SCHEMA_NODES.check(sum(sizes), field)
        self._index(document, Part(ROOT))

    def target(self, reference: str, node: Node) -> Any:
        """What `reference`, which stands in `node`, leads to; None where that isn't here."""
        base = self.parts[id(node)].base
        absolute = _joined(base, reference)
        if absolute in self.named:
            return self.named[absolute]
        resource, fragment = urldefrag(absolute)
        if resource not in self.named:
            return None
        found = _pointed(self.named[resource], fragment)
        return _pointed(self.document, fragment) if found is None else found

    def place(self, node: Any) -> str:
        """`$.properties.size`"""
        keys: list[str | int] = []
        part = self.parts.get(id(node))
        while part is not None and part.parent is not None:
            keys.append(part.key)
            part = self.parts[part.parent]
        return path(reversed(keys))

    def _index(self, node: Any, part: Part) -> None:
        """`part`: where `node` stands; its base may be that of what is around it."""
        if isinstance(node, dict | list):
            base = part.base if part.data else self._named(node, part.base)
            self.parts[id(node)] = msgspec.structs.replace(part, base=base)
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                self._index(value, Part(base, id(node), key, part.data or key in DATA))

    def _named(self, node: Any, base: str) -> str:
        """Notes by which names `node` can be referred to, and returns its base."""
        if not isinstance(node, dict):
            return base
        identifier = node.get(self.identifier)
        if isinstance(identifier, str):
            absolute = _joined(base, identifier)
            self.named.setdefault(absolute.removesuffix("#"), node)
            base = base if identifier.startswith("#") else urldefrag(absolute).url
        for anchor in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(anchor), str):
                self.named.setdefault(f"{base}#{node[anchor]}", node)
        return base


def path(keys: Iterable[str | int]) -> str:
    """`$.properties.size[0]`"""
    return "$" + "".join(map(_step, keys))


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _pointed(node: Any, fragment: str) -> Any:
    """What a JSON pointer leads to; None: nothing."""
    if fragment and not fragment.startswith("/"):
        return None
    for part in unquote(fragment).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and len(key) < 9:
            node = node[int(key)] if int(key) < len(node) else None
        else:
            return None
    return node


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    plain = key.isascii() and key.replace("_", "").replace("-", "").replace("$", "").isalnum()
    return f".{key}" if plain else f"[{msgspec.json.encode(key).decode()}]"


LONGEST = 100_000  # characters that rules count
LENGTHS = 2_000  # that a lexer does, where a pattern says what they are: some states for each
_REPEATS = re.compile(r"\{\d*+,?(\d*+)\}")
MULTIPLES = 10_000  # milliseconds; ten times as many take a second
COUNTED_PROPERTIES = 64


class NodeOrigin(msgspec.Struct, frozen=True):
    """Where a node of the grammar's schema comes from: its place in the client's, and the check's
    node. `plain`: what the check leaves out there only makes it accept more.
    """

    place: str
    check: dict[str, Any]
    plain: bool


class Schema(msgspec.Struct, frozen=True):
    """What was read. `notes`: what the grammar doesn't carry, each with its node of `carried`;
    `origins`: by the `id` of such a node.
    """

    check: dict[str, Any] | bool
    carried: dict[str, Any] | bool
    notes: list[tuple[Node, Relaxation]]
    origins: dict[int, NodeOrigin]


def read(text: bytes, field: str) -> Schema:
    """Raises InvalidRequest: not JSON, not a schema, too large, or an external reference."""
    SCHEMA_BYTES.check(len(text), field)
    try:
        document = msgspec.json.decode(text)
        document = {} if document is True else document
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest.at(field, f"not a JSON schema: {error}") from None
    reading = _DocumentReader(document, field)
    carrying = _Carrying(reading)
    carried = _whole(carrying.all())
    return Schema(_whole(carrying.checked), carried, carrying.notes, carrying.origins)


def _whole(parts: dict[str, Any]) -> Any:
    root = parts.pop(ROOT)
    if parts:
        root["$defs"] = parts
    return root


class _DocumentReader:
    """Reads one document for the check. `places`: of each node that was read, by its `id`, with the
    keywords that its draft doesn't know yet.
    """

    def __init__(self, document: Any, field: str) -> None:
        self.document = document
        self.field = field
        self.draft: Draft = draft_of(document)
        self.references = References(document, self.draft, field)
        self.definitions: dict[int, str] = {}  # of the node a reference leads to
        self.waiting: list[tuple[str, Any]] = [(ROOT, document)]
        self.places: dict[int, tuple[str, list[str]]] = {}
        self.data = 0  # values inside lists and objects of `enum` and `const`
        self.node: Any = document  # the innermost that the client wrote

    def all(self) -> dict[str, Any]:
        """The root, and each definition by its name."""
        found: dict[str, Any] = {}
        while self.waiting:
            name, node = self.waiting.pop()
            found[name] = self.read(node)
        return found

    def read(self, node: Any, key: str = "") -> Any:
        """One schema, which stands under `key`."""
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            self.wrong(f'{f""""{key}": """ if key else ""}a schema is an object, true or false')
        around, self.node = self.node, node if id(node) in self.references.parts else self.node
        place, new = self.references.place(self.node), too_new(node, self.draft)
        old = {word: value for word, value in node.items() if word not in new}
        known = modern(old, self.draft).items()
        check = {word: self._value(word, value) for word, value in known if word in KEYWORDS}
        self.places[id(check)] = place, new
        self.node = around
        return check

    def _value(self, key: str, value: Any) -> Any:
        holds = KEYWORDS[key].holds
        expected, allowed = FORMS[holds]
        if not allowed(value) or (value == [] and holds == "schemas" and key != "prefixItems"):
            self.wrong(f'"{key}" must be {expected}')
        match holds:
            case "reference":
                return self.define(value)
            case "count":
                return int(value)
            case "values" | "value":
                listed = value if holds == "values" else [value]
                self.data += sum(level_sizes(listed, values_in)[2:])
                SCHEMA_DATA.check(self.data, self.field)
        return with_parts(key, value, partial(self.read, key=key))

    def wrong(self, message: str) -> NoReturn:
        """Raises InvalidRequest that names the place."""
        place = self.references.place(self.node)
        raise InvalidRequest.at(self.field, f"{place}: {message}")

    def define(self, reference: str) -> str:
        """The reference by which what `reference` leads to is known in `$defs`."""
        target = self.references.target(reference, self.node)
        if target is None:
            self.wrong(f'"$ref" {reference!r:.200} leads out of the schema; nothing is fetched')
        if not isinstance(target, dict | bool):
            self.wrong(f'"$ref" {reference!r:.200} leads to no schema')
        if id(target) not in self.definitions:
            SCHEMA_DEFINITIONS.check(len(self.definitions) + 1, self.field)
            name = f"d{len(self.definitions)}"
            self.definitions[id(target)] = name
            self.waiting.append((name, target))
        return f"#/$defs/{self.definitions[id(target)]}"


class _Carrying:
    """What the grammar can carry of what is `checked`. `notes`: what it doesn't."""

    def __init__(self, reading: _DocumentReader) -> None:
        self.checked = reading.all()
        self.notes: list[tuple[Node, Relaxation]] = []
        self._places = reading.places
        self._unknown = f"nothing, as draft {reading.draft} has it"
        self.origins: dict[int, NodeOrigin] = {}
        self._waiting = [ROOT]
        self._multiples: set[int] = set()
        self._lengths = 0.0

    def all(self) -> dict[str, Any]:
        """The root, and each definition that it comes to."""
        found: dict[str, Any] = {}
        while self._waiting:
            if (name := self._waiting.pop()) not in found:
                found[name] = self._carried(self.checked[name], plain=name == ROOT)
        return found

    def _carried(self, check: Any, *, plain: bool) -> Any:
        if isinstance(check, bool):
            return check
        carried: dict[str, Any] = {}
        place, new = self._places[id(check)]
        self.origins[id(carried)] = NodeOrigin(place, check, plain)
        unknown = (Relaxation(place, key, self._unknown, checked=False) for key in new)
        self.notes += [(carried, each) for each in unknown]
        for key, value in check.items():
            row = KEYWORDS[key]
            if row.grammar == "carried" and self._fits(key, check):
                part = partial(self._carried, plain=plain and key != "oneOf")
                carried[key] = with_parts(key, value, part)
            elif row.became and not (row.holds == "flag" and value is False):
                self.notes.append((carried, relaxation(place, key)))
        if (name := referred(check)) is not None:
            self._waiting.append(name)
        _in_order(carried)
        return carried

    def _fits(self, key: str, check: Mapping[str, Any]) -> bool:
        """Whether the grammar can have `key` of this node at a price."""
        value = check[key]
        match key:
            case "format":  # one that isn't known is one of texts
                return value in FORMATS or "string" not in check.get("type", "string")
            case "multipleOf":  # takes as many states as its digits say, all of them together
                self._multiples.add(_significant(value))
                return math.prod(self._multiples) <= MULTIPLES
            case "minLength" | "maxLength" if not _is_patterned(check):
                return bool(value <= LONGEST)
            case "minLength" | "maxLength":
                self._lengths += value
                return self._lengths <= LENGTHS
            case "pattern":
                self._lengths += sum(float(most or 0) for most in _REPEATS.findall(value))
                return self._lengths <= LENGTHS
            case "minProperties" | "maxProperties":  # takes a copy of the object for each
                return len(check.get("properties", ())) <= COUNTED_PROPERTIES
            case _:
                return True


def _is_patterned(check: Mapping[str, Any]) -> bool:
    """What its text is, a pattern says: a lookahead's is one of `allOf`."""
    parts = (each for each in check.get("allOf", ()) if isinstance(each, dict))
    return any({"pattern", "format"} & each.keys() for each in (check, *parts))


def _in_order(carried: dict[str, Any]) -> None:
    """A model writes members in the order in which llguidance first sees them. A condition on some
    of them mustn't pull them before the others.
    """
    if "properties" in carried:
        for key in ("anyOf", "oneOf"):
            if key in carried:
                carried[key] = carried.pop(key)


def _significant(number: float) -> int:
    """Its digits, without zeros at the ends: 12 for 0.12 and 1200."""
    digits = format(Decimal(str(number)), "f").replace(".", "")
    return int(digits.strip("0") or "1")


def _is_number(value: Any) -> bool:
    """One that floats can hold, as llguidance does."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _are_types(value: Any) -> bool:
    types = [value] if isinstance(value, str) else value
    return _are_texts(types) and bool(types) and TYPES.issuperset(types)


def _are_names(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_are_texts, value.values()))


# What must stand there, and how that is told.
FORMS: Mapping[Holds, tuple[str, Callable[[Any], bool]]] = {
    "schema": ("a schema", lambda _: True),  # which the reader of schemas says
    "schemas": ("a list of schemas", lambda value: isinstance(value, list)),
    "members": ("an object of schemas", lambda value: isinstance(value, dict)),
    "reference": ("a text", lambda value: isinstance(value, str)),
    "count": ("a whole number, zero or more", _is_count),
    "number": ("a number", _is_number),
    "divisor": ("a number above zero", lambda value: _is_number(value) and value > 0),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "text": ("a text", lambda value: isinstance(value, str)),
    "texts": ("a list of texts", _are_texts),
    "names": ("an object of lists of texts", _are_names),
    "types": (f"one of {', '.join(sorted(TYPES))}, or a list of them", _are_types),
    "values": ("a list", lambda value: isinstance(value, list)),
    "value": ("a value", lambda _: True),
}
