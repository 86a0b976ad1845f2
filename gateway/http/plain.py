"""Plain ASGI responses: status, headers, and a body in bytes. Spares Litestar's own serialising."""

from collections.abc import Mapping

from litestar.types import Receive, Scope, Send

JSON = b"application/json"


class Plain:
    """An ASGI response."""

    def __init__(
        self,
        body: bytes,
        *,
        status: int = 200,
        media_type: bytes = JSON,
        headers: Mapping[str, str] = {},
    ) -> None:
        self._body = body
        self._status = status
        self._headers = [
            (b"content-type", media_type),
            (b"content-length", str(len(body)).encode()),
            *encoded(headers),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self._status, "headers": self._headers}
        )
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As ASGI wants them. What no header can hold is replaced: a model's name comes from a file's,
    or from another server.
    """
    return [
        (name.lower().encode(), _one_line(value).encode("latin-1", "replace"))
        for name, value in headers.items()
    ]


def _one_line(value: str) -> str:
    """`value` without control characters (RFC 9110, section 5.5)."""
    return value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)
