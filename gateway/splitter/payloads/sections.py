"""A section of calls: where one ends and the next begins."""

from collections.abc import Callable

import msgspec

from gateway.splitter.calls import Calls
from gateway.splitter.reading import Parsing, Reader


class PayloadSection(msgspec.Struct, frozen=True):
    """What opens each call and what closes them all; `before_call` may stand before a call."""

    call_opens: tuple[str, ...]
    closers: tuple[str, ...]
    before_call: tuple[str, ...] = ()


def parse(
    reader: Reader,
    calls: Calls,
    opener: str,
    section: PayloadSection,
    one_call: Callable[[], Parsing[None]],
) -> Parsing[None]:
    """Reads calls until the section closes or no other begins. `opener` may begin the first."""
    if opener not in section.call_opens:
        yield from _open(reader, section)
    while True:
        yield from one_call()
        calls.settle()
        yield from reader.space()
        if (yield from reader.accept_close(section.closers)):
            return
        if not (yield from reader.looking_at((*section.before_call, *section.call_opens))):
            return
        yield from _open(reader, section)


def _open(reader: Reader, section: PayloadSection) -> Parsing[None]:
    """Reads what opens a call."""
    yield from reader.space()
    yield from reader.accept(section.before_call)
    yield from reader.space()
    yield from reader.expect(*section.call_opens)
