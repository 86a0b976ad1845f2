"""What a chat template may do with texts: str's methods and Jinja's filters, metered, and with the
origin of each character kept (see `metering` and `traced`).

The tables are closed: a method that stands in none of them is out of a template's reach.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedFormatter
from jinja2.tests import TESTS as DEFAULT_TESTS
from jinja2.utils import _PassArg, pass_context
from markupsafe import Markup

from gateway.prompt import traced as origin
from gateway.prompt.metering import meter
from gateway.prompt.traced import clients, is_traced, joined, plain

MAX_WIDTH = 10_000  # of a padded field, an indentation, a batch; decimal places
MAX_SLOW = 20_000  # characters for what may take quadratic time
PIECE = 96  # bytes of a short text in a list
_SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
MAX_FORM = 1_000  # characters of a date's format

Operation = Callable[..., Any]


def bounded(value: Any) -> int:
    """A number of characters or items that a template names. Raises TemplateError."""
    number = int(value)
    if abs(number) > MAX_WIDTH:
        raise TemplateError(f"the template asks for a width of more than {MAX_WIDTH}")
    return number


def shown(value: Any) -> str:
    """`value` as it is printed."""
    if isinstance(value, str):
        return plain(value) if isinstance(value, Markup) else value
    size = meter().weight(value)
    meter().grow(2 * size)
    text = str(value)
    return clients(text) if is_traced(value) else text


# ------------------------------------------------------------------------------------ str's methods


def _bare(method: Operation) -> Operation:
    """A method that makes no text: where something is, whether it is there."""

    def run(text: str, *args: Any) -> Any:
        return method(text, *args)

    return run


def _splitting(method: Operation, breaks: str) -> Operation:
    """One that makes a list of pieces, charged before it is there. `breaks`: the characters it
    splits at where no separator is given.
    """

    def run(text: str, *args: Any, **named: Any) -> Any:
        given = (*args, *named.values())
        at = [arg for arg in given if isinstance(arg, str)] or breaks
        meter().grow(PIECE * sum(str.count(text, one) for one in at))
        return method(text, *args, **named)

    return run


def _backwards(method: Operation) -> Operation:
    """One that CPython searches from the end, in time that grows with both lengths."""

    def run(text: str, *args: Any, **named: Any) -> Any:
        for sought in (*args, *named.values()):
            if isinstance(sought, str):
                meter().step(len(text) * len(sought) >> 8)
        return method(text, *args, **named)

    return run


def _stripped(*, left: bool, right: bool) -> Operation:
    def run(text: str, characters: str | None = None) -> str:
        meter().step(len(text) * len(characters or "") >> 8)
        return origin.stripped(text, characters, left=left, right=right)

    return run


def _padded(text: str, size: Any, fill: str, *, left: bool, right: bool) -> str:
    missing = max(0, bounded(size) - len(text)) if left != right else 0
    return joined((fill * missing if left else "", text, fill * missing if right else ""))


def _ljust(text: str, size: Any, fill: str = " ") -> str:
    return _padded(text, size, fill, left=False, right=True)


def _rjust(text: str, size: Any, fill: str = " ") -> str:
    return _padded(text, size, fill, left=True, right=False)


def _center(text: str, size: Any = 80, fill: str = " ") -> str:
    missing = max(0, bounded(size) - len(text))
    before = missing // 2 + (missing & int(size) & 1)  # as CPython rounds
    return joined((fill * before, text, fill * (missing - before)))


def _zfill(text: str, size: Any) -> str:
    result = str.zfill(text, bounded(size))
    return clients(result) if is_traced(text) else result


def _expandtabs(text: str, tabsize: Any = 8) -> str:
    size = max(0, bounded(tabsize))
    meter().grow(str.count(text, "\t") * size)
    result = str.expandtabs(text, size)
    return clients(result) if is_traced(text) else result


def _removeprefix(text: str, prefix: str) -> str:
    return text.removeprefix(prefix)


def _removesuffix(text: str, suffix: str) -> str:
    return text[: len(text) - len(suffix)] if suffix and text.endswith(suffix) else text


def replaced(text: str, old: str, new: str, count: int = -1) -> str:
    """As `str.replace`."""
    places = str.count(text, old)
    meter().grow((places if count < 0 else min(places, count)) * len(new) * 4)
    return origin.replaced(text, old, new, count)


def text_join(separator: str, items: Iterable[Any]) -> str:
    """As `str.join`."""
    if isinstance(items, str):
        meter().grow(PIECE * len(items))
    texts = list(meter().each(items, 1))
    if any(not isinstance(text, str) for text in texts):
        raise TypeError("only texts can be joined")
    meter().grow(4 * len(separator) * len(texts))
    meter().grow(sum(map(len, texts)))
    return joined(texts, separator)


TEXT_METHODS: Mapping[str, Operation] = {
    **{
        name: origin.recased(getattr(str, name))
        for name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper")
    },
    **{
        name: _bare(getattr(str, name))
        for name in (
            *("count", "endswith", "find", "index", "startswith", "isalnum", "isalpha", "isascii"),
            *("isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable"),
            *("isspace", "istitle", "isupper"),
        )
    },
    "rfind": _backwards(str.rfind),
    "rindex": _backwards(str.rindex),
    "split": _splitting(origin.split, _SPACES),
    "rsplit": _backwards(_splitting(origin.rsplit, _SPACES)),
    "splitlines": _splitting(origin.splitlines, _LINE_ENDS),
    "partition": origin.partition,
    "rpartition": _backwards(origin.rpartition),
    "strip": _stripped(left=True, right=True),
    "lstrip": _stripped(left=True, right=False),
    "rstrip": _stripped(left=False, right=True),
    "removeprefix": _removeprefix,
    "removesuffix": _removesuffix,
    "replace": replaced,
    "join": text_join,
    "center": _center,
    "ljust": _ljust,
    "rjust": _rjust,
    "zfill": _zfill,
    "expandtabs": _expandtabs,
}


def call_method(text: str, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """`text.name(*args)`, for a name of `TEXT_METHODS`."""
    meter().step(1 + (len(text) >> 10))
    return TEXT_METHODS[name](text, *args, **named)


# --------------------------------------------------------------------------------------- formatting

_DIGITS = re.compile(r"\d+")
_CONVERSION = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<flags>[#0\- +]*)(?P<width>\d*)(?:\.(?P<places>\d*))?"
    r"[hlL]?(?P<kind>[diouxXeEfFgGcrsa%])"
)


class _Format(SandboxedFormatter):
    """As `str.format`, with fields looked up by the sandbox."""

    def pieces(self, form: str, args: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
        number = 0
        found: list[str] = []
        for literal, field, spec, conversion in self.parse(form):
            found.append(clients(literal) if is_traced(form) else literal)
            if field is None:
                continue
            by_place = field[:1] in ("", ".", "[")
            value, _ = self.get_field(f"{number}{field}" if by_place else field, args, named)
            number += by_place
            if "{" in (spec or ""):
                raise TemplateError("a format within a format is more than a template needs")
            found.append(self._written(value, spec or "", conversion))
        return found

    def _written(self, value: Any, spec: str, conversion: str | None) -> str:
        for digits in _DIGITS.findall(spec):
            bounded(digits[:10])
        if conversion is not None:
            traced_value = is_traced(value)
            meter().grow(4 * meter().weight(value))
            value = self.convert_field(value, conversion)
            value = clients(value) if traced_value else value
        if not spec:
            return shown(value)
        result = format(plain(value) if isinstance(value, str) else value, spec)
        return clients(result) if is_traced(value) else result


def formatted(
    environment: Environment, form: str, args: Sequence[Any], named: Mapping[str, Any]
) -> str:
    """As `form.format(*args, **named)`."""
    meter().step(1 + (len(form) >> 4))
    meter().grow(2 * PIECE * str.count(form, "{"))
    pieces = _Format(environment).pieces(form, args, named)
    meter().grow(sum(map(len, pieces)))
    return joined(pieces)


def percent(form: str, values: Any) -> str:
    """As `form % values`. Widths are numbers, not stars."""
    meter().step(1 + (len(form) >> 4))
    meter().grow(2 * PIECE * str.count(form, "%"))
    rest = list(values) if isinstance(values, tuple) else [values]
    keyed = False
    pieces: list[str] = []
    at = 0
    for found in re.finditer("%", form):
        if found.start() < at:
            continue
        asked = _CONVERSION.match(form, found.start())
        if asked is None:
            raise TemplateError("the template uses a format that isn't known")
        pieces.append(form[at : found.start()])
        at = asked.end()
        if asked["kind"] == "%":
            pieces.append("%")
            continue
        if asked["key"] is not None:
            keyed, value = True, values[asked["key"]]
        elif rest:
            value = rest.pop(0)
        else:
            raise TypeError("not enough arguments for format string")
        pieces.append(_converted(asked, value))
    if rest and not keyed and not isinstance(values, Mapping):
        raise TypeError("not all arguments converted during string formatting")
    pieces.append(form[at:])
    meter().grow(sum(map(len, pieces)))
    return joined(pieces)


def _converted(asked: re.Match[str], value: Any) -> str:
    for digits in (asked["width"], asked["places"]):
        if digits:
            bounded(digits[:10])
    if asked["kind"] == "s" and not asked["width"] and asked["places"] is None:
        return shown(value)
    meter().grow(4 * meter().weight(value))
    places = "" if asked["places"] is None else f".{asked['places']}"
    bare = plain(value) if isinstance(value, str) else value
    result = f"%{asked['flags']}{asked['width']}{places}{asked['kind']}" % (bare,)
    return clients(result) if is_traced(value) else result


def concatenated(items: Iterable[Any]) -> str:
    """`a ~ b ~ c`."""
    texts = [shown(item) for item in items]
    meter().grow(sum(map(len, texts)))
    return joined(texts)


def tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the order is Hugging Face's
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as models were trained on it. Jinja's own filter escapes `<` and `&` for HTML."""
    if isinstance(indent, str):
        indent = plain(indent)
    step = indent if isinstance(indent, str) else " " * max(0, bounded(indent or 0))
    between = sum(map(len, separators)) if separators else 2
    size = meter().weight(value)
    # A text's characters become six at most; each item stands in a line of its own.
    meter().grow(size * 2 + (size >> 3) * (len(step) * 4 + between))
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    return clients(text) if is_traced(value) else text


# ------------------------------------------------------------------------------------------ filters


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
    made: str = _stripped(left=True, right=True)(_text(text), chars)
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
    return _center(_text(text), width)


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
