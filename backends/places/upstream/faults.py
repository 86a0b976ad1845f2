"""Errors of another server in our words: it answered with none, or with none that can be read."""

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import structlog

from backends.contract.errors import UpstreamError

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Fault(msgspec.Struct, frozen=True):
    """Why a server fails, for administrators. `kind`: one word, such as "refused"; `reason`: a
    sentence without addresses and keys.
    """

    kind: str
    reason: str


def warn(what: str, upstream: str, url: str, fault: Fault, before: Fault | None) -> None:
    """The log has each that is unlike the one `before`."""
    if before is None or before.kind != fault.kind:
        log.warning(what, upstream=upstream, url=url, kind=fault.kind, reason=fault.reason)


class Unhealthy(UpstreamError):
    """It said nothing that could be handed on: the words are ours."""


class Unreached(Unhealthy):
    """There is no connection to it. `kind`: see `Fault`."""

    def __init__(self, kind: str, why: str) -> None:
        text = f"The upstream can't be reached: {why}."
        super().__init__(text, code="upstream_unreachable")
        self.kind = kind


def kind_of(error: UpstreamError) -> str:
    """See `Fault`: the error's code without what all codes begin with, or the status."""
    if isinstance(error, Unreached):
        return error.kind
    known = isinstance(error, Unhealthy) and error.code is not None
    code = (error.code or "").removeprefix("upstream_")
    return code if known or error.code == "upstream_refused_key" else str(error.status)


_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH)


def unreached(error: BaseException) -> Unreached:
    """What a failed connection says, by what caused `error`."""
    for cause in _causes(error):
        match cause:
            case socket.gaierror():
                return Unreached("no_address", f"its name can't be resolved ({cause.strerror})")
            case ssl.SSLCertVerificationError():
                words = cause.verify_message or cause.reason
                return Unreached("certificate", f"its certificate is not accepted ({words})")
            case ssl.SSLError():
                return Unreached("tls", f"no encrypted connection ({cause.reason})")
            case ConnectionRefusedError():
                return Unreached("refused", "it refuses connections")
            case ConnectionError():
                return Unreached("closed", "it closes connections")
            case OSError(errno=number) if number in _NO_ROUTE:
                return Unreached("no_route", "no route to host")
    return Unreached("unreachable", "can't connect")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """From `error` to what it began with."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from _causes(error.exceptions[0])
        error = error.__cause__ or error.__context__


def broken(what: str) -> Unhealthy:
    """It sent something invalid."""
    return Unhealthy(f"The upstream sent {what}.", code="upstream_broken")


def decoded(body: bytes, kind: type[T], otherwise: str = "") -> T:
    """A body as a `kind`. Raises Unhealthy, which says what came `otherwise`, or what is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise broken(otherwise or f"unreadable data ({error})") from None
    except RecursionError:
        raise broken(otherwise or "unreadable data (nested too deeply)") from None


def converted(value: object, kind: type[T], *, strict: bool = True) -> T | None:
    """None for what isn't a `kind`: what is around it counts without it."""
    try:
        return None if value is None else msgspec.convert(value, kind, strict=strict)
    except (msgspec.ValidationError, RecursionError):
        return None


def too_large(what: str) -> Unhealthy:
    """It sent more than is taken."""
    return Unhealthy(f"The upstream sent {what}.", code="upstream_too_large")


def cut(why: str = "") -> Unhealthy:
    """Its answer has no end."""
    return Unhealthy(f"The upstream cut the answer off{why}.", code="upstream_cut")


def late(what: str, seconds: float) -> Unhealthy:
    """It took too long to do `what`."""
    text = f"The upstream didn't {what} within {seconds:g} s."
    return Unhealthy(text, status=504, code="upstream_timeout")
