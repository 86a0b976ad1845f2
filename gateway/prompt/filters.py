"""Jinja's filters and tests for chat templates: metered, and with the origin of texts kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.runtime import Context, Undefined
from jinja2.tests import TESTS as DEFAULT_TESTS
from jinja2.utils import _PassArg, pass_context
from markupsafe import Markup

from gateway.prompt.metering import meter
from gateway.prompt.operations import (
    PIECE,
    TEXT_METHODS,
    Operation,
    bounded,
    center,
    percent,
    replaced,
    shown,
    stripped,
    text_join,
    tojson,
)
from gateway.prompt.traced import clients, is_traced, joined, plain

MAX_SLOW = 20_000  # characters for what may take quadratic time


def _text(value: Any) -> str:
    return shown(value) if not isinstance(value, Undefined) else str(value)


def _indent(
    text: Any,
    width: Any = 4,
    first: bool = False,  # noqa: FBT001, FBT002 - the order is Jinja's
    blank: bool = False,  # noqa: FBT001, FBT002
) -> str:
    step = width if isinstance(width, str) else " " * max(0, bounded(width))
    lines = TEXT_METHODS["splitlines"](_text(text) + "\n")
    meter().grow(len(lines) * len(step) * 4)
    kept = [
        joined((step, line)) if (line or blank) and number else line
        for number, line in enumerate(lines)
    ]
    body = joined(kept, "\n")
    return joined((step, body)) if first else body


@pass_context
def _join(context: Context, items: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        items = context.environment.call_filter(
            "map", items, kwargs={"attribute": attribute}, context=context
        )
    if isinstance(items, str):
        meter().grow(PIECE * len(items))
    texts = [_text(item) for item in meter().each(items, 1)]
    return text_join(_text(d), texts)


def _format(form: Any, *args: Any, **named: Any) -> str:
    if args and named:
        raise TypeError("a format takes values by place or by name, not both")
    return percent(_text(form), named or args)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replaced(_text(text), _text(old), _text(new), -1 if count is None else count)


def _trim(text: Any, chars: str | None = None) -> str:
    made: str = stripped(left=True, right=True)(_text(text), chars)
    return made


@pass_context
def _sum(context: Context, items: Any, attribute: Any = None, start: Any = 0) -> Any:
    if attribute is not None:
        items = context.environment.call_filter(
            "map", items, kwargs={"attribute": attribute}, context=context
        )
    total = start
    for item in meter().each(items, 1):
        if isinstance(item, str) or isinstance(total, str):
            raise TypeError("texts are joined, not summed")
        if isinstance(total, list | tuple):
            total = meter().joined_lists(total, item)
        else:
            total = meter().made(total + item)
    return total


def _batch(items: Any, linecount: Any, fill_with: Any = None) -> Any:
    return list(_JINJA["batch"](items, bounded(linecount), fill_with))


def _slice(items: Any, slices: Any, fill_with: Any = None) -> Any:
    return list(_JINJA["slice"](items, bounded(slices), fill_with))


def _round(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    if abs(int(precision)) > 100:
        raise TemplateError("the template rounds to too many places")
    return _JINJA["round"](value, int(precision), method)


def _center_filter(text: Any, width: Any = 80) -> str:
    return center(_text(text), width)


def _cased(name: str) -> Operation:
    change = TEXT_METHODS[name]

    def changed(text: Any) -> Any:
        return change(_text(text))

    return changed


def _same(value: Any) -> Any:
    """Nothing is escaped here, so what is marked as safe is a text like others."""
    return value


_JINJA: Mapping[str, Operation] = DEFAULT_FILTERS

_OWN: Mapping[str, Operation] = {
    "string": _text,
    "safe": _same,
    "trim": _trim,
    "replace": _replace,
    "join": _join,
    "indent": _indent,
    "format": _format,
    "tojson": tojson,
    "sum": _sum,
    "batch": _batch,
    "slice": _slice,
    "round": _round,
    "center": _center_filter,
    "upper": _cased("upper"),
    "lower": _cased("lower"),
    "capitalize": _cased("capitalize"),
}
# What they give was in what they got, so its origin is known.
_PASSING = frozenset(
    (
        *("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int"),
        *("items", "last", "length", "list", "map", "max", "min", "random", "reject"),
        *("rejectattr", "reverse", "select", "selectattr", "sort", "truncate", "unique"),
    )
)
_CHEAP = frozenset(
    ("abs", "attr", "count", "d", "default", "first", "float", "int", "items", "last", "length")
)
_LISTING = frozenset(("batch", "list", "slice", "sort", "unique"))
_COMPARING = frozenset(
    (
        *("in", "eq", "==", "equalto", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt"),
        *("greaterthan", ">", "ge", ">="),
    )
)
_SLOW = frozenset(("pprint", "striptags", "urlize", "wordwrap", "xmlattr", "filesizeformat"))


def _metered(name: str, function: Operation) -> Operation:
    """The filter, charged for what it goes through and for what it makes."""
    unplaced = name not in _OWN and name not in _PASSING

    @pass_context
    def run(context: Context, *args: Any, **named: Any) -> Any:
        given = (*args, *named.values())
        _charge(name, given)
        result = meter().made(function(*_passed(function, context), *args, **named))
        if isinstance(result, Markup):
            result = plain(result)
        if unplaced and isinstance(result, str) and any(map(is_traced, given)):
            return clients(result)
        return result

    return run


def _charge(name: str, given: Sequence[Any]) -> None:
    charged = meter()
    charged.step()
    if name not in _CHEAP:
        for value in given:
            charged.walk(value)
    if name in _SLOW and sum(map(charged.weight, given)) > MAX_SLOW:
        raise TemplateError(f"the filter {name} takes {MAX_SLOW} characters at most")
    unplaced = name not in _OWN and name not in _PASSING
    if unplaced or name in _LISTING:  # one piece of each character, at the worst
        charged.grow(PIECE * sum(len(value) for value in given if isinstance(value, str)))


def _passed(function: Operation, context: Context) -> tuple[Any, ...]:
    """What Jinja hands to `function` before its values."""
    match _PassArg.from_obj(function):
        case _PassArg.context:
            return (context,)
        case _PassArg.eval_context:
            return (context.eval_ctx,)
        case _PassArg.environment:
            return (context.environment,)
    return ()


def metered_filters() -> dict[str, Operation]:
    """All of Jinja's filters, ours in place of those that make texts."""
    functions = {**DEFAULT_FILTERS, **_OWN}
    return {name: _metered(name, function) for name, function in functions.items()}


def metered_tests() -> dict[str, Operation]:
    """All of Jinja's tests."""
    tests: Mapping[str, Any] = DEFAULT_TESTS
    return {name: _metered_test(name, function) for name, function in tests.items()}


def _metered_test(name: str, function: Operation) -> Operation:
    @pass_context
    def run(context: Context, *args: Any) -> bool:
        meter().step()
        if name in _COMPARING:
            for value in args:
                meter().walk(value)
        return bool(function(*_passed(function, context), *args))

    return run
