"""Writes the feed: what changed in the registry and among the requests, and the gauges.

While nobody reads, and for a while nobody has, only the hour's history is kept.
"""

import time

import anyio

from gateway.http.console.feed import Feed
from gateway.http.console.models import model_news
from gateway.http.console.news import DownloadGone, ModelGone, RequestNews
from gateway.http.services import Services
from gateway.registry.status import Changes
from gateway.tasks import companions

BREATH = 0.25  # seconds between two looks: what changes more often is told as it is then
SECOND = 1.0  # between two gauges
LINGER = 60.0  # seconds after its last reader in which one may come again and miss nothing


class Publisher:
    """One per server; it runs as long as that."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._feed: Feed = services.feed
        self._read = -LINGER  # when somebody last did

    async def run(self) -> None:
        """Until the server stops."""
        async with companions() as tasks:
            tasks.start_soon(self._follow_requests)
            tasks.start_soon(self._measure)
            tasks.start_soon(self._follow_log)
            tasks.start_soon(self._follow_downloads)
            with self._services.registry.watchers.watching() as changes:
                await self._follow_models(changes)
            self._feed.end()

    def _is_read(self) -> bool:
        """Whether somebody reads, or did a moment ago; else nothing is written."""
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
                await self._tell_models(names)
            await anyio.sleep(BREATH)

    async def _tell_models(self, names: frozenset[str]) -> None:
        statuses = list(self._services.registry.statuses(names))
        for one in await model_news(self._services, statuses):
            self._feed.add(one)
        for name in sorted(names.difference(one.id for one in statuses)):
            self._feed.add(ModelGone(name))

    async def _follow_requests(self) -> None:
        """Those that run are told again each second, since their answers grow."""
        activity, told = self._services.activity, time.monotonic()
        while True:
            await anyio.sleep(BREATH)
            is_read, growing = self._is_read(), time.monotonic() - told >= SECOND
            told = time.monotonic() if growing else told
            for owner, standing in activity.take_moved(running=is_read and growing):
                if is_read:
                    self._feed.add(RequestNews(owner, standing))

    async def _follow_log(self) -> None:
        lines = self._services.lines
        last = lines.last
        while True:
            await anyio.sleep(BREATH)
            is_read = self._is_read()
            for line in lines.after(last):
                last = line.number
                if is_read:
                    self._feed.add(line)

    async def _follow_downloads(self) -> None:
        while True:
            await anyio.sleep(BREATH)
            moved, gone = self._services.downloads.take_moved()
            if self._is_read():
                for state in moved:
                    self._feed.add(state)
                for name in gone:
                    self._feed.add(DownloadGone(name))

    async def _measure(self) -> None:
        services, sampled = self._services, -LINGER
        while True:
            is_read = self._is_read()
            if is_read or time.monotonic() - sampled >= services.history.every:
                sampled = time.monotonic()
                gauges = await services.sampler.sample()
                services.history.take(gauges)
                if is_read:
                    self._feed.add(gauges)
            await anyio.sleep(SECOND)
