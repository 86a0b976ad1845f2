"""Admission: API keys to rights, and the right that each route asks for. Keys are compared in
constant time and never logged; refusals are logged, but not so often that they fill the log.
"""

import hmac
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Literal, TypeAlias, get_args

import structlog
from litestar import Litestar, Request
from litestar.datastructures import Headers
from litestar.exceptions import ImproperlyConfiguredException
from litestar.handlers import HTTPRouteHandler, WebsocketRouteHandler
from litestar.routes import HTTPRoute, WebSocketRoute
from litestar.types import ASGIApp, Receive, Scope, Send

from backends.contract.remote import HOPS, Caller
from config.loader import HOST
from config.settings import KeyConfig, ServerConfig
from config.values import UNIX, alike
from gateway.http.tracing import trace_headers
from gateway.keys.access import ADMIN, Access
from gateway.keys.limits import Limits
from gateway.terms.errors import InvalidKey, NotForPages, UnsupportedMediaType

LOADS = "; a request loads the model that it names by itself"
LINES, WINDOW = 10, 60.0  # lines of the log in so many seconds; the others are only counted

log = structlog.get_logger()

# A request that was let in: its `auth` is its caller's rights. An open route's has none.
AnyRequest: TypeAlias = Request[Any, Access, Any]

# What a route asks of its callers (`access=` of its decorator): nothing, a key, or an admin key.
Right: TypeAlias = Literal["open", "user", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)


