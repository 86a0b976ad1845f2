"""The nearest grammar that llguidance can compile to what was read of a schema.

llguidance says only that something is wrong, so what it can't take is looked for: the smallest part
that it refuses alone, and there the keyword without which it doesn't. It is dropped, named, and the
whole is tried again. Dropping only ever lets the grammar allow more.
"""

import time
from collections.abc import Iterator
from typing import Any, TypeAlias

from gateway.constraints.grammars import Entry, Relaxation, brief, fault
from gateway.constraints.keywords import KEYWORDS
from gateway.constraints.reading import Schema
from gateway.errors import InvalidRequest

Carried: TypeAlias = dict[str, Any] | bool
Note: TypeAlias = tuple[str, Relaxation]  # with the definition it stands in; "": the root

# What models write: `{"a": 1, "b": [2, 3]}`, or the same without the spaces. White space elsewhere
# is none, so a model can't write it for ever, and keys are forced.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
UNSATISFIABLE = "Unsatisfiable schema"
TOO_LARGE = ("too large", "too big", "fuel", "limit exceeded", "level exceeded")
SEARCH_SECONDS = 0.5  # of processor time; hundreds of tries for what clients send


def schema_entry(schema: Carried, name: str = "") -> Entry:
    """Llguidance's entry for `schema`."""
    node = schema if isinstance(schema, dict) else {}
    return {"name": name, "json_schema": {**node, "x-guidance": LAYOUT}}


def relaxed(schema: Schema, field: str) -> tuple[Carried, tuple[Relaxation, ...]]:
    """What of `schema` llguidance can carry, and all that it can't.

    Raises InvalidRequest where it allows nothing, or is too intricate to be looked through.
    """
    notes = list(schema.notes)
    if schema.carried is False:
        raise InvalidRequest(f"{field}: no JSON satisfies it.", param=field)
    if isinstance(schema.carried, dict):
        notes += _Search(schema, schema.carried, field).notes()
    reached = _reached(schema.carried)
    return schema.carried, tuple(dict.fromkeys(note for owner, note in notes if owner in reached))


class _Search:
    """Drops from `root`, in place, what llguidance refuses."""

    def __init__(self, schema: Schema, root: dict[str, Any], field: str) -> None:
        self.root = root
        self.origins = schema.origins
        self.field = field
        self.definitions: dict[str, Any] = root.get("$defs", {})
        self.until = time.thread_time() + SEARCH_SECONDS

    def notes(self) -> Iterator[Note]:
        """Each thing dropped, until llguidance takes what is left."""
        while message := self._refusal(self.root):
            if message.startswith(UNSATISFIABLE):
                raise self._error(f"no JSON satisfies it: {brief(message)}")
            if time.thread_time() > self.until or any(words in message for words in TOO_LARGE):
                raise self._error(f"too intricate: {brief(message)}")
            yield from self._relax(self._culprit(self.root, set()))

    def _error(self, message: str) -> InvalidRequest:
        return InvalidRequest(f"{self.field}: {message}", param=self.field)

    def _refusal(self, node: dict[str, Any]) -> str | None:
        """Why llguidance doesn't take `node` alone, with all definitions."""
        return fault((schema_entry({**node, "$defs": self.definitions}),))

    def _at_fault(self, node: dict[str, Any]) -> bool:
        """What nothing satisfies is right for a part: it may be left out."""
        message = self._refusal(node)
        return message is not None and not message.startswith(UNSATISFIABLE)

    def _culprit(self, node: dict[str, Any], seen: set[int]) -> dict[str, Any]:
        """The smallest part of `node` that is refused while all its own parts are taken."""
        for part in parts(node, self.definitions):
            if id(part) not in seen and time.thread_time() < self.until:
                seen.add(id(part))
                if self._at_fault(part):
                    return self._culprit(part, seen)
        return node

    def _relax(self, node: dict[str, Any]) -> Iterator[Note]:
        """Without the first keyword whose lack suffices, or without several."""
        present = [keyword for keyword in KEYWORDS if keyword in node]
        enough = (each for each in present if not self._at_fault(without(node, each)))
        dropped = next(enough, None)
        for keyword in present if dropped is None else [dropped]:
            less = without(node, keyword)
            yield self._dropped(node, keyword)
            node.clear()
            node.update(less)
            if not self._at_fault(node):
                return

    def _dropped(self, node: dict[str, Any], keyword: str) -> Note:
        """What is said of it. A regex that llguidance lacks the check lacks too."""
        origin, row = self.origins[id(node)], KEYWORDS[keyword]
        usable = keyword != "pattern" or self._usable(node["pattern"])
        if not usable and origin.plain:
            origin.check.pop("pattern", None)
        note = Relaxation(origin.place, keyword, row.became, checked=row.checked and usable)
        return origin.owner, note

    def _usable(self, pattern: str) -> bool:
        return not self._at_fault({"type": "string", "pattern": pattern})


def without(node: dict[str, Any], keyword: str) -> dict[str, Any]:
    """The nearest to `node` that doesn't have `keyword`."""
    gone = {keyword, *KEYWORDS[keyword].opens}
    less = {key: value for key, value in node.items() if key not in gone}
    if keyword == "oneOf":
        less["allOf"] = [*less.get("allOf", ()), {"anyOf": node["oneOf"]}]
    return less


def parts(node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas in `node`, and the one it refers to."""
    for key, value in node.items():
        match KEYWORDS[key].holds if key in KEYWORDS else None:
            case "schema":
                inside = [value]
            case "schemas":
                inside = value
            case "members":
                inside = list(value.values())
            case "reference":
                inside = [definitions[value.removeprefix("#/$defs/")]]
            case _:
                inside = []
        yield from (part for part in inside if isinstance(part, dict))


def _reached(carried: Carried) -> set[str]:
    """The definitions that a text can come to; "" is the root."""
    if isinstance(carried, bool):
        return {""}
    definitions = carried.get("$defs", {})
    names = {id(node): name for name, node in definitions.items()}
    reached, stack, seen = {""}, [carried], set[int]()
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            reached.add(names.get(id(node), ""))
            stack += parts(node, definitions)
    return reached
