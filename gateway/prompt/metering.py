"""The budget of one rendering of a chat template (steps, memory, processor time), and the text
operations that are charged to it.

A template comes with a model's files, so it is untrusted code. Everything in it that can repeat or
grow is charged here before or right after it happens, so that no single operation can be much
larger than what is left of the allowance. A method that isn't in `TEXT_METHODS` is out of a
template's reach; those that are keep the origin of each character (`gateway.prompt.traced`).
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2 import Environment, TemplateError
from jinja2.sandbox import SandboxedFormatter
from markupsafe import Markup

from gateway.prompt import traced as origin
from gateway.prompt.traced import joined, made_of, plain
from gateway.terms.tasks import Abandoned

MAX_STEPS = 50_000_000  # nodes of the template gone through in loops, and items read
MAX_BYTES = 256 << 20  # of all texts and lists made, together
MAX_SECONDS = 5.0  # of one processor
MAX_DEPTH = 128  # lists in lists
MAX_BITS = 4_096  # of a whole number
MAX_EXPONENT = 64

_BETWEEN = 4_096  # steps between two reads of the clock
_VIEWS: tuple[type, ...] = (type({}.values()), type({}.items()))
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, *_VIEWS)


class Allowance(NamedTuple):
    """How much a rendering may take."""

    steps: int = MAX_STEPS
    size: int = MAX_BYTES
    seconds: float = MAX_SECONDS


FULL = Allowance()
ANALYSIS = Allowance(steps=10_000_000, seconds=3.0)  # some thirty renderings of small chats
# What is rendered on the event loop: a small chat. More is done again, in a thread.
AT_ONCE = Allowance(steps=50_000, size=1 << 20, seconds=0.02)


class LimitExceeded(Exception):
    """A rendering took more than its allowance. Not to be tried again in another way."""


class _Weight(NamedTuple):
    """A list's size, as if everything in it were there once for each mention; how deep it is."""

    size: int
    height: int
    of: Any  # kept, so that nothing else gets its id


