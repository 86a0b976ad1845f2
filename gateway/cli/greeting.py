"""What `serve` prints when it listens: address, page, model, memory for models on each device, and
a command to try, which works as it is printed.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

KEY_VARIABLE = "ROUNDHOUSE_KEY"  # which the other commands read, too
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - listened on, not called

# By what a model does: the route to try, and the members of a body besides `model`.
ATTEMPTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "generate": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello!"}]},
    ),
    "embed": ("/v1/embeddings", {"input": "Hello!"}),
    "rank": ("/v1/rerank", {"query": "Hello!", "documents": ["Good day!", "A tree."]}),
}


class Greeting(Struct, frozen=True, kw_only=True):
    """Printed once, with the address."""

    model: str  # "" where there is none yet
    task: str  # the model's
    room: Callable[[], str]  # memory for models
    has_page: bool
    needs_key: bool
    new_key: str = ""  # that this start made

    def print(self, address: str) -> None:
        """To stdout."""
        print("\n".join(["", *self._lines(address), ""]), flush=True)

    def _lines(self, address: str) -> list[str]:
        lines = [f"Roundhouse listens on {address}"]
        if self.has_page:
            lines.append(f"  page:  {_callable(address)}/")
        lines.append(f"  model: {self.model or 'none yet: the model folders hold none'}")
        lines.append(f"  room:  {self.room()}")
        if self.new_key:
            lines.append(f"  key:   {self.new_key} (made for this run, and shown only here)")
        elif self.needs_key:
            lines.append(f"  key:   one of the configured keys, as ${KEY_VARIABLE} below")
        lines.append(f"  try:   {self._attempt(_callable(address))}")
        return lines

    def _attempt(self, address: str) -> str:
        route, more = ATTEMPTS[self.task]
        body = json.dumps({"model": self.model, **more}, ensure_ascii=False)
        words = ["curl", f"{address}{route}", "-H", "content-type: application/json", "-d", body]
        return shlex.join(words) + self._key_header()

    def _key_header(self) -> str:
        if self.new_key:
            return f" -H {shlex.quote(f'authorization: Bearer {self.new_key}')}"
        return f' -H "authorization: Bearer ${KEY_VARIABLE}"' if self.needs_key else ""


def _callable(address: str) -> str:
    """`address` as clients on this machine call it."""
    parts = urlsplit(address)
    host = EVERYWHERE.get(parts.hostname or "")
    return address if host is None else f"{parts.scheme}://{host}:{parts.port}"
