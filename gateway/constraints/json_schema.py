"""A client's JSON schema as a grammar: carried by llguidance as far as it can, relaxed to the
nearest that it can compile where it can't, and the whole of it for the check afterwards.

The grammar is made narrower than the schema where a small model would write to the end of its
context: numbers have bounded digits (`values`), and objects no properties but the listed ones
(`closed`).
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from backends.contract.conversation import JsonSchema
from gateway.constraints.effort import bounded, every, everywhere, inside, reached, referred
from gateway.constraints.grammars import (
    Check,
    CompileBudget,
    Entry,
    Relaxation,
    ShapeGrammar,
    brief,
    fault,
    runnable,
)
from gateway.constraints.keywords import KEYWORDS, relaxation, with_parts
from gateway.constraints.lark import GUIDANCE, GrammarTooLarge, Lark
from gateway.constraints.possible import ONE_OF, too_wide, without_endless
from gateway.constraints.reading import NodeOrigin, Schema, read
from gateway.constraints.schemas import SchemaReader
from gateway.constraints.values import AnswerJson, Unwritable, Values
from gateway.terms.errors import InvalidRequest

PART = "part-"  # before the name of a definition, as it is in other objects
CONDITIONS = ("if", "then", "else", "dependentSchemas")
CONSTANT = ("enum", "const")
# What an object says by itself, and not by being one of some schemas.
OWN = frozenset((
    "$ref", "allOf", "properties", "patternProperties", "additionalProperties", "required",
    "unevaluatedProperties", *CONDITIONS,
))  # fmt: skip


class CarriedSchema(msgspec.Struct, frozen=True):
    """What the grammar has of a client's schema. `relaxed`: what it doesn't carry. `closed`: the
    objects that have no further properties though their schema says nothing of them.
    """

    schema: dict[str, Any]
    relaxed: tuple[Relaxation, ...]
    closed: tuple[Relaxation, ...]
    check: Check


class _Closing:
    """`opened`, which was made of `schema`, with objects closed whose writer said nothing of
    further properties.

    JSON Schema lets such an object have any others; who writes one means those that are listed, and
    a small model invents members to the end of its context. Closed are objects that list
    properties, where neither `additionalProperties` nor `unevaluatedProperties` allows more: in
    themselves, or in what holds in the same place (`allOf`, `$ref`, …). What only the check knows
    (`if`, `dependentSchemas`) counts as listed. A definition may be a value of its own and a part
    of another (`allOf` with a base), which must not close it: the grammar has it once as each.
    """

    def __init__(self, schema: Schema, opened: CarriedSchema) -> None:
        self._opened = opened
        self._origins = schema.origins
        self._definitions: Mapping[str, Any] = opened.schema.get("$defs", {})
        whole = schema.check if isinstance(schema.check, dict) else {}
        self._checked: Mapping[str, Any] = whole.get("$defs", {})
        self._named: set[str] = set()
        self._waiting: list[str] = []  # names of definitions, as the closed schema will have them
        self._notes: dict[Relaxation, None] = {}
        self._relaxed = dict.fromkeys(opened.relaxed)

    def closed(self) -> CarriedSchema:
        root = self._value(self._opened.schema)
        definitions = {}
        while self._waiting:
            name = self._waiting.pop()
            node = self._definitions[name.removeprefix(PART)]
            definitions[name] = self._part(node) if name.startswith(PART) else self._value(node)
        whole = {**root, "$defs": definitions} if definitions else root
        relaxed, notes = tuple(self._relaxed), tuple(self._notes)
        return CarriedSchema(whole, relaxed, notes, self._opened.check)

    def _value(self, node: Any) -> Any:
        """`node` where it says all that is said of a value."""
        if not isinstance(node, dict):
            return node
        says = OWN & self._origins[id(node)].check.keys()
        keywords = node.keys() - {"$defs"}
        if keywords == says == {"allOf"} and len(node["allOf"]) == 1 and node["allOf"] != [True]:
            return self._value(node["allOf"][0])
        if not says or keywords == {"$ref"}:
            return self._copied(node, whole=True)
        part, listed = self._part(node), self._listed(node)
        if not listed:
            return part
        properties = {name: part.get("properties", {}).get(name, True) for name in listed}
        return {**part, "properties": properties, "additionalProperties": False}

    def _part(self, node: Any) -> Any:
        """`node` where others say something of the same value, too."""
        return self._copied(node, whole=False) if isinstance(node, dict) else node

    def _copied(self, node: dict[str, Any], *, whole: bool) -> dict[str, Any]:
        """With the values inside closed, and what stands in the same place if that is `whole`."""
        here = self._value if whole else self._part
        made_of = {"allOf": self._part, **dict.fromkeys(ONE_OF, here)}
        made: dict[str, Any] = {
            key: with_parts(key, held, made_of.get(key, self._value))
            for key, held in node.items()
            if key in KEYWORDS
        }
        return made | ({"$ref": self._referred(node, whole=whole)} if "$ref" in node else {})

    def _referred(self, node: dict[str, Any], *, whole: bool) -> str:
        name = f"{'' if whole else PART}{referred(node)}"
        if name not in self._named:
            self._named.add(name)
            self._waiting.append(name)
        return f"#/$defs/{name}"

    def _listed(self, node: dict[str, Any]) -> list[str]:
        """The properties that `node` is to have no others than; none: it stays as it is."""
        origin = self._origins[id(node)]
        places = list(self._places(origin.check, set()))
        others = [each for each in places if each is not origin.check]
        names = dict.fromkeys(name for each in places for name in _names(each))
        fewest = max(each.get("minProperties", 0) for each in places)
        if (
            ("properties" in origin.check and "properties" not in node)  # it was too wide
            or "additionalProperties" in origin.check
            or not any("properties" in each for each in places)
            or any(_allows_more(each) for each in places)
            or any("patternProperties" in each for each in others)
            or fewest > len(names)
        ):
            return []
        if "unevaluatedProperties" not in origin.check:
            further = Relaxation(origin.place, "additionalProperties", "none", checked=False)
            self._notes[further] = None
        elif not any({*ONE_OF, *CONDITIONS} & each.keys() for each in places):
            self._relaxed.pop(relaxation(origin.place, "unevaluatedProperties"), None)
        return list(names)

    def _places(self, check: Any, seen: set[int]) -> Iterator[Mapping[str, Any]]:
        """The schemas, as the check has them, that hold where `check` does, in the order in which
        members are to be written.
        """
        if not isinstance(check, Mapping) or id(check) in seen:
            return
        seen.add(id(check))
        yielded = False
        for key in sorted(check, key=(*ONE_OF, *CONDITIONS).__contains__):
            if key == "properties":
                yielded = True
                yield check
            for part in self._held(check, key):
                yield from self._places(part, seen)
        if not yielded:
            yield check

    def _held(self, check: Mapping[str, Any], key: str) -> list[Any]:
        held: list[Any] = []
        if key == "$ref":
            held.append(self._checked[referred(check) or ""])
        elif key in ("allOf", *ONE_OF, *CONDITIONS):
            with_parts(key, check[key], held.append)
        return held


def _names(check: Mapping[str, Any]) -> Iterator[str]:
    yield from check.get("properties", ())
    yield from check.get("required", ())
    for name, others in check.get("dependentRequired", {}).items():
        yield from (name, *others)
    yield from check.get("dependentSchemas", ())


def _allows_more(check: Mapping[str, Any]) -> bool:
    """Its writer wants more than is listed, or a value that is written out."""
    further = (check.get(key, False) for key in ("additionalProperties", "unevaluatedProperties"))
    return any(each is not False for each in further) or not {*CONSTANT}.isdisjoint(check)


UNSATISFIABLE = "Unsatisfiable schema"
TEXT = frozenset(("pattern", "format", "minLength", "maxLength"))
TOO_LARGE = ("too large", "too big", "fuel", "limit exceeded", "level exceeded")


def schema_entry(schema: dict[str, Any], name: str = "") -> Entry:
    """Llguidance's entry for `schema`, in its own words."""
    return {"name": name, "json_schema": {**schema, "x-guidance": GUIDANCE}}


