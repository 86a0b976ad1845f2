"""The check of a finished answer against its whole schema, for what the grammar doesn't carry.

By `jsonschema`, whose keywords that take more than linear time are ours here: regexes (Python's
`re` backtracks without an end, and lets no other thread run), unique items, further properties.
Schema and answer may both be hostile, so work is counted, and what takes too much of it ends
unchecked. It belongs into a worker thread; nothing is fetched.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator, ValidationError, validators
from referencing import Registry

from gateway.constraints.grammars import Check, Pattern, UnusablePattern
from gateway.constraints.keywords import FORMATS
from gateway.constraints.reading import path

WORK = 500_000  # units; a keyword asked of a small value is one
SECONDS = 1.0  # of processor time
SIZE = 16  # so many characters or values cost a unit: a message may show them all

FURTHER = frozenset(("additionalProperties", "unevaluatedProperties"))
OF_OBJECTS = FURTHER | {"patternProperties"}

Errors: TypeAlias = Iterable[ValidationError]
Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Errors | None]


class _GivenUp(Exception):
    """Too much work."""


class _NameRepeated(Exception):
    """An object has a name twice, which no grammar of free names prevents, and of which parsers
    keep one value.
    """


def fault_of(check: Check, text: str, work: int = WORK) -> str | None:
    """How `text` misses its schema, or why that can't be decided in so many units of work; None
    where it satisfies it.
    """
    try:
        error = next(_Run(check, work).validator().iter_errors(_decoded(text)), None)
    except json.JSONDecodeError:
        return "not JSON"
    except _NameRepeated as repeated:
        return f"the name {repeated.args[0]!r:.100} comes twice in an object"
    except RecursionError:
        return unchecked("nested too deeply")
    except (OverflowError, ValueError):
        return unchecked("half a surrogate pair, or a number out of range")
    except (_GivenUp, UnusablePattern) as reason:
        return unchecked(reason)
    if error is None:
        return None
    keyword = error.validator or "false"
    return f'{path(error.absolute_path)}: "{keyword}" is not satisfied'


def unchecked(why: object) -> str:
    """What is said of an answer whose check was given up."""
    return f"not checked: {why}"


def _decoded(text: str) -> Any:
    """The value. A number that floats don't hold is infinite, as a client's parser has it."""

    def refuse(constant: str) -> Any:
        raise json.JSONDecodeError(f"{constant} is not JSON", text, 0)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=_members)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _NameRepeated(name)
    return members


class _Run:
    """One check: the work it has done, and the keywords that count it."""

    def __init__(self, check: Check, work: int) -> None:
        self.schema = schema = check.schema
        definitions = schema.get("$defs", {}) if isinstance(schema, Mapping) else {}
        self.definitions: Mapping[str, Any] = definitions
        self.left = work
        self.until = time.thread_time() + SECONDS
        self.patterns: dict[tuple[str, str], Pattern] = {}
        self.sizes: dict[int, int] = {}

    def validator(self) -> Any:
        ours: dict[str, Keyword] = {
            "$ref": self._ref,
            "additionalProperties": self._additional_properties,
            "format": self._format,
            "multipleOf": self._multiple_of,
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "unevaluatedProperties": self._unevaluated_properties,
            "uniqueItems": self._unique_items,
        }
        keywords = {**Draft202012Validator.VALIDATORS, **ours}
        counted = {name: self._counted(name, keyword) for name, keyword in keywords.items()}
        made: Any = validators.extend
        return made(Draft202012Validator, counted)(self.schema, registry=Registry())

    def _counted(self, name: str, keyword: Keyword) -> Keyword:
        def asked(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
            self._spend(1 + self._size(instance) // SIZE)
            if name in OF_OBJECTS and not isinstance(instance, dict):
                return ()
            return keyword(validator, value, instance, schema) or ()

        return asked

    def _spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0 or time.thread_time() > self.until:
            raise _GivenUp("the check takes too long")

    def _size(self, value: Any) -> int:
        """Characters and values in it, all levels counted."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in self.sizes:
            inside = (*value, *value.values()) if isinstance(value, dict) else value
            self.sizes[id(value)] = 1 + sum(map(self._size, inside))
        return self.sizes[id(value)]

    def _found(self, pattern: str, text: str, format: str = "") -> bool:
        """Where a regex is made anew, it costs as much as searching some thousand characters."""
        self._spend(1 + len(text) // SIZE)
        key = (pattern, format)
        if key not in self.patterns:
            self._spend(1_000)
            self.patterns[key] = Pattern(pattern, format)
        return self.patterns[key].found_in(text)

    def _ref(self, validator: Any, reference: str, instance: Any, schema: Any) -> Errors:
        return _errors(validator, instance, self._defined(reference))

    def _defined(self, reference: str) -> Any:
        return self.definitions[reference.removeprefix("#/$defs/")]

    def _pattern(self, validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
        if isinstance(instance, str) and not self._found(pattern, instance):
            yield ValidationError("doesn't match")

    def _format(self, validator: Any, format: str, instance: Any, schema: Any) -> Errors:
        """As the grammar has it; what it doesn't have is an annotation."""
        known = isinstance(instance, str) and format in FORMATS
        if known and not self._found("", instance, format):
            yield ValidationError("isn't of the format")

    def _multiple_of(self, validator: Any, divisor: float, instance: Any, schema: Any) -> Errors:
        """In decimals, as they are written: 0.3 is a multiple of 0.1."""
        if isinstance(instance, int | float) and not isinstance(instance, bool):
            quotient = Fraction(str(instance)) / Fraction(str(divisor))
            if quotient.denominator != 1:
                yield ValidationError("no multiple")

    def _unique_items(self, validator: Any, unique: Any, instance: Any, schema: Any) -> Errors:
        listed = instance if unique and isinstance(instance, list) else []
        if len(set(map(_hashable, listed))) < len(listed):
            yield ValidationError("items repeat")

    def _pattern_properties(
        self, validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
    ) -> Errors:
        for pattern, part in patterns.items():
            for name, value in instance.items():
                if self._found(pattern, name):
                    yield from _errors(validator, value, part, name)

    def _additional_properties(
        self, validator: Any, further: Any, instance: Any, schema: Mapping[str, Any]
    ) -> Errors:
        patterns = schema.get("patternProperties", {})
        for name, value in instance.items():
            known = name in schema.get("properties", {})
            if not known and not any(self._found(pattern, name) for pattern in patterns):
                yield from _errors(validator, value, further, name)

    def _unevaluated_properties(
        self, validator: Any, further: Any, instance: Any, schema: Mapping[str, Any]
    ) -> Errors:
        beside = {key: part for key, part in schema.items() if key != "unevaluatedProperties"}
        known = self._evaluated(validator, instance, beside)
        for name in instance.keys() - known:
            yield from _errors(validator, instance[name], further, name)

    def _evaluated(self, validator: Any, instance: dict[str, Any], schema: Any) -> set[str]:
        """The properties that something in `schema` speaks of (2020-12, core, 11.3)."""
        self._spend(1 + len(instance))
        if not isinstance(schema, Mapping):
            return set()
        names = {name for name in instance if self._spoken_of(name, schema)}
        for part in self._in_place(validator, instance, schema):
            if next(iter(_errors(validator, instance, part)), None) is None:
                names |= self._evaluated(validator, instance, part)
        return names

    def _spoken_of(self, name: str, schema: Mapping[str, Any]) -> bool:
        if name in schema.get("properties", {}) or FURTHER & schema.keys():
            return True
        return any(self._found(pattern, name) for pattern in schema.get("patternProperties", ()))

    def _in_place(
        self, validator: Any, instance: dict[str, Any], schema: Mapping[str, Any]
    ) -> Iterator[Any]:
        """The schemas in `schema` that speak of the same value."""
        for key in ("allOf", "anyOf", "oneOf"):
            yield from schema.get(key, ())
        if "$ref" in schema:
            yield self._defined(schema["$ref"])
        dependent = schema.get("dependentSchemas", {})
        yield from (part for name, part in dependent.items() if name in instance)
        if "if" in schema:
            holds = next(iter(_errors(validator, instance, schema["if"])), None) is None
            yield schema["if"]
            yield schema.get("then" if holds else "else", True)


def _errors(validator: Any, instance: Any, schema: Any, name: str | None = None) -> Errors:
    """What is wrong with `instance`, the member `name` of what is being checked."""
    if schema is False:
        return [ValidationError("not allowed", path=[] if name is None else [name])]
    errors: Errors = validator.descend(instance, schema, path=name)
    return errors


def _hashable(value: Any) -> Any:
    """Equal where JSON Schema has them equal: 1 and 1.0 are, 1 and true are not."""
    match value:
        case bool():
            return (bool, value)
        case list():
            return (list, *map(_hashable, value))
        case dict():
            return (dict, frozenset((name, _hashable(each)) for name, each in value.items()))
        case _:
            return value
