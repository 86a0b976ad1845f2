"""Plain data to structs, with errors that give the exact path and what was probably meant.

msgspec stops at the first error of a document and can't say which key of a mapping it was in. So
the tree is walked here and msgspec judges the leaves.
"""

from typing import TypeVar

import msgspec

from config.errors import Source, suggestion
from config.shape import Kind, is_section, list_item, mapping_item, options, words

T = TypeVar("T")


def convert(
    data: object, kind: type[T], source: Source, *, path: str = "$", strict: bool = True
) -> T:
    """`data` as a `kind`. Not `strict`: texts may stand for numbers, as in the environment.

    Raises ConfigError for unknown and missing options and for values of the wrong type.
    """
    _check(data, kind, source, path, strict=strict)
    return msgspec.convert(data, kind, strict=strict)


def _check(data: object, kind: Kind, source: Source, path: str, *, strict: bool) -> None:
    if is_section(kind):
        if not isinstance(data, kind):  # what a program hands in may be built already
            _check_section(data, kind, source, path, strict=strict)
    elif (item := list_item(kind)) is not None:
        if not isinstance(data, list | tuple):
            raise source.error(path, f"expected a list, got {_named(data)}")
        for index, value in enumerate(data):
            _check(value, item, source, f"{path}[{index}]", strict=strict)
    elif (item := mapping_item(kind)) is not None:
        for name, value in _entries(data, source, path).items():
            _check(value, item, source, f"{path}.{name}", strict=strict)
    else:
        _check_leaf(data, kind, source, path, strict=strict)


def _check_section(
    data: object, section: type[msgspec.Struct], source: Source, path: str, *, strict: bool
) -> None:
    known = options(section)
    entries = _entries(data, source, path)
    for name in entries.keys() - known.keys():
        raise source.error(f"{path}.{name}", f"unknown option; {suggestion(name, known)}")
    for field in msgspec.structs.fields(section):
        if field.required and field.name not in entries:
            raise source.error(path, f"the option {field.name!r} is missing")
    for name, value in entries.items():
        _check(value, known[name], source, f"{path}.{name}", strict=strict)


def _check_leaf(data: object, kind: Kind, source: Source, path: str, *, strict: bool) -> None:
    try:
        msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        if isinstance(data, str) and (known := words(kind)):
            raise source.error(path, f"{data!r} is no choice; {suggestion(data, known)}") from None
        problem = str(error).partition(" - at ")[0].replace("`", "").replace("null", "nothing")
        raise source.error(path, problem[0].lower() + problem[1:]) from None


def _entries(data: object, source: Source, path: str) -> dict[str, object]:
    if not isinstance(data, dict):
        raise source.error(path, f"expected options by name, got {_named(data)}")
    for name in data:
        if not isinstance(name, str):
            raise source.error(path, f"expected a name, got {name!r} (put it in quotes)")
    return data


def _named(data: object) -> str:
    """Its name in an error message."""
    match data:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case dict():
            return "options by name"
        case _:
            return "a list"
