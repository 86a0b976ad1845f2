"""What the holder of an API key may do. Knows no HTTP; `gateway.http.auth` finds out who holds
which key.
"""

from typing import Literal

import msgspec

from gateway.errors import Forbidden


class Access(msgspec.Struct, frozen=True):
    """One caller's rights. `models` empty: all of them. `owner` is whose it is what the caller
    makes: a digest of the key, "" where there are no keys.
    """

    role: Literal["user", "admin"] = "user"
    autoload: bool = True
    models: frozenset[str] = frozenset()
    owner: str = ""
    loading_text: bool | None = None  # loads are told as reasoning; None: as the server does
    label: str | None = None  # what administrators call the key; None where there are none

    def require_admin(self) -> None:
        """Raises Forbidden."""
        if self.role != "admin":
            raise Forbidden("this needs an admin key")

    def allows(self, model: str) -> bool:
        return not self.models or model in self.models

    def oversees(self, owner: str) -> bool:
        """Whether what `owner` does may be seen and ended."""
        return self.role == "admin" or self.owner == owner


ADMIN = Access(role="admin")
