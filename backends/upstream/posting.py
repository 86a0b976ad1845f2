"""POST requests whose heads are written once per URL. httpx builds and parses URLs, headers and
cookies anew for each, a fifth of a short answer's way; what doesn't change between two requests is
written once here. Proxies and HTTP/2 are httpx's own.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import httpx
import msgspec

from backends.upstream.http1 import Http1Body, Http1Transport, Origin, header_line, origin_of


class Posted(Protocol):
    """A response whose head is there; as much of httpx's as is needed."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in small letters."""
        ...

    @property
    def stream(self) -> Any:
        """The body, piece by piece, as it comes."""
        ...

    @property
    def aclose(self) -> Callable[[], Awaitable[None]]:
        """Give the connection back, or close it where the body is not at its end."""
        ...


class DirectClient(httpx.AsyncClient):
    """Over our transport alone."""

    def __init__(self, direct: Http1Transport, **options: Any) -> None:
        """`options`: httpx's."""
        super().__init__(transport=direct, **options)
        self._direct = direct
        self._limit = self.timeout.connect
        self._written: dict[str, _Written] = {}  # by URL

    async def post_direct(self, url: str, body: bytes, headers: Mapping[str, str]) -> Posted:
        """See `post`."""
        assert not self.is_closed, "who posts holds it open"
        written = self._written.get(url)
        if written is None:
            written = self._written[url] = _Written(httpx.URL(url), self.headers)
        head = written.head(headers, len(body))
        connection = await self._direct.answered(written.origin, head, body, self._limit)
        stream = Http1Body(connection, self._direct, written.origin)
        return _Direct(connection.status, _by_name(connection.headers), stream, stream.aclose)


async def post(
    client: httpx.AsyncClient, url: str, body: bytes, headers: Mapping[str, str]
) -> Posted:
    """The response to `body`, once its head is there. `url` is one of few; `headers` have names in
    small letters and go over the client's own. Raises httpx.HTTPError.
    """
    if isinstance(client, DirectClient):
        return await client.post_direct(url, body, headers)
    request = client.build_request("POST", url, content=body, headers=headers)
    return await client.send(request, stream=True)


class _Written:
    """What stands in the head of every request to a URL."""

    def __init__(self, url: httpx.URL, headers: httpx.Headers) -> None:
        self.origin: Origin = origin_of(url)
        self._first = b"POST %b HTTP/1.1\r\nhost: %b" % (url.raw_path, url.netloc)
        own = headers.raw
        self._own = {name.lower().decode(): header_line(name, value) for name, value in own}

    def head(self, headers: Mapping[str, str], size: int) -> bytes:
        """Raises httpx.LocalProtocolError for a header that would end its line."""
        lines = [line for name, line in self._own.items() if name not in headers]
        lines += [header_line(name.encode(), value.encode()) for name, value in headers.items()]
        return b"\r\n".join((self._first, *lines, b"content-length: %d" % size, b"", b""))


class _Direct(msgspec.Struct, frozen=True):
    """A response over our transport."""

    status_code: int
    headers: dict[str, str]
    stream: Http1Body
    aclose: Callable[[], Awaitable[None]]


def _by_name(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in headers}
