"""llama-swap's own calls, for scripts and widgets that people have: what runs, unloading, the log,
and any route of a command's server. Its answers are llama-swap's: texts, and `running`.
"""

import time
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import msgspec
import structlog
from litestar import get, post, route
from litestar.types import ASGIApp, Receive, Scope, Send

from backends.contract.remote import Passing
from config.commands import COMMAND
from gateway.dialects import openai
from gateway.http.auth import AnyRequest, refuse_other_sites
from gateway.http.request_log import audit
from gateway.http.routes.console import FeedReader
from gateway.http.routes.tabby import unload_models
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import BARE, Plain, attended, while_connected
from gateway.keys.access import Access
from gateway.terms.errors import GatewayError, NotFound, translated
from gateway.terms.logs import LogLine

log = structlog.get_logger()

TEXT = "text/plain"
PLAIN = b"text/plain; charset=utf-8"
STATES: Mapping[str, str] = {"loading": "starting", "loaded": "ready", "draining": "stopping"}
# Of one connection, or between a client and this server (RFC 9110, 7.6.1).
NOT_PASSED = {
    *("host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer"),
    *("upgrade", "authorization", "x-api-key", "x-admin-key", "cookie", "accept-encoding"),
}
OF_CONNECTIONS = (b"connection", b"keep-alive", b"transfer-encoding")

api = Routes()


class RunningWire(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory, as llama-swap lists it. `ttl`: seconds until it is unloaded; 0: it is in
    use, or stays. Commands and addresses are not told.
    """

    model: str
    state: str
    cmd: str = ""
    proxy: str = ""
    ttl: int
    name: str = ""
    description: str = ""


class AllRunningWire(msgspec.Struct, frozen=True):
    """The models in memory."""

    running: Sequence[RunningWire]


@api(get, "/running", access="user")
async def running(request: AnyRequest, services: Services) -> AllRunningWire:
    """List the models in memory, as llama-swap does; presets are no models of their own."""
    there = [
        RunningWire(model=one.id, state=STATES[one.state], ttl=round(one.remaining_seconds or 0))
        for one in services.visible(request.auth)
        if one.state in STATES and not (one.entry and one.entry.of)
    ]
    return AllRunningWire(there)


@api(get, "/unload", access="admin", text=TEXT)
async def unload_by_get(request: AnyRequest, services: Services) -> ASGIApp:
    """Unload all models, as llama-swap does."""
    return await _unloading(request, services, "")


@api(post, "/api/models/unload", access="admin", text=TEXT)
async def unload_all(request: AnyRequest, services: Services) -> ASGIApp:
    """Unload all models, as llama-swap does."""
    return await _unloading(request, services, "")


@api(post, "/api/models/unload/{model:path}", access="admin", text=TEXT)
async def unload_one(request: AnyRequest, services: Services, model: str) -> ASGIApp:
    """Unload a model, as llama-swap does."""
    return await _unloading(request, services, model.strip("/"))


async def _unloading(request: AnyRequest, services: Services, model: str) -> ASGIApp:
    refuse_other_sites(request.headers.getall("sec-fetch-site", []))
    audit(request, "unload", model=model or None)
    async with attended(request):
        await unload_models(services, model, request.auth, force=False)
    return Plain(b"OK", media_type=PLAIN)


@api(get, "/logs", access="admin", text=TEXT)
async def logs(services: Services) -> ASGIApp:
    """The last lines of the log, as text."""
    return Plain(_written(services.lines.after(0)), media_type=PLAIN)


@api(get, "/logs/stream", access="admin", text=TEXT)
async def log_stream(request: AnyRequest, services: Services) -> ASGIApp:
    """The last lines of the log, then each new one."""
    tail = _LogTail(services, request)
    silent = msgspec.structs.replace(BARE, media_type=PLAIN.decode())
    return services.progress(request.auth, tail.send_events, openai.error_event, silent)


class _LogTail(FeedReader):
    """The log's lines as text, to one client that stays an administrator."""

    _line = 0

    def _is_let_in(self) -> bool:
        return super()._is_let_in() and self._access.role == "admin"

    async def _frames(self) -> bytes:
        self._position = self._services.feed.last
        lines = self._services.lines.after(self._line)
        self._line = lines[-1].number if lines else self._line
        return _written(lines)


def _written(lines: Sequence[LogLine]) -> bytes:
    return "".join(
        f"{time.strftime('%F %T', time.localtime(one.time))} [{one.level}] {one.event} "
        f"{' '.join(f'{name}={value}' for name, value in one.fields.items())}".rstrip()
        + "\n"
        for one in lines
    ).encode()


@api(
    route,
    "/upstream/{rest:path}",
    http_method=["GET", "POST", "PUT", "PATCH", "DELETE"],
    access="admin",
    include_in_schema=False,  # it is the other server's API
)
async def passed(request: AnyRequest, services: Services) -> ASGIApp:
    """Any route of a command's own server: `/upstream/MODEL/ROUTE`. The model is loaded first."""
    refuse_other_sites(request.headers.getall("sec-fetch-site", []))
    raw: bytes = request.scope["raw_path"]
    parts = raw.decode("latin-1").removeprefix("/upstream/").split("/")
    name, path = _addressed(services, parts, request.auth)
    query = request.scope["query_string"].decode("latin-1")
    return Passage(services, request, name, f"/{path}?{query}" if query else f"/{path}")


def _addressed(services: Services, parts: Sequence[str], access: Access) -> tuple[str, str]:
    """The command, whose name may have slashes, and the rest of the path. Raises NotFound."""
    commands = {
        name
        for one in services.visible(access)
        if one.files is not None and one.files.backend == COMMAND
        for name in (one.id, *one.aliases)
    }
    for end in range(len(parts), 0, -1):
        if (name := unquote("/".join(parts[:end]))) in commands:
            return name, "/".join(parts[end:])
    raise NotFound(f"{unquote(parts[0])!r:.200} is no model that is a command.", param="model")


class Passage(msgspec.Struct, eq=False):
    """A request that a command's own server answers, and its answer, both as they are."""

    _services: Services
    _request: AnyRequest
    _name: str
    _path: str
    _began: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError as long as nothing has been sent; an answer that ends before it is
        whole cuts the connection.
        """
        content = await self._request.body()
        try:
            async with (
                while_connected(receive),
                self._services.registry.lease(self._name, access=self._request.auth) as lease,
            ):
                if not isinstance(lease.container, Passing):
                    raise NotFound(f"{self._name} runs on another machine.", param="model")
                with translated():
                    await self._pass(lease.container, content, send)
        except GatewayError as error:
            if not self._began:
                raise
            log.warning("a command's answer was cut", model=self._name, reason=error.message)

    async def _pass(self, container: Passing, content: bytes, send: Send) -> None:
        given = self._request.headers.items()
        headers = {name: value for name, value in given if name not in NOT_PASSED}
        method = str(self._request.method)
        async with container.passed(method, self._path, headers, content) as answer:
            kept = [line for line in answer.headers if line[0].lower() not in OF_CONNECTIONS]
            self._began = True
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for piece in answer.body:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
