"""The record that every API's dialect has, and the encoding of its replies.

Each module of an API here has a record, `DIALECT`; it is switched by its module's name in `apis` of
the configuration. A reply is one JSON document, or an event of a stream.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.keys.limits import Allowance, Unit
from gateway.terms.errors import GatewayError
from gateway.terms.events import Delta, Usage


class RateHeaders(msgspec.Struct, frozen=True):
    """How answers report what a key has left. `name`: a header's, with places for a `unit` and one
    of limit, remaining and reset as `what`. `reset`: the moment when all is there again, from the
    present Unix time and the seconds until then.
    """

    name: str
    reset: Callable[[float, float], str]

    def names(self) -> Sequence[str]:
        """All of them."""
        units: tuple[Unit, ...] = ("requests", "tokens")
        return [
            self.name.format(unit=unit, what=what)
            for unit in units
            for what in ("limit", "remaining", "reset")
        ]

    def of(self, allowance: Allowance, now: float) -> Mapping[str, str]:
        """Those of a key's limits; none where it has none."""
        values = [
            (str(rate.limit), str(rate.left), self.reset(now, rate.reset)) if rate else ("", "", "")
            for rate in (allowance.requests, allowance.tokens)
        ]
        written = zip(self.names(), [value for three in values for value in three], strict=True)
        return {name: value for name, value in written if value}


def duration(_now: float, seconds: float) -> str:
    """As OpenAI writes it: `6m0s`, `1.25s`, `12ms`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{seconds:.3g}s"


# OpenAI's, which clients of other APIs read too.
RATE_HEADERS = RateHeaders("x-ratelimit-{what}-{unit}", duration)


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """`error` makes the body of a failed request; None: OpenAI's."""

    name: str  # that the components of the API's documents begin with
    tag: str  # its heading in the documents
    error: Callable[[GatewayError], msgspec.Struct] | None = None
    id_headers: tuple[str, ...] = ()  # of an answer, with the request's id, besides the server's
    rate_headers: RateHeaders = RATE_HEADERS


class Reply(msgspec.Struct, eq=False):
    """A dialect's reply to one request: frames of a stream, or one whole body, from the same
    deltas.
    """

    def opening(self) -> bytes:
        """The first frames; none, where nothing is known yet that an API would have."""
        return b""

    @abstractmethod
    def delta(self, delta: Delta) -> bytes:
        """The frames of some more of the answer."""

    @abstractmethod
    def closing(self, usage: Usage) -> bytes:
        """The last frames."""

    def add(self, delta: Delta) -> object:
        """Keep some more of the answer for `whole`: what a stream keeps, whose frames are lost."""
        return self.delta(delta)

    @abstractmethod
    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""


DONE = b"data: [DONE]\n\n"  # the last frame of OpenAI's streams

_encode = msgspec.json.Encoder().encode


def frame(message: Any) -> bytes:
    """A server-sent event without a name: a `data:` line of JSON and an empty line."""
    return b"data: " + _encode(message) + b"\n\n"


def named_frame(name: bytes, message: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name + b"\n" + frame(message)


def line(message: Any) -> bytes:
    """One line of NDJSON."""
    return _encode(message) + b"\n"


def body(message: Any) -> bytes:
    """One JSON document."""
    return _encode(message)