# What llguidance's words for numbers leave out.
PLAIN = Relaxation("$", "exponents", became="numbers without exponents where they are bounded")
BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))


def written_entry(
    schema: dict[str, Any], name: str, field: str
) -> tuple[Entry, tuple[Relaxation, ...]]:
    """The entry in our words; in llguidance's where ours are too many, and what these leave out."""
    lark = Lark({})
    try:
        start = Values(lark, AnswerJson(lark), SchemaReader(schema, exact=True)).of(schema)
        (entry,) = runnable(({"name": name, "lark_grammar": lark.written(start)},), field)
    except (GrammarTooLarge, Unwritable, InvalidRequest):
        limited = any(BOUNDS & each.keys() for each in everywhere(schema))
        return schema_entry(schema, name), (PLAIN,) if limited else ()
    return entry, ()


def relaxed(schema: Schema, field: str, allowance: CompileBudget) -> CarriedSchema:
    """What of `schema` llguidance can carry, and all that it can't.

    Raises InvalidRequest where it allows nothing, or takes too long.
    """
    carried = schema.carried
    if isinstance(carried, bool):
        raise InvalidRequest.at(field, "no JSON satisfies it.")
    if not without_endless(carried, allowance, field):
        raise InvalidRequest.at(field, "no JSON that has an end satisfies it.")
    bounded(carried, field)
    dropped = [*_narrowed(schema, carried)]
    names = (name for node in everywhere(carried) for name in node.get("properties", ()))
    # The grammar engine writes a name as it stands, but lets no string hold that unescaped.
    if any("\x7f" in name for name in names):
        raise InvalidRequest.at(field, "a property whose name holds U+007F can't be written.")
    dropped += _Search(schema.origins, carried, field, allowance).notes()
    left = set(map(id, reached(carried)))
    notes = (note for node, note in schema.notes if id(node) in left)
    return CarriedSchema(carried, tuple(dict.fromkeys((*notes, *dropped))), (), Check(schema.check))


