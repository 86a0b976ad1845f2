"""What syntaxes with a section around their calls have in common: where one call ends and the next begins."""

from collections.abc import Callable

from gateway.splitter.calls import Calls
from gateway.splitter.reading import Parsing, Reader


def parse(
    reader: Reader,
    calls: Calls,
    opener: str,
    call_opens: tuple[str, ...],
    closers: tuple[str, ...],
    one_call: Callable[[], Parsing[None]],
    before_call: tuple[str, ...] = (),
) -> Parsing[None]:
    """Reads calls until the section closes or no other call begins. `opener` may itself begin the first.

    `before_call` may stand before what opens a call and means nothing.
    """
    if opener not in call_opens:
        yield from reader.space()
        yield from reader.accept(before_call)
        yield from reader.space()
        yield from reader.expect(*call_opens)
    while True:
        yield from one_call()
        calls.settle()
        yield from reader.space()
        if (yield from reader.accept(closers)):
            return
        if (yield from reader.accept(before_call)):
            yield from reader.space()
        if not (yield from reader.accept(call_opens)):
            return
