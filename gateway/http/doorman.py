"""Who may come in: API keys to rights. Keys are compared in constant time and never logged."""

import hmac
from collections.abc import Mapping, Sequence

from config.settings import KeyConfig
from gateway.access import ADMIN, Access
from gateway.errors import InvalidKey


class Doorman:
    """Without keys everybody is admin; `gateway.app` sees to it that nobody else is listened to
    then.
    """

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._keys = [
            (key.key.encode(), Access(key.role, key.autoload, frozenset(key.models)))
            for key in keys
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
        if key := headers.get(name):
            return key.strip().encode()
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip().encode() if scheme.lower() == "bearer" else b""