class Authenticator:
    """Without keys every client is administrator; `gateway.serving.app` then allows loopback
    alone.
    """

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self.apply(keys)

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._keys

    def roles(self) -> Mapping[str, int]:
        """How many keys there are of each role."""
        return self._roles

    def label(self, owner: str) -> str | None:
        """That of the key whose `Access.owner` this is; None: there is none such now."""
        return next((one.label for _, one in self._keys if one.owner == owner), None)

    def apply(self, keys: Sequence[KeyConfig]) -> None:
        """From the next request on; running requests go on."""
        self._roles = {role: sum(key.role == role for key in keys) for role in ("admin", "user")}
        self._keys = [
            (written, _access(key, place))
            for place, key in enumerate(keys, 1)
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


def _access(key: KeyConfig, place: int) -> Access:
    owner = sha256(b"owner of " + key.key.encode()).hexdigest()
    return Access(
        role=key.role,
        autoload=key.autoload,
        models=frozenset(key.models),
        owner=owner,
        loading_text=key.loading_text,
        label=key.label or f"key {place}",
        limits=alike(Limits, key)(),
    )


def presented(headers: Mapping[str, str]) -> bytes:
    """The key a request carries; the first header that holds one counts."""
    for name in ("x-admin-key", "x-api-key"):
        if key := _sent(headers.get(name, "")):
            return key
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return _sent(bearer) if scheme.lower() == "bearer" else b""


def caller(headers: Mapping[str, str], request_id: str) -> Caller:
    """The request id, the key and the way here, for upstreams that are sent them."""
    return Caller(
        request_id=request_id,
        key=presented(headers).decode("latin-1"),
        hops=headers.get(HOPS, ""),
        trace=trace_headers(headers),
    )


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
    """Counts and logs refused clients: address and route, never the key."""

    def __init__(
        self, count: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`count` is called for each with the reason."""
        self._count = count
        self._clock = clock
        self._window = -WINDOW
        self._lines = self._silent = 0

    def note(self, reason: str, client: str, route: str) -> None:
        """A request from `client` was refused at `route`."""
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


# Without keys: refuses requests that a web page may have made a browser send.
#
# Without keys every client that reaches the port is an administrator, and a browser on this machine
# reaches it for every page that its user opens. Such a request is recognised by:
#
# - `Host` is no name of this server: the page's own name was made to point here (DNS rebinding),
#   and the browser takes page and server for one site;
# - `Origin` is another site (Fetch standard, "Origin header");
# - it is a browser's (`Origin`, `Referer` or a `Sec-Fetch-` header is there), and the content type
#   of its body is one that a page may send anywhere without asking first (Fetch standard,
#   "CORS-safelisted request-header"): all others need a preflight, which CORS answers.
#
# Programs send none of these headers, and many name no content type or another (`curl -d`, aider
# and LiteLLM in Ollama's way). A browser leaves none of them out of a request that a page sends
# with a body: `Origin` belongs to every method but GET and HEAD.
#
# With keys nothing of this is checked: a page doesn't know the key, and needs a preflight to send
# one. Knows headers; no routes and no bodies.


READING = frozenset({"GET", "HEAD", "OPTIONS"})  # change nothing, and have no body
WITHOUT_PREFLIGHT = frozenset(
    {"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"}
)
FROM_BROWSERS = frozenset({"origin", "referer"})  # and all that begin with `sec-fetch-`
DEFAULT_PORTS = {"http": ":80", "https": ":443"}

_SHOWN = 100  # characters of a foreign header in an error


class OriginGuard:
    """Refuses by headers. `is_page_allowed`: whether `server.cors_origins` has an origin."""

    def __init__(self, server: ServerConfig, is_page_allowed: Callable[[str], bool]) -> None:
        self._is_page_allowed = is_page_allowed
        self.apply(server_names(server))
        # A page can't make an address point elsewhere, so beyond loopback each may be one of ours.
        self._takes_addresses = not is_loopback(server.host)

    def apply(self, names: frozenset[str]) -> None:
        """From the next request on this server is called by these names."""
        self._names = names

    def check(self, method: str, headers: Headers) -> None:
        """Raises NotForPages, UnsupportedMediaType."""
        hosts = _values(headers, "host")  # none: HTTP/1.0, which no browser speaks
        for host in hosts:
            self._check_host(host)
        if "origin" in headers:
            self._check_origin(_values(headers, "origin"), hosts)
        elif method not in READING:
            refuse_other_sites(headers.getall("sec-fetch-site", []))
        if method not in READING and _has_body(headers) and _is_a_browsers(headers):
            _check_content_type(_values(headers, "content-type") or [""])

    def _check_host(self, host: str) -> None:
        name = _name(host)
        if name is None or not (name in self._names or self._is_own_address(name)):
            raise NotForPages(
                f"The Host {host[:_SHOWN]!r} is not a name of this server, which has no API keys. "
                "Add it to server.hosts, or set keys.",
                param="server.hosts",
            )

    def _check_origin(self, origins: Iterable[str], hosts: list[str]) -> None:
        for origin in origins:
            same = any(_is_same(origin, host) for host in hosts)
            if not (same or self._is_page_allowed(origin)):
                raise NotForPages(
                    f"Pages of {origin[:_SHOWN]!r} are not allowed to call this server, which "
                    "has no API keys. Add the origin to server.cors_origins, or set keys.",
                    param="server.cors_origins",
                )

    def _is_own_address(self, name: str) -> bool:
        return is_loopback(name) or (self._takes_addresses and _address(name) is not None)


def server_names(server: ServerConfig) -> frozenset[str]:
    """The names this server is called by, in lower case and without ports."""
    named = (name for host in server.hosts if (name := _name(host)) is not None)
    return frozenset({"localhost", server.host.lower(), *named})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    address = _address(host)
    is_named = host == "localhost" or host.startswith(UNIX)
    return is_named or (address is not None and address.is_loopback)


def guarded(guard: OriginGuard, keys: Authenticator) -> Callable[[ASGIApp], ASGIApp]:
    """A middleware for all routes: none runs before its caller has the right that it declares, and,
    where no key is needed, before the headers have been checked.

    A guard of Litestar's would cost more than the key's check: it copies the handler each time.
    """

    async def checked(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        # A WebSocket begins as a GET, and no preflight protects it: Host and Origin do.
        method = str(scope.get("method", "GET"))
        if keys.is_open:
            guard.check(method, Headers.from_scope(scope))
        if method != "OPTIONS":  # Litestar's own answer to it lists the methods
            _admit(scope, keys)
        await app(scope, receive, send)

    return lambda app: partial(checked, app)


def _admit(scope: Scope, keys: Authenticator) -> None:
    """Note the caller's rights. Raises InvalidKey, Forbidden."""
    right: Right = scope["route_handler"].opt["access"]
    if right != "open":
        access = scope["auth"] = keys.admit(Headers.from_scope(scope))
        if right != "user":
            access.require_admin(LOADS if scope["path"].endswith("/load") else "")


def require_declared(app: Litestar) -> None:
    """Raises ImproperlyConfiguredException where a route doesn't say whom it is for."""
    for route in app.routes:
        handlers: Sequence[HTTPRouteHandler | WebsocketRouteHandler] = ()
        match route:
            case HTTPRoute():
                handlers = route.route_handlers
            case WebSocketRoute():
                handlers = (route.route_handler,)
        for handler in handlers:
            methods = getattr(handler, "http_methods", {"WEBSOCKET"})
            if methods != {"OPTIONS"} and handler.opt.get("access") not in RIGHTS:
                raise ImproperlyConfiguredException(
                    f"{' '.join(sorted(methods))} {route.path} ({handler.handler_name}) declares "
                    f"no right: give its decorator access=, one of {', '.join(RIGHTS)}"
                )


def _name(host: str) -> str | None:
    """The name in a Host header, without port; None for what is none."""
    found = HOST.fullmatch(host)
    return found["name"].lower() if found else None


def _address(host: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(host.strip("[]"))
    return None


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of `origin` came from `host`: then it is ours, as `host` is."""
    scheme, _, place = origin.lower().partition("://")
    port = DEFAULT_PORTS.get(scheme)
    return port is not None and place.removesuffix(port) == host.lower().removesuffix(port)


def refuse_other_sites(sites: Iterable[str]) -> None:
    """For browsers that leave `Origin` out (Fetch Metadata Request Headers, section 2.4). Raises
    NotForPages.
    """
    if any(site.strip().lower() in ("cross-site", "same-site") for site in sites):
        raise NotForPages(
            "Another site's page is not allowed to call this server, which has no API keys. "
            "Add its origin to server.cors_origins, or set keys.",
            param="server.cors_origins",
        )


def _is_a_browsers(headers: Headers) -> bool:
    return any(name in FROM_BROWSERS or name.startswith("sec-fetch-") for name in headers)


def _values(headers: Headers, name: str) -> list[str]:
    """Without the white space behind them, which the server's parser leaves (RFC 9110, 5.5)."""
    return [value.strip() for value in headers.getall(name, [])]


def _has_body(headers: Headers) -> bool:
    lengths = _values(headers, "content-length")
    return "transfer-encoding" in headers or any(length != "0" for length in lengths)


def _check_content_type(types: Iterable[str]) -> None:
    for kind in types:
        if kind.partition(";")[0].strip().lower() in WITHOUT_PREFLIGHT:
            raise UnsupportedMediaType(
                f"content-type: expected application/json, got {kind[:_SHOWN] or 'none'}. "
                "Without API keys a browser's request needs this header, since a page of any site "
                "could send it otherwise.",
                param="content-type",
            )