class Meter:
    """What is left of an allowance. `wanted()`: whether a caller still waits."""

    def __init__(
        self, allowance: Allowance = FULL, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        self._allowance = allowance
        self._wanted = wanted
        self._steps = allowance.steps
        self._size = allowance.size
        self._next_look = allowance.steps - _BETWEEN
        self._until = time.thread_time() + allowance.seconds
        self._weights: dict[int, _Weight] = {}

    def step(self, count: int = 1) -> None:
        """Raises LimitExceeded, and Abandoned where no caller waits any more."""
        self._steps -= count
        if self._steps < self._next_look:
            self._check_clock()

    def _check_clock(self) -> None:
        self._next_look = self._steps - _BETWEEN
        if self._steps < 0:
            raise LimitExceeded(f"it takes more than {self._allowance.steps} steps")
        if time.thread_time() > self._until:
            raise LimitExceeded(f"it takes more than {self._allowance.seconds:g} seconds")
        if not self._wanted():
            raise Abandoned

    def grow(self, size: int) -> None:
        """`size` bytes are made, or about to be. Raises LimitExceeded."""
        self._size -= size
        if self._size < 0:
            raise LimitExceeded(f"it makes more than {self._allowance.size >> 20 or 1} MiB of text")
        self.step(1 + (size >> 10))

    def each(self, items: Iterable[Any], steps: int) -> Iterable[Any]:
        """What a loop of so many steps a turn runs over. What has a length is charged at once."""
        if isinstance(items, Sized):
            self.step(len(items) * steps)
            self.grow(8 * len(items))
            return items
        return list(self._counted(items, steps))

    def _counted(self, items: Iterable[Any], steps: int) -> Iterator[Any]:
        for item in items:
            self.step(steps)
            self.grow(96)
            yield item

    def made(self, value: Any) -> Any:
        """`value`, charged as just made. Iterators become lists. Raises TemplateError for what no
        template needs.
        """
        if isinstance(value, str):
            self.grow(value.__sizeof__())
        elif isinstance(value, bool | float) or value is None:
            self.step()
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise TemplateError("the template computes with too large a number")
        elif isinstance(value, _CONTAINERS):
            if id(value) not in self._weights:
                self.grow(64 + 16 * _length(value))
                self._weigh(value, MAX_DEPTH)
        elif isinstance(value, bytes | bytearray):
            raise TemplateError("a template has no use for bytes")
        elif isinstance(value, Iterator):
            return self.made(list(self._counted(value, 1)))
        else:
            self.step()
        return value

    def weight(self, value: Any) -> int:
        """How long it takes to go through all of `value`: about its bytes when printed."""
        return self._weigh(value, MAX_DEPTH).size

    def height(self, value: Any) -> int:
        """How many lists are in one another in `value`."""
        return self._weigh(value, MAX_DEPTH).height

    def walk(self, value: Any) -> None:
        """Charged for going through all of `value` once, as comparing and sorting do."""
        if isinstance(value, str):
            self.step(1 + (len(value) >> 10))
        elif isinstance(value, _CONTAINERS):
            self.step(1 + (self.weight(value) >> 5))

    def joined_lists(self, left: Any, right: Any) -> Any:
        """`left + right`, weighed by what is known of both."""
        first, second = self._weigh(left, MAX_DEPTH), self._weigh(right, MAX_DEPTH)
        self.grow(64 + 8 * (len(left) + len(right)))
        both = left + right
        self._keep(both, first.size + second.size, max(first.height, second.height))
        return both

    def _weigh(self, value: Any, depth: int) -> _Weight:
        if isinstance(value, str):
            return _Weight(8 + len(value), 0, None)
        if not isinstance(value, _CONTAINERS):
            return _Weight(8, 0, None)
        if (known := self._weights.get(id(value))) is not None:
            return known
        if depth == 0:
            raise LimitExceeded(f"its lists are nested more than {MAX_DEPTH} deep")
        size, height = 16, 0
        for item in _inside(value):
            inner = self._weigh(item, depth - 1)
            size, height = size + inner.size, max(height, inner.height)
        self.step(1 + _length(value))
        return self._keep(value, size, height + 1)

    def _keep(self, value: Any, size: int, height: int) -> _Weight:
        if height > MAX_DEPTH:
            raise LimitExceeded(f"its lists are nested more than {MAX_DEPTH} deep")
        if size > self._allowance.size:
            raise LimitExceeded("its lists hold too much")
        self._weights[id(value)] = kept = _Weight(size, height, value)
        return kept


def _length(value: Any) -> int:
    return len(value)


def _inside(value: Any) -> Iterable[Any]:
    if not isinstance(value, Mapping):
        return value  # type: ignore[no-any-return] # one of _CONTAINERS
    return (item for pair in value.items() for item in pair)


_METER: ContextVar[Meter] = ContextVar("meter")


def meter() -> Meter:
    """That of the rendering under way."""
    return _METER.get()


@contextmanager
def metered(charged: Meter) -> Iterator[None]:
    """What is rendered within is charged to `charged`."""
    token = _METER.set(charged)
    try:
        yield
    finally:
        _METER.reset(token)


MAX_WIDTH = 10_000  # of a padded field, an indentation, a batch; decimal places
PIECE = 96  # bytes of a short text in a list
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

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
    return made_of(str(value), value)


def _splitting(method: Operation, breaks: str) -> Operation:
    """One that makes a list of pieces, charged before it is there. `breaks`: the characters it
    splits at where no separator is given.
    """

    def run(text: str, *args: Any, **named: Any) -> Any:
        given = (*args, *named.values())
        at = [arg for arg in given if isinstance(arg, str)] or breaks
        meter().grow(PIECE * sum(str.count(text, separator) for separator in at))
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


def stripped(*, left: bool, right: bool) -> Operation:
    """`str.strip`, `str.lstrip` (left alone), `str.rstrip` (right alone)."""

    def run(text: str, characters: str | None = None) -> str:
        meter().step(len(text) * len(characters or "") >> 8)
        return origin.stripped(text, characters, left=left, right=right)

    return run


def _padding(method: Operation) -> Operation:
    """One that fills a text up to a width."""

    def run(text: str, size: Any, *fill: str) -> str:
        return made_of(method(text, bounded(size), *fill), (text, fill))

    return run


def _expandtabs(text: str, tabsize: Any = 8) -> str:
    size = max(0, bounded(tabsize))
    meter().grow(str.count(text, "\t") * size)
    return made_of(str.expandtabs(text, size), text)


def _removeprefix(text: str, prefix: str) -> str:
    return text[len(prefix) if text.startswith(prefix) else 0 :]


def _removesuffix(text: str, suffix: str) -> str:
    return text[: len(text) - (len(suffix) if text.endswith(suffix) else 0)]


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
        name: getattr(str, name)  # they make no text
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
    "strip": stripped(left=True, right=True),
    "lstrip": stripped(left=True, right=False),
    "rstrip": stripped(left=False, right=True),
    "removeprefix": _removeprefix,
    "removesuffix": _removesuffix,
    "replace": replaced,
    "join": text_join,
    **{name: _padding(getattr(str, name)) for name in ("center", "ljust", "rjust", "zfill")},
    "expandtabs": _expandtabs,
}


