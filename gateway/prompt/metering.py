"""The budget of one rendering of a chat template: steps, memory, processor time.

A template comes with a model's files, so it is untrusted code. Everything in it that can repeat or
grow is charged here before or right after it happens, so that no single operation can be much
larger than what is left of the allowance.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2 import TemplateError

from gateway.tasks import Abandoned

MAX_STEPS = 50_000_000  # nodes of the template gone through in loops, and items read
MAX_BYTES = 256 << 20  # of all texts and lists made, together
MAX_SECONDS = 5.0  # of one processor
MAX_DEPTH = 128  # lists in lists
MAX_BITS = 4_096  # of a whole number
MAX_EXPONENT = 64

_BETWEEN = 4_096  # steps between two reads of the clock
_CONTAINERS: tuple[type, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    type({}.values()),
    type({}.items()),
)


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

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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

    def walk(self, value: Any) -> None:
        """Charged for going through all of `value` once, as comparing and sorting do."""
        if isinstance(value, str):
            self.step(1 + (len(value) >> 10))
        elif isinstance(value, _CONTAINERS):
            self.step(1 + (self.weight(value) >> 5))

    def joined_lists(self, left: Any, right: Any) -> Any:
        """`left + right`, weighed by what is known of both."""
        one, two = self._weigh(left, MAX_DEPTH), self._weigh(right, MAX_DEPTH)
        self.grow(64 + 8 * (len(left) + len(right)))
        both = left + right
        self._keep(both, one.size + two.size, max(one.height, two.height))
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
def metered(one: Meter) -> Iterator[None]:
    """What is rendered within is charged to `one`."""
    token = _METER.set(one)
    try:
        yield
    finally:
        _METER.reset(token)
