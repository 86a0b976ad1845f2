"""The structs read as a tree: sections hold options, lists and mappings hold items, leaves values.

Checking, the environment, paths and the schema all walk this one tree, so a new option is known to
each of them by being written in its struct.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from config.values import Unit

S = TypeVar("S", bound=msgspec.Struct)

Kind: TypeAlias = Any  # an annotation: a struct, `tuple[X, ...]`, `dict[str, X]` or a leaf's type
Option: TypeAlias = tuple[str, ...]  # the names on the way to an option: ("server", "port")


def is_section(kind: Kind) -> bool:
    """Whether options stand under it."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@cache
def options(section: type[msgspec.Struct]) -> Mapping[str, Kind]:
    """The names and kinds of what stands directly in `section`."""
    return {field.name: field.type for field in msgspec.structs.fields(section)}


def list_item(kind: Kind) -> Kind | None:
    """X of `tuple[X, ...]`."""
    return get_args(kind)[0] if _form(kind) is tuple else None


def mapping_item(kind: Kind) -> Kind | None:
    """X of `dict[str, X]`."""
    return get_args(kind)[1] if _form(kind) is dict else None


def mapping_name(kind: Kind) -> Kind:
    """X of `dict[X, …]`."""
    return get_args(kind)[0]


def mapping_in(kind: Kind) -> Kind | None:
    """`dict[str, X]`, where that is one of several kinds that a leaf may be."""
    return next((part for part in _parts(kind) if _form(part) is dict), None)


def leaves(section: type[msgspec.Struct], above: Option = ()) -> Iterator[tuple[Option, Kind]]:
    """Every option that holds a value and not further options, with its kind."""
    for name, kind in options(section).items():
        if is_section(kind):
            yield from leaves(kind, (*above, name))
        else:
            yield (*above, name), kind


def value_of(section: msgspec.Struct, option: Option) -> Any:
    """What the option is set to."""
    return attrgetter(".".join(option))(section)


def with_option(section: S, option: Option, value: object) -> S:
    """`section` with the option replaced, all the way down."""
    name, *below = option
    new = with_option(getattr(section, name), tuple(below), value) if below else value
    return msgspec.structs.replace(section, **{name: new})


def mapped(value: Any, kind: Kind, change: Callable[[Any, Kind, str], Any], path: str = "$") -> Any:
    """`value`, a `kind`, with each leaf as `change` makes it of that, its kind and its path."""
    if is_section(kind) and value is not None:  # an option of a model may be a section of comments
        below = options(kind)
        given = value if isinstance(value, Mapping) else {one: getattr(value, one) for one in below}
        parts = {
            name: mapped(part, below[name], change, f"{path}.{name}")
            for name, part in given.items()
        }
        # options of a model are not typed yet
        return parts if given is value else msgspec.structs.replace(value, **parts)
    if (item := list_item(kind)) is not None:
        return tuple(mapped(one, item, change, f"{path}[{k}]") for k, one in enumerate(value))
    if (item := mapping_item(kind)) is not None:
        return {name: mapped(one, item, change, f"{path}.{name}") for name, one in value.items()}
    return change(value, kind, path)


def words(kind: Kind) -> tuple[str, ...]:
    """The texts a leaf of literals may be, else nothing."""
    if _form(kind) is Literal:
        return tuple(word for word in get_args(kind) if isinstance(word, str))
    return tuple(word for part in _parts(kind) for word in words(part))


def takes_none(kind: Kind) -> bool:
    """Whether the option may be nothing."""
    return NoneType in types(kind)


def is_path(kind: Kind) -> bool:
    """Whether the leaf is a `PathText`."""
    return bool(marked(kind, "path"))


def hides(kind: Kind) -> bool:
    """Whether it is secret or may be, or such are its items."""
    item = list_item(kind) or mapping_item(mapping_in(kind) or kind)
    may_be = bool(marked(kind, "secret") or marked(kind, "hidden"))
    return may_be or (item is not None and hides(item))


def represented(section: msgspec.Struct) -> str:
    """A section's `repr`: all but what may be secret, since representations end in logs."""
    shown = (name for name, kind in options(type(section)).items() if not hides(kind))
    values = (f"{name}={getattr(section, name)!r}" for name in shown)
    return f"{type(section).__name__}({', '.join(values)})"


def unit_of(kind: Kind) -> Unit | None:
    """What the leaf's number counts, where it may be written with a unit."""
    unit: Unit | None = marked(kind, "unit")
    return unit


def is_configured_only(kind: Kind) -> bool:
    """Whether an option runs code or names files, and so comes from the configuration alone."""
    if is_section(kind):
        return any(map(is_configured_only, options(kind).values()))
    item = list_item(kind) or mapping_item(kind)
    apart = is_path(kind) or bool(marked(kind, "runs_code"))
    return apart or (item is not None and is_configured_only(item))


def said(kind: Kind, *names: str) -> Any:
    """What a leaf's annotation has in a `Meta`: the first of these names, or None."""
    marks = (getattr(mark, name) for mark in metas(kind) for name in names)
    return next((one for one in marks if one is not None), None)


def marked(kind: Kind, name: str) -> Any:
    """What a leaf's annotation has in `Meta(extra={name: …})`, or None."""
    extras = (mark.extra or {} for mark in metas(kind))
    return next((extra[name] for extra in extras if name in extra), None)


def metas(kind: Kind) -> tuple[msgspec.Meta, ...]:
    """All that a leaf's annotation says of its values."""
    own = get_args(kind)[1:] if _form(kind) is Annotated else ()
    below = (mark for part in _parts(kind) for mark in metas(part))
    return (*(mark for mark in own if isinstance(mark, msgspec.Meta)), *below)


def types(kind: Kind) -> frozenset[type]:
    """The plain types that a leaf may be: bool, int, float, str, tuple, dict, NoneType."""
    if isinstance(kind, type):
        return frozenset({kind})
    if _form(kind) is Literal:
        return frozenset(type(word) for word in get_args(kind))
    if (form := next((one for one in (tuple, dict) if _form(kind) is one), None)) is not None:
        return frozenset({form})
    return frozenset(plain for part in _parts(kind) for plain in types(part))


def _form(kind: Kind) -> object:
    """What stands before the brackets: `tuple` of `tuple[str, ...]`."""
    return get_origin(kind)


def _parts(kind: Kind) -> tuple[Kind, ...]:
    """The alternatives of a union, or what `Annotated` annotates."""
    if _form(kind) is Annotated:
        return (get_args(kind)[0],)
    is_leaf = _form(kind) in {None, Literal, tuple, dict}
    return () if is_leaf else get_args(kind)
