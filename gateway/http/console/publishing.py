"""Writes the feed: what changed in the registry and among requests, downloads and the log's lines,
and the gauges.

After a while without readers only the hour's history is kept.
"""

import time
from collections.abc import Awaitable, Callable

import anyio
import structlog

from gateway.http.console.feed import (
    ConsoleEvent,
    DownloadRemoved,
    Feed,
    ModelRemoved,
    RequestUpdate,
)
from gateway.http.console.models import model_updates
from gateway.http.services import Services
from gateway.registry.status import Changes
from gateway.tasks import companions

POLL_EVERY = 0.25  # seconds between two polls; of faster changes the last is sent
SECOND = 1.0  # between two gauges
LINGER = 60.0  # seconds after its last reader in which one may come again and miss nothing
REST = 10.0  # seconds after a poll that failed

log = structlog.get_logger(__name__)


async def poll_forever(
    poll: Callable[[], Awaitable[None]], every: float, rest: float = REST
) -> None:
    """For ever. The server survives any error in a poll: no answer depends on it."""
    while True:
        await anyio.sleep(every)
        try:
            await poll()
        except Exception:
            log.exception("the console missed something")
            await anyio.sleep(rest)


class Publisher:
    """One per server; it runs as long as that."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._feed: Feed = services.feed
        self._last_line = services.lines.last
        self._publishes = False

    async def run(self) -> None:
        """Until the server stops."""
        with self._services.registry.watchers.watching() as changes:
            async with companions() as tasks:
                tasks.start_soon(poll_forever, self._rest, self._services.history.every)
                while not self._feed.ended:
                    await self._feed.wait_for_reader()
                    await self._publish(changes)

    async def _publish(self, changes: Changes) -> None:
        """Until there has been no reader for `LINGER` seconds, or the server stops."""
        self._publishes = True
        async with companions() as tasks:
            tasks.start_soon(poll_forever, self._poll, POLL_EVERY)
            tasks.start_soon(poll_forever, self._measure, SECOND)
            tasks.start_soon(self._cancel_when_unread, tasks.cancel_scope)
            await self._follow_models(changes)
            self._feed.end()
        self._publishes = False
        if not self._feed.ended:
            self._feed.interrupt()

    async def _cancel_when_unread(self, scope: anyio.CancelScope) -> None:
        last_read = time.monotonic()
        while (now := time.monotonic()) - last_read < LINGER:
            last_read = now if self._feed.readers else last_read
            await anyio.sleep(SECOND)
        scope.cancel()

    async def _follow_models(self, changes: Changes) -> None:
        while names := await changes.read():
            try:
                await self._publish_models(names)
            except Exception:  # as in `poll_forever`
                log.exception("the console missed a model")
            await anyio.sleep(POLL_EVERY)

    async def _publish_models(self, names: frozenset[str]) -> None:
        statuses = list(self._services.registry.statuses(names))
        for one in await model_updates(self._services, statuses):
            self._feed.add(one)
        for name in sorted(names.difference(one.id for one in statuses)):
            self._feed.add(ModelRemoved(name))

    async def _poll(self) -> None:
        """Publishes what has no notification of changes."""
        for event in self._moved():
            self._feed.add(event)

    def _moved(self) -> list[ConsoleEvent]:
        """What has changed since the last call."""
        services = self._services
        requests = services.activity.take_moved(running=False)
        downloads, gone = services.downloads.take_moved()
        lines = services.lines.after(self._last_line)
        self._last_line = lines[-1].number if lines else self._last_line
        found: list[ConsoleEvent] = [RequestUpdate(owner, standing) for owner, standing in requests]
        return [*found, *downloads, *map(DownloadRemoved, gone), *lines]

    async def _rest(self) -> None:
        """While nobody reads: what changed is forgotten, the history goes on."""
        if not (self._publishes or self._feed.readers):
            self._moved()
            self._services.history.take(await self._services.sampler.sample())

    async def _measure(self) -> None:
        """The gauges; and requests that run, since their answers grow."""
        gauges = await self._services.sampler.sample()
        self._services.history.take(gauges)
        self._feed.add(gauges)
        for owner, standing in self._services.activity.take_moved(running=True):
            self._feed.add(RequestUpdate(owner, standing))