def _narrowed(schema: Schema, carried: dict[str, Any]) -> Iterator[Relaxation]:
    """Drops, in place, what would have too many ways at one place."""
    for node, keyword in too_wide(carried):
        yield relaxation(schema.origins[id(node)].place, keyword)
        gone = {keyword, *KEYWORDS[keyword].opens}
        for key in gone & node.keys():
            del node[key]


class _Search(msgspec.Struct, eq=False):
    """Drops from `root`, in place, what llguidance refuses.

    llguidance reports only that something is wrong, so the cause is searched for: the smallest part
    that it refuses alone, and there the keyword without which it doesn't. It is dropped, named, and
    the whole is tried again. Dropping only ever lets the grammar allow more.
    """

    origins: Mapping[int, NodeOrigin]
    root: dict[str, Any]
    field: str
    allowance: CompileBudget
    seen: set[int] = set()

    def notes(self) -> Iterator[Relaxation]:
        """Each thing dropped, until llguidance takes what is left."""
        yield from self._texts()
        if (message := self._refusal(self.root)) is not None:
            if message.startswith(UNSATISFIABLE):
                raise InvalidRequest.at(self.field, f"no JSON satisfies it: {brief(message)}")
            if any(words in message for words in TOO_LARGE):
                raise InvalidRequest.at(self.field, f"too intricate: {brief(message)}")
            yield from self._mend(self.root)

    def _texts(self) -> Iterator[Relaxation]:
        """Regexes first, each alone: together they could take any time."""
        tried: dict[str, None] = {}
        for node in everywhere(self.root):
            if "pattern" in node or "format" in node:
                alone = {key: node[key] for key in sorted(TEXT & node.keys())}
                alone["type"] = "string"
                text = repr(alone)
                if text not in tried and not self._at_fault(alone):
                    tried[text] = None
                if text not in tried:
                    yield from self._relax(node)

    def _refusal(self, node: dict[str, Any]) -> str | None:
        """Why llguidance doesn't take `node` alone, with the definitions where it has any use for
        them.
        """
        self.allowance.check(self.field)
        refers = any("$ref" in each for each in every(node))
        whole = {**node, "$defs": self.root["$defs"]} if refers else node
        return fault((schema_entry(whole),))

    def _at_fault(self, node: dict[str, Any]) -> bool:
        """What nothing satisfies is right for a part: it may be left out."""
        message = self._refusal(node)
        return message is not None and not message.startswith(UNSATISFIABLE)

    def _mend(self, node: dict[str, Any]) -> Iterator[Relaxation]:
        """What is wrong in the parts of `node`, each alone; then what still is in it."""
        name = referred(node)
        parts = [*inside(node), *([self.root["$defs"][name]] if name is not None else [])]
        for part in parts:
            if isinstance(part, dict) and id(part) not in self.seen:
                self.seen.add(id(part))
                if self._at_fault(part):
                    yield from self._mend(part)
        yield from self._relax(node)

    def _relax(self, node: dict[str, Any]) -> Iterator[Relaxation]:
        """Drops keywords until it isn't refused: the one whose lack suffices, or several."""
        while self._at_fault(node):
            present = [keyword for keyword in KEYWORDS if keyword in node]
            enough = (each for each in present if not self._at_fault(without(node, each)))
            keyword = next(enough, present[0])
            less = without(node, keyword)
            yield self._dropped(node, keyword)
            node.clear()
            node.update(less)

    def _dropped(self, node: dict[str, Any], keyword: str) -> Relaxation:
        """The relaxation that is reported. A regex that llguidance lacks the check lacks too."""
        origin = self.origins[id(node)]
        alone = {"type": "string", "pattern": node.get("pattern")}
        usable = keyword != "pattern" or not self._at_fault(alone)
        if not usable and origin.plain:
            origin.check.pop("pattern", None)
        return relaxation(origin.place, keyword, usable=usable)