def call_method(text: str, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """`text.name(*args)`, for a name of `TEXT_METHODS`."""
    meter().step(1 + (len(text) >> 10))
    return TEXT_METHODS[name](text, *args, **named)


# Values written into texts by a chat template: `%`, `format`, `~` and JSON, metered and traced.


_DIGITS = re.compile(r"\d+")
# Without a kind it is none that is known.
_CONVERSION = re.compile(
    r"%(?:(?:\((?P<key>[^()]*)\))?(?P<flags>[#0\- +]*+)(?P<width>\d*+)(?:\.(?P<places>\d*+))?"
    r"[hlL]?(?P<kind>[diouxXeEfFgGcrsa%]))?"
)


class _Format(SandboxedFormatter):
    """As `str.format`, with fields resolved by the sandbox."""

    def pieces(self, form: str, args: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
        number = 0
        pieces: list[str] = []
        for literal, field, spec, conversion in self.parse(form):
            pieces.append(made_of(literal, form))
            if field is None:
                continue
            by_place = field[:1] in ("", ".", "[")
            value, _ = self.get_field(f"{number}{field}" if by_place else field, args, named)
            number += by_place
            if "{" in (spec or ""):
                raise TemplateError("a format within a format is more than a template needs")
            pieces.append(self._written(value, spec or "", conversion))
        return pieces

    def _written(self, value: Any, spec: str, conversion: str | None) -> str:
        for digits in _DIGITS.findall(spec):
            bounded(digits[:10])
        if conversion is not None:
            meter().grow(4 * meter().weight(value))
            value = made_of(self.convert_field(value, conversion), value)
        if not spec:
            return shown(value)
        bare = plain(value) if isinstance(value, str) else value
        return made_of(format(bare, spec), value)


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
    for conversion in _CONVERSION.finditer(form):
        if conversion["kind"] is None:
            raise TemplateError("the template uses a format that isn't known")
        pieces.append(form[at : conversion.start()])
        at = conversion.end()
        if conversion["kind"] == "%":
            pieces.append("%")
            continue
        if conversion["key"] is not None:
            keyed, value = True, values[conversion["key"]]
        elif rest:
            value = rest.pop(0)
        else:
            raise TypeError("not enough arguments for format string")
        pieces.append(_converted(conversion, value))
    if rest and not keyed and not isinstance(values, Mapping):
        raise TypeError("not all arguments converted during string formatting")
    pieces.append(form[at:])
    meter().grow(sum(map(len, pieces)))
    return joined(pieces)


def _converted(conversion: re.Match[str], value: Any) -> str:
    for digits in (conversion["width"], conversion["places"]):
        if digits:
            bounded(digits[:10])
    if conversion["kind"] == "s" and not conversion["width"] and conversion["places"] is None:
        return shown(value)
    meter().grow(4 * meter().weight(value))
    places = "" if conversion["places"] is None else f".{conversion['places']}"
    bare = plain(value) if isinstance(value, str) else value
    result = f"%{conversion['flags']}{conversion['width']}{places}{conversion['kind']}" % (bare,)
    return made_of(result, value)


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
    step = plain(indent) if isinstance(indent, str) else " " * max(0, bounded(indent or 0))
    between = sum(map(len, separators)) if separators else 2
    size = meter().weight(value)
    # Each item stands in a line of its own, indented as deep as it lies.
    meter().grow(size * 2 + (size >> 3) * (len(step) * meter().height(value) + between))
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else step,
        separators=separators,
        sort_keys=sort_keys,
    )
    return made_of(text, (value, indent, separators))
