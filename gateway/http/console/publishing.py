"""Writes the feed: what changed in the registry and among requests, downloads and the log's lines,
and the gauges.

After a while without readers only the hour's history is kept.
"""

import time
from collections.abc import Awaitable, Callable

import anyio
import structlog

from gateway.http.console.feed import DownloadGone, Feed, ModelGone, News, RequestNews
from gateway.http.console.models import model_news
from gateway.http.services import Services
from gateway.registry.status import Changes
from gateway.tasks import companions

POLL_EVERY = 0.25  # seconds between two polls; of faster changes the last is sent
SECOND = 1.0  # between two gauges
LINGER = 60.0  # seconds after its last reader in which one may come again and miss nothing
REST = 10.0  # seconds after a poll that failed

log = structlog.get_logger(__name__)


async def again_and_again(
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
        self._read = -LINGER  # time of the last read
        self._sampled = -LINGER
        self._last_line = services.lines.last

    async def run(self) -> None:
        """Until the server stops."""
        async with companions() as tasks:
            tasks.start_soon(again_and_again, self._poll, POLL_EVERY)
            tasks.start_soon(again_and_again, self._measure, SECOND)
            with self._services.registry.watchers.watching() as changes:
                await self._follow_models(changes)
            self._feed.end()

    def _is_read(self) -> bool:
        """Whether there is a reader, or was one lately; else nothing is written."""
        now = time.monotonic()
        if self._feed.readers:
            self._read = now
        is_read = now - self._read < LINGER
        if not is_read:
            self._feed.interrupt()
        return is_read

    async def _follow_models(self, changes: Changes) -> None:
        while names := await changes.read():
            if self._is_read():
                try:
                    await self._publish_models(names)
                except Exception:  # as in `again_and_again`
                    log.exception("the console missed a model")
            await anyio.sleep(POLL_EVERY)

    async def _publish_models(self, names: frozenset[str]) -> None:
        statuses = list(self._services.registry.statuses(names))
        for one in await model_news(self._services, statuses):
            self._feed.add(one)
        for name in sorted(names.difference(one.id for one in statuses)):
            self._feed.add(ModelGone(name))

    async def _poll(self) -> None:
        """Polls what has no notification of changes."""
        is_read = self._is_read()
        moved = self._services.activity.take_moved(running=False)
        downloads, gone = self._services.downloads.take_moved()
        lines = self._services.lines.after(self._last_line)
        self._last_line = lines[-1].number if lines else self._last_line
        if not is_read:
            return
        found: list[News] = [RequestNews(owner, standing) for owner, standing in moved]
        for news in (*found, *downloads, *map(DownloadGone, gone), *lines):
            self._feed.add(news)

    async def _measure(self) -> None:
        """The gauges; and requests that run, since their answers grow."""
        services, is_read = self._services, self._is_read()
        if not is_read and time.monotonic() - self._sampled < services.history.every:
            return
        self._sampled = time.monotonic()
        gauges = await services.sampler.sample()
        services.history.take(gauges)
        if is_read:
            self._feed.add(gauges)
            for owner, standing in services.activity.take_moved(running=True):
                self._feed.add(RequestNews(owner, standing))
