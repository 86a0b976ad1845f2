"""The console's stream of events: a snapshot, then what changes."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, get
from litestar.types import ASGIApp

from gateway.access import Access
from gateway.dialects import openai
from gateway.errors import InvalidKey
from gateway.http.console.feed import seen_event, seen_gauges, seen_history, seen_model
from gateway.http.console.models import model_updates
from gateway.http.console.wire import GaugesWire, HistoryWire, ModelWire
from gateway.http.plain import Plain
from gateway.http.request_record import RequestStanding
from gateway.http.routes.console import MeWire, address, who
from gateway.http.services import Services
from gateway.http.sse import EventStream, ProgressStream
from gateway.hub import DownloadState
from gateway.logs import LogLine

AnyRequest = Request[Any, Any, Any]

LOG_LINES = 200  # of a snapshot


class SnapshotWire(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, as one caller may see it."""

    time: float
    me: MeWire
    models: Sequence[ModelWire]
    requests: Sequence[RequestStanding]
    gauges: GaugesWire
    history: HistoryWire
    downloads: Sequence[DownloadState]
    log: Sequence[LogLine]


class ModelsWire(msgspec.Struct, frozen=True):
    """All models the caller may use."""

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
        self._access = services.authenticator.admit(request.headers)
        last = request.headers.get("last-event-id", "")
        self._position = services.feed.number(last, self._access)

    async def send_events(self, events: EventStream) -> None:
        """Until the server stops or the key is gone."""
        feed = self._services.feed
        with feed.reading():
            await events.begin()
            while not feed.ended:
                await events.write(await self._frames())
                await feed.wait(self._position or 0)
                if not self._is_let_in():
                    return

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
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        id.encode(),
        event.encode(),
        msgspec.json.encode(data),
    )


async def snapshot_for(services: Services, access: Access, server: str) -> SnapshotWire:
    """Everything that the caller may see."""
    is_admin = access.role == "admin"
    return SnapshotWire(
        time=time.time(),
        me=who(services, access, server),
        models=await models_for(services, access),
        requests=services.activity.seen_by(access),
        gauges=seen_gauges(await services.sampler.sample(), access),
        history=seen_history(services.history.columns(), access),
        downloads=services.downloads.states() if is_admin else (),
        log=_log(services) if is_admin else (),
    )


def _log(services: Services) -> Sequence[LogLine]:
    return services.lines.found(level="debug", text="", after=0, limit=LOG_LINES)


async def models_for(services: Services, access: Access) -> list[ModelWire]:
    """The models the caller may use, as it may see them."""
    statuses = [one for one in services.registry.statuses() if access.allows(one.id)]
    return [seen_model(one, access) for one in await model_updates(services, statuses)]


@get("/v1/admin/events")
async def events(request: AnyRequest, services: Services) -> ASGIApp:
    """Everything as it is, and then each change; with `Last-Event-ID` what was missed."""
    reader = FeedReader(services, request)
    return ProgressStream(
        reader.send_events, openai.error_event, quiet=services.config.server.comment_after
    )


@get("/v1/admin/models")
async def models(request: AnyRequest, services: Services) -> ASGIApp:
    """All models the caller may use, with what they take and when they go."""
    access = services.authenticator.admit(request.headers)
    return Plain(msgspec.json.encode(ModelsWire(await models_for(services, access))))


@get("/v1/admin/memory")
async def memory(request: AnyRequest, services: Services) -> ASGIApp:
    """Who holds how much of each device, now and in the last hour."""
    services.authenticator.admit(request.headers).require_admin()
    gauges = await services.sampler.sample()
    found = MemoryWire(gauges=gauges, history=services.history.columns())
    return Plain(msgspec.json.encode(found))


ROUTES = (events, models, memory)
