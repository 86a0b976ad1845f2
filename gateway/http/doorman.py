"""Who may come in: API keys to rights. Keys are compared in constant time and never logged."""

import hmac
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from config.settings import KeyConfig
from gateway.access import ADMIN, Access
from gateway.errors import InvalidKey


class Doorman:
    """Without keys everybody is admin; `gateway.app` sees to it that nobody else is listened to
    then.
    """

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._keys = [
            (written, Access(key.role, key.autoload, frozenset(key.models)))
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
                "No API key was given. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
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
