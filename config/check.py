"""Plain data to structs, with errors that give the exact path and what was probably meant.

msgspec can't say which key of a mapping an error was in. So the tree is walked here and msgspec
judges the leaves.
"""

from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar

import msgspec

from config.errors import Source, suggestion
from config.settings import EnginesConfig
from config.shape import (
    Kind,
    is_section,
    leaves,
    list_item,
    mapping_in,
    mapping_item,
    mapping_name,
    options,
    said,
    types,
    unit_of,
    words,
)
from config.values import SPELLINGS, quantity

T = TypeVar("T")


def convert(
    data: object, kind: type[T], source: Source, *, path: str = "$", strict: bool = True
) -> T:
    """`data` as a `kind`. Not `strict`: texts may stand for numbers, as in the environment.

    Raises ConfigError for unknown and missing options and for values of the wrong type.
    """
    read: T = _Reader(source, strict).read(data, kind, path)
    return read


class _Reader(msgspec.Struct, frozen=True):
    """Reads the data of a source: all texts that have a unit become numbers."""

    source: Source
    strict: bool

    def read(self, data: object, kind: Kind, path: str) -> Any:
        """`data`, at `path`, as a `kind`. Raises ConfigError."""
        if is_section(kind):
            # None: all its lines are comments
            return self._section({} if data is None else data, kind, path)
        if (item := list_item(kind)) is not None:
            if not isinstance(data, list | tuple):
                raise self.source.error(path, f"expected a list, got {_named(data)}")
            return tuple(self.read(one, item, f"{path}[{k}]") for k, one in enumerate(data))
        if (item := mapping_item(kind)) is not None:
            key, entries = mapping_name(kind), self._entries(data, path)
            return {
                self._leaf(name, key, f"{path}.{name}"): self.read(one, item, f"{path}.{name}")
                for name, one in entries.items()
            }
        if isinstance(data, dict) and (mapping := mapping_in(kind)) is not None:
            return self.read(data, mapping, path)
        return self._leaf(data, kind, path)

    def _section(self, data: object, section: type[msgspec.Struct], path: str) -> Any:
        known = options(section)
        entries = self._entries(data, path)
        if path == "$":  # what anchors are written in
            entries = {name: one for name, one in entries.items() if not name.startswith("x-")}
        for name in entries:
            if name not in known:
                meant = suggestion(name, known, _below(section))
                raise self.source.error(f"{path}.{name}", f"unknown option; {meant}")
        read = {
            name: self.read(value, known[name], f"{path}.{name}") for name, value in entries.items()
        }
        for field in msgspec.structs.fields(section):
            if field.required and field.name not in read:
                raise self.source.error(path, f"the option {field.name!r} is missing")
        return section(**read)

    def _leaf(self, data: object, kind: Kind, path: str) -> Any:
        unit = unit_of(kind)
        if unit is not None and isinstance(data, str):
            number = quantity(data, unit)
            data = data if number is None else number
        try:
            return msgspec.convert(data, kind, strict=self.strict)
        except msgspec.ValidationError:
            raise self.source.error(path, _problem(data, kind)) from None

    def _entries(self, data: object, path: str) -> dict[str, object]:
        if not isinstance(data, dict):
            raise self.source.error(path, f"expected options by name, got {_named(data)}")
        for name in data:
            if not isinstance(name, str):
                raise self.source.error(path, f"expected a name, got {name!r} (put it in quotes)")
        return data


def _below(section: type[msgspec.Struct]) -> Mapping[str, str]:
    """Where options of other sections stand, by their names: of an engine below `options`."""
    found = {name: ".".join((*above, name)) for (*above, name), _ in leaves(section)}
    if "options" in found:
        engines = filter(is_section, options(EnginesConfig).values())
        found |= {name: f"options.{name}" for engine in engines for name in options(engine)}
    return found


YES, NO = ("yes", "on", "y"), ("no", "off", "n")
LONGEST = 40  # characters of a value that an error quotes
LARGEST = 10**6  # a greater limit is no limit of the option's, but of a 32 bit number


def _problem(data: object, kind: Kind) -> str:
    """What is wrong with a leaf, and what to write."""
    word, plain = str(data), types(kind)
    if mapping_in(kind) is not None and plain <= {dict, NoneType}:
        return f"expected options by name, got {_named(data)}"
    if isinstance(data, str) and (known := words(kind)):
        return f"{data!r} is not valid; {suggestion(data, known)}"
    if bool in plain and word.lower() in YES + NO:
        return f"expected true or false; write {'true' if word.lower() in YES else 'false'}"
    if str in plain:  # it may be a secret, so it isn't quoted
        quotes = "; put it in quotes" if isinstance(data, bool | int | float) else ""
        return f"expected a text{_form_of(kind)}, got {_named(data)}{quotes}"
    simple = isinstance(data, str | int | float) and not isinstance(data, bool)
    return f"expected {_expected(kind)}, got {repr(data)[:LONGEST] if simple else _named(data)}"


def _form_of(kind: Kind) -> str:
    """What a text must be, where the annotation says so."""
    pattern = said(kind, "pattern")
    return f" of the form {pattern}" if pattern else " that isn't empty"


def _expected(kind: Kind) -> str:
    if (unit := unit_of(kind)) is not None:
        return SPELLINGS[unit] + _range(kind)
    plain = types(kind)
    if bool in plain:
        return "true or false"
    return ("a number" if float in plain else "a whole number") + _range(kind)


def _range(kind: Kind) -> str:
    """` from 1 to 512`; a limit that only keeps a number in its type is left out."""
    least, above, most = (said(kind, name) for name in ("ge", "gt", "le"))
    if above is not None:
        return f" greater than {above:g}"
    if least is None:
        return ""
    return f" from {least} to {most}" if most and most < LARGEST else f" of at least {least:g}"


def _named(data: object) -> str:
    """Its name in an error message."""
    return _NAMES.get(type(data), "a list")


_NAMES: Mapping[type, str] = {
    NoneType: "nothing",
    bool: "true or false",
    str: "a text",
    int: "a number",
    float: "a number",
    dict: "options by name",
}
