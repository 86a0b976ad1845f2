"""Values written into texts by a chat template: `%`, `format`, `~` and JSON, metered and traced."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.sandbox import SandboxedFormatter

from gateway.prompt.metering import meter
from gateway.prompt.operations import (
    PIECE,
    bounded,
    shown,
)
from gateway.prompt.traced import clients, is_traced, joined, plain

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