def without(node: dict[str, Any], keyword: str) -> dict[str, Any]:
    """The nearest to `node` that doesn't have `keyword`."""
    gone = {keyword, *KEYWORDS[keyword].opens}
    less = {key: value for key, value in node.items() if key not in gone}
    if keyword == "oneOf":
        less["allOf"] = [*less.get("allOf", ()), {"anyOf": node["oneOf"]}]
    return less


def carried_schema(shape: JsonSchema, allowance: CompileBudget | None = None) -> CarriedSchema:
    """Raises InvalidRequest, see `compiling.grammar_of`."""
    schema = read(shape.schema, shape.field)
    opened = relaxed(schema, shape.field, allowance or CompileBudget())
    made = _closed(schema, opened, shape.field)
    if shape.strict:
        _enforced(made.relaxed, shape.field)
    return made


def _closed(schema: Schema, opened: CarriedSchema, field: str) -> CarriedSchema:
    """Left open where it can't be had closed."""
    made = _Closing(schema, opened).closed()
    with suppress(InvalidRequest):
        bounded(made.schema, field)
        runnable((schema_entry(made.schema),), field)
        return made
    runnable((schema_entry(opened.schema),), field)
    return opened


def schema_grammar(shape: JsonSchema, name: str) -> ShapeGrammar:
    """Raises InvalidRequest, see `compiling.grammar_of`."""
    carried = carried_schema(shape)
    entry, lost = written_entry(carried.schema, name, shape.field)
    return ShapeGrammar(
        name=name,
        entries=(entry,),
        relaxed=(*carried.relaxed, *lost),
        closed=carried.closed,
        check=carried.check,
    )


def _enforced(relaxations: tuple[Relaxation, ...], field: str) -> None:
    """Raises InvalidRequest where there are any but lengths, which the check sees to."""
    for each in relaxations:
        if each.keyword in ("minLength", "maxLength"):
            continue
        message = f'{field}: {each.place}: "{each.keyword}" can\'t be enforced'
        raise InvalidRequest(f"{message}; strict: true asks for it.", param=field)
