"""Tool calls as other servers stream them, put in order.

Many servers count calls from 1, give all of them the index 0, leave indexes or ids out, repeat the
name in each piece, or send a call whole. What begins a new call: an id or an index not seen before;
where there is neither, a name after arguments that are whole.
"""

import uuid
from collections.abc import Callable

import msgspec

from backends.remote import RemoteCall
from backends.upstream.faults import too_large

MOST_CALLS = 1_000  # of one answer


class StreamedFunctionWire(msgspec.Struct, frozen=True):
    """The arguments are JSON text; some servers send the object itself."""

    name: str | None = None
    arguments: str | dict[str, object] | None = None


class StreamedCallWire(msgspec.Struct, frozen=True):
    """Some of a call, or all of it."""

    index: int | None = None
    id: str | int | None = None
    function: StreamedFunctionWire | None = None


class _GrowingCall:
    """A call that grows."""

    __slots__ = ("arguments", "id", "index", "key", "name")

    def __init__(self, key: int | None, call_id: str) -> None:
        self.key = key  # the other server's index
        self.id = call_id
        self.index: int | None = None  # ours, once its name is known
        self.name = ""
        self.arguments: list[str] = []


class CallOrder:
    """Of one choice. `whole`: each piece is a call of its own."""

    def __init__(self) -> None:
        self._open: list[_GrowingCall] = []
        self._named = 0

    def take(self, wire: StreamedCallWire, *, whole: bool = False) -> RemoteCall | None:
        """What a piece adds; None while a call has no name."""
        function = wire.function or StreamedFunctionWire()
        arguments = _text(function.arguments)
        call = None if whole else self._found(wire, function, arguments)
        if call is None:
            call = self._begun(wire)
        call.arguments.append(arguments)
        if call.index is not None:
            return RemoteCall(call.index, arguments=arguments) if arguments else None
        if not function.name:
            return None
        call.name, call.index = function.name, self._named
        self._named += 1
        return RemoteCall(call.index, call.id, call.name, "".join(call.arguments))

    def _begun(self, wire: StreamedCallWire) -> _GrowingCall:
        if len(self._open) == MOST_CALLS:
            raise too_large(f"more than {MOST_CALLS} tool calls in one answer")
        call_id = str(wire.id) if wire.id else f"call_{uuid.uuid4().hex[:24]}"
        call = _GrowingCall(wire.index, call_id)
        self._open.append(call)
        return call

    def _found(
        self, wire: StreamedCallWire, function: StreamedFunctionWire, arguments: str
    ) -> _GrowingCall | None:
        """The call that a piece goes on with; None: it begins one."""
        if wire.id and (known := self._last(lambda call: call.id == str(wire.id))) is not None:
            return known
        last = self._last(lambda call: wire.index is None or call.key == wire.index)
        if last is None or (wire.id and last.arguments):
            return None
        if function.name and last.index is not None and not wire.id and _is_whole(last):
            return None
        return last

    def _last(self, fits: Callable[[_GrowingCall], bool]) -> _GrowingCall | None:
        return next((call for call in reversed(self._open) if fits(call)), None)


def _text(arguments: str | dict[str, object] | None) -> str:
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    return arguments or ""


def _is_whole(call: _GrowingCall) -> bool:
    """Its arguments are a JSON value already."""
    try:
        msgspec.json.decode("".join(call.arguments))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
