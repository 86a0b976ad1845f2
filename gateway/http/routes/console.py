"""Routes of the console without another API: the caller's rights, running requests, the log and the
stream of events.

docs/console-api.md has the fields; they are filtered by the caller's rights.
"""

import time
from collections.abc import Sequence

import msgspec
from litestar import get, post
from litestar.types import ASGIApp

from config.product import VERSION
from config.settings import ApisConfig
from config.values import alike
from gateway.dialects import openai
from gateway.dialects.dialect import named_frame
from gateway.http.auth import AnyRequest
from gateway.http.feed import seen_event, seen_gauges, seen_history, seen_model
from gateway.http.gauges import GaugesWire, HistoryWire, ModelWire
from gateway.http.publishing import model_updates
from gateway.http.request_log import audit
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import EventStream
from gateway.http.standing import RequestStanding
from gateway.hub.downloads import DownloadState
from gateway.keys.access import Access
from gateway.terms.errors import GatewayError, InvalidKey, InvalidRequest, NotFound
from gateway.terms.logs import Level, LogLine

api = Routes()


class MeWire(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, and what is available to it."""

    role: str
    label: str | None
    models: Sequence[str] | None  # None: all of them
    autoload: bool
    keys: bool  # whether the server has any
    version: str
    server: str  # the address it was asked by
    default_model: str | None
    apis: Sequence[str]
    log_prompts: bool
    inspector: bool
    downloads: bool  # whether there is a folder for them
    uploads: bool
    deletion: bool
    paths: Sequence[str]  # folders below which models are added by their path; administrators'
    sync: bool  # whether the server keeps conversations of the console
    mcp: Sequence[str]  # servers whose tools it may use


class RequestsWire(msgspec.Struct, frozen=True):
    """Requests, the newest first."""

    requests: Sequence[RequestStanding]


@api(get, "/v1/admin/me", access="user")
async def me(request: AnyRequest, services: Services) -> MeWire:
    """Get the caller's permissions and the features that are available to it."""
    return who(services, request.auth, address(request))


def address(request: AnyRequest) -> str:
    """Of this server, as the client calls it."""
    return str(request.base_url).rstrip("/")


def who(services: Services, access: Access, server: str) -> MeWire:
    """The answer of `me`."""
    config = services.config
    folder = bool(config.hub.folder or config.model_dirs)
    return alike(MeWire, access)(
        models=sorted(access.models) or None,
        keys=not services.authenticator.is_open,
        version=VERSION,
        server=server,
        default_model=_default(services, access),
        apis=[name for name in ApisConfig.__struct_fields__ if getattr(config.apis, name) is True],
        log_prompts=config.log.prompts,
        inspector=config.inspector.enabled,
        downloads=folder,
        uploads=folder,
        deletion=config.hub.deletion,
        paths=config.console.model_paths if access.role == "admin" else (),
        sync=config.console.sync,
        mcp=services.mcp.names(access),
    )


def _default(services: Services, access: Access) -> str | None:
    """The configured default; None where there is none."""
    try:
        return services.registry.resolve("default", access).name
    except GatewayError:
        return None


@api(get, "/v1/admin/requests", access="user")
async def requests(request: AnyRequest, services: Services) -> RequestsWire:
    """List running and recent requests. Administrators get those of all keys."""
    return RequestsWire(services.books.activity.seen_by(request.auth))


@api(post, "/v1/admin/requests/{number:str}/cancel", status_code=200, access="user")
async def cancel(request: AnyRequest, services: Services, number: str) -> RequestStanding:
    """Cancel a running request. Its client gets an error."""
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise NotFound(f"Request {number!r:.40} not found.", param="number")
    cancelled = services.books.activity.cancel(int(number), request.auth)
    audit(request, "cancel", model=cancelled.model, cancelled=cancelled.request)
    return cancelled


class LogWire(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the log, the oldest first."""

    lines: Sequence[LogLine]
    first: int  # number of the oldest line that is kept
    last: int


MOST_LINES = 2000  # of one answer
MOST_SEARCHED = 200  # of the text to search for


@api(get, "/v1/admin/logs", access="admin")
async def logs(
    services: Services,
    *,
    level: Level = "debug",
    search: str = "",
    after: int = 0,
    limit: int = 200,
) -> LogWire:
    """Get the last log lines with at least the given level that contain the given text."""
    if len(search) > MOST_SEARCHED:
        raise InvalidRequest.at("search", f"at most {MOST_SEARCHED} characters")
    kept = services.lines.after(0)
    found = services.lines.found(
        level=level, text=search, after=after, limit=min(max(limit, 0), MOST_LINES)
    )
    first = kept[0].number if kept else 0
    return LogWire(lines=found, first=first, last=services.lines.last)


LOG_LINES = 200  # of a snapshot


class SnapshotWire(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state that a caller may see."""

    time: float
    me: MeWire
    models: Sequence[ModelWire]
    requests: Sequence[RequestStanding]
    gauges: GaugesWire
    history: HistoryWire
    downloads: Sequence[DownloadState]
    log: Sequence[LogLine]


class ModelsWire(msgspec.Struct, frozen=True):
    """The models that the caller may use."""

    models: Sequence[ModelWire]


class MemoryWire(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers now, and in the last hour."""

    gauges: GaugesWire
    history: HistoryWire


class FeedReader:
    """One client on its way through the feed. Its key is checked again with each batch, so that one
    which was removed or restricted gets no more than it may.
    """

    def __init__(self, services: Services, request: AnyRequest) -> None:
        self._services = services
        self._request = request
        self._access = request.auth
        last = request.headers.get("last-event-id", "")
        self._position = services.feed.number(last, self._access)

    async def send_events(self, events: EventStream) -> bytes:
        """Until the server stops or the key is gone."""
        feed = self._services.feed
        with feed.reading():
            await events.begin()
            while not feed.ended:
                await events.write(await self._frames())
                await feed.wait(self._position or 0)
                if not self._is_let_in():
                    break
        return b""

    def _is_let_in(self) -> bool:
        try:
            access = self._services.authenticator.admit(self._request.headers)
        except InvalidKey:
            return False
        if access != self._access:
            self._access, self._position = access, None
        return True

    async def _frames(self) -> bytes:
        """The events to send; a snapshot where the next ones were dropped."""
        feed, access = self._services.feed, self._access
        missed = None if self._position is None else feed.since(self._position)
        if missed is None:
            self._position = feed.last  # what happens meanwhile is sent again
            snapshot = await snapshot_for(self._services, access, address(self._request))
            return frame("snapshot", snapshot, feed.id(self._position, access))
        frames = b""
        for number, event in missed:
            self._position = number
            if (one := seen_event(event, access)) is not None:
                frames += frame(*one, feed.id(number, access))
        return frames


def frame(event: str, data: msgspec.Struct, id: str) -> bytes:
    """One server-sent event. JSON has no line ends of its own."""
    return b"id: %b\n" % id.encode() + named_frame(event.encode(), data)


async def snapshot_for(services: Services, access: Access, server: str) -> SnapshotWire:
    """Everything that the caller may see."""
    is_admin = access.role == "admin"
    return SnapshotWire(
        time=time.time(),
        me=who(services, access, server),
        models=await models_for(services, access),
        requests=services.books.activity.seen_by(access),
        gauges=seen_gauges(await services.sampler.sample(), access),
        history=seen_history(services.history.columns(), access),
        downloads=services.downloads.states() if is_admin else (),
        log=services.lines.found(level="debug", text="", after=0, limit=LOG_LINES)
        if is_admin
        else (),
    )


async def models_for(services: Services, access: Access) -> list[ModelWire]:
    """The models the caller may use, as it may see them."""
    statuses = [one for one in services.registry.statuses() if access.allows(one.id)]
    return [seen_model(one, access) for one in await model_updates(services, statuses)]


@api(get, "/v1/admin/events", access="user", events=(SnapshotWire,))
async def events(request: AnyRequest, services: Services) -> ASGIApp:
    """Stream the current state, then each change. With `Last-Event-ID`, the missed changes are
    sent.
    """
    reader = FeedReader(services, request)
    return services.progress(request.auth, reader.send_events, openai.error_event)


@api(get, "/v1/admin/models", access="user")
async def models(request: AnyRequest, services: Services) -> ModelsWire:
    """List the models that the caller may use, with their memory and expiry."""
    return ModelsWire(await models_for(services, request.auth))


@api(get, "/v1/admin/memory", access="admin")
async def memory(services: Services) -> MemoryWire:
    """Get memory use by device and model, now and during the last hour."""
    gauges = await services.sampler.sample()
    return MemoryWire(gauges=gauges, history=services.history.columns())
