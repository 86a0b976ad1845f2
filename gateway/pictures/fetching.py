"""Pictures behind `http:` and `https:` URLs: their bytes, under limits, from public addresses only.

Every hop is resolved once, its addresses are checked, and the connection goes to an address that
was checked: a name that means something else a moment later (DNS rebinding) gains nothing. The URL
is rewritten to that address; the name stays in the Host header and in TLS, where it is verified.

Proxies of the environment are not used: they would resolve names themselves.
"""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from socket import SOCK_STREAM
from typing import Protocol

import anyio
import httpx
from anyio import to_thread

from config.settings import ImagesConfig
from gateway.pictures.addresses import Address, Judge, address
from gateway.pictures.quota import ImageRefused

SCHEMES = ("http", "https")
# `identity`: a compressed body could unpack to any size.
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "roundhouse"}


class Resolver(Protocol):
    """Resolves a host name. Raises OSError where there is none."""

    async def __call__(self, host: str, port: int) -> Sequence[str]: ...


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The addresses as the machine knows them, best first."""
    found = await anyio.getaddrinfo(host, port, type=SOCK_STREAM)
    return tuple(dict.fromkeys(sockaddr[0] for *_, sockaddr in found))


class Fetching:
    """Fetches one picture after the other; keeps no connection open."""

    def __init__(
        self,
        limits: ImagesConfig,
        judge: Judge,
        resolver: Resolver,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._limits = limits
        self._judge = judge
        self._resolver = resolver
        self._tls = tls

    async def bytes_of(self, url: str) -> bytes:
        """Raises Refused, also when the limits' `timeout` has passed."""
        try:
            with anyio.fail_after(self._limits.timeout):
                return await self._followed(_parsed(url))
        except TimeoutError as error:
            raise ImageRefused(
                f"took longer than {self._limits.timeout:g} seconds to arrive"
            ) from error

    async def _followed(self, url: httpx.URL) -> bytes:
        for _ in range(self._limits.max_redirects + 1):
            async with self._response(url) as response:
                if not response.has_redirect_location:
                    return await self._body(response)
                url = _parsed(response.headers["location"], url)
        raise ImageRefused(f"is behind more than {self._limits.max_redirects} redirects")

    @asynccontextmanager
    async def _response(self, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        """The answer to one GET, its body still to be read."""
        addresses = await self._addresses(url)
        patience = httpx.Timeout(None, connect=self._limits.timeout / len(addresses))
        transport = httpx.AsyncHTTPTransport(verify=await self._trust(), trust_env=False)
        async with (
            httpx.AsyncClient(
                transport=transport, trust_env=False, timeout=patience, headers=HEADERS
            ) as client,
            aclosing(await _first_answer(client, url, addresses)) as response,
        ):
            try:
                yield response
            except httpx.HTTPError as error:
                raise ImageRefused("broke off while it was fetched") from error

    async def _trust(self) -> ssl.SSLContext:
        """Read once, beside the event loop: there are many certificates."""
        if self._tls is None:
            self._tls = await to_thread.run_sync(httpx.create_ssl_context)
        return self._tls

    async def _addresses(self, url: httpx.URL) -> Sequence[Address]:
        """Where the host of `url` is. One address that is refused refuses them all: a legitimate
        name doesn't mix them.
        """
        host = _name(url)
        try:
            found = [address(text) for text in await self._resolver(host, _port(url))]
        except (OSError, ValueError, UnicodeError) as error:
            raise ImageRefused("can't be fetched: its host is unknown") from error
        if not found:
            raise ImageRefused("can't be fetched: its host is unknown")
        if not all(map(self._judge, found)):
            raise ImageRefused("can't be fetched: its address is not allowed")
        return found

    async def _body(self, response: httpx.Response) -> bytes:
        if response.status_code != httpx.codes.OK:
            raise ImageRefused(f"can't be fetched: its host answered {response.status_code}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ImageRefused("can't be fetched: its host sends it compressed")
        max_bytes, body = self._limits.max_bytes, bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                raise ImageRefused(f"is larger than {max_bytes:,} bytes")
        return bytes(body)


def _parsed(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """`text`, by itself or as `base` redirects to it."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        usable = url.scheme in SCHEMES and bool(url.raw_host)
    except (httpx.InvalidURL, ValueError) as error:
        raise ImageRefused("has no valid URL") from error
    if not usable:
        raise ImageRefused("can't be fetched: its URL is neither http: nor https:")
    return url


def _name(url: httpx.URL) -> str:
    """The host as DNS and TLS know it: ASCII, without brackets."""
    return url.raw_host.decode("ascii")


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


async def _first_answer(
    client: httpx.AsyncClient, url: httpx.URL, addresses: Sequence[Address]
) -> httpx.Response:
    """From the first address that accepts a connection."""
    failure: httpx.HTTPError | None = None
    for place in addresses:
        request = client.build_request(
            "GET",
            url.copy_with(host=str(place)),
            headers={"host": url.netloc.decode("ascii")},
            extensions={"sni_hostname": _name(url)},
        )
        try:
            return await client.send(request, stream=True, follow_redirects=False)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            failure = error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ImageRefused("can't be fetched: its host doesn't answer as it should") from error
    raise ImageRefused("can't be fetched: its host can't be reached") from failure
