"""Who may come in: API keys to rights. Keys are compared in constant time and never logged; that
somebody was refused is, but not so often that it fills the log.
"""

import hmac
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import structlog

from config.settings import KeyConfig
from gateway.access import ADMIN, Access
from gateway.errors import InvalidKey

LINES, WINDOW = 10, 60.0  # lines of the log in so many seconds; the others are only counted

log = structlog.get_logger()


class Authenticator:
    """Without keys everybody is admin; `gateway.app` sees to it that nobody else is listened to
    then.
    """

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._keys = [
            (written, Access(key.role, key.autoload, frozenset(key.models), key.loading_text))
            for key in keys
            for written in _as_sent(key.key)
        ]

    def admit(self, headers: Mapping[str, str]) -> Access:
        """Raises InvalidKey."""
        if not self._keys:
            return ADMIN
        given = presented(headers)
        if not given:
            raise InvalidKey(
                "No API key was given. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                missing=True,
            )
        found = [access for key, access in self._keys if hmac.compare_digest(key, given)]
        if not found:
            raise InvalidKey("Incorrect API key provided.")
        return found[0]


def presented(headers: Mapping[str, str]) -> bytes:
    """The key a request carries; the first header that holds one counts."""
    for name in ("x-admin-key", "x-api-key"):
        if key := _sent(headers.get(name, "")):
            return key
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return _sent(bearer) if scheme.lower() == "bearer" else b""


def _sent(value: str) -> bytes:
    """The bytes of a header, which ASGI servers hand on as Latin-1."""
    return value.encode("latin-1").strip()


def _as_sent(key: str) -> Iterator[bytes]:
    """How clients write a key that isn't ASCII: in UTF-8, or as RFC 9110 has it in Latin-1."""
    yield key.encode()
    if not key.isascii():
        with suppress(UnicodeEncodeError):
            yield key.encode("latin-1")


class Refusals:
    """Counts and logs who was not let in: address and route, never the key."""

    def __init__(
        self, count: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`count` is called for each with the reason."""
        self._count = count
        self._clock = clock
        self._window = -WINDOW
        self._lines = self._silent = 0

    def note(self, reason: str, client: str, route: str) -> None:
        """Somebody at `client` was refused at `route`."""
        self._count(reason)
        now = self._clock()
        if now - self._window >= WINDOW:
            self._window, self._lines = now, 0
        if self._lines == LINES:
            self._silent += 1
            return
        self._lines += 1
        unlogged, self._silent = self._silent, 0
        more = {"unlogged": unlogged} if unlogged else {}
        log.warning("request refused", reason=reason, client=client, route=route, **more)
