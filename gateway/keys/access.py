"""The rights of an API key. Knows no HTTP; `gateway.http.auth` maps keys to rights."""

from typing import Literal

import msgspec

from gateway.keys.limits import UNLIMITED, Limits
from gateway.terms.errors import Forbidden


class Access(msgspec.Struct, frozen=True):
    """One caller's rights. `models` empty: all of them. `owner` identifies the caller's objects: a
    digest of the key, "" where there are no keys.
    """

    role: Literal["user", "admin"] = "user"
    autoload: bool = True
    models: frozenset[str] = frozenset()
    owner: str = ""
    loading_text: bool | None = None  # loads are reported as reasoning; None: as the server does
    label: str | None = None  # its name for administrators; None where there are no keys
    limits: Limits = UNLIMITED

    def require_admin(self, instead: str = "") -> None:
        """Raises Forbidden, which ends with what to do `instead`."""
        if self.role != "admin":
            raise Forbidden(f"this requires an admin key{instead}")

    def allows(self, model: str) -> bool:
        return not self.models or model in self.models

    def oversees(self, owner: str) -> bool:
        """Whether requests of `owner` may be listed and cancelled."""
        return self.role == "admin" or self.owner == owner


ADMIN = Access(role="admin")
