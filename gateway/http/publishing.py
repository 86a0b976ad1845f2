"""Writes the console's feed: what changed in the registry and among requests, downloads and the
log's lines, and the gauges.

After a while without readers only the hour's history is kept.
"""

import time
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from config.values import alike
from gateway.answers.interpreter import Known
from gateway.http.feed import (
    ConsoleEvent,
    DownloadRemoved,
    Feed,
    ModelRemoved,
    ModelUpdate,
    RequestUpdate,
)
from gateway.http.gauges import EVERY, LoadProgress, ModelWire
from gateway.http.services import Services, context_length
from gateway.registry import ModelStatus
from gateway.registry.overview import Fit, ModelCost
from gateway.registry.status import Changes
from gateway.terms.tasks import companions


async def model_updates(services: Services, statuses: list[ModelStatus]) -> list[ModelUpdate]:
    """The models with everything that is known of them."""
    known = await services.capabilities.of_all(statuses)
    default = services.registry.default_name()
    return [_update(services, one, known.get(one.id), default) for one in statuses]


def _update(
    services: Services, status: ModelStatus, known: Known | None, default: str | None
) -> ModelUpdate:
    overview, files, entry = services.registry.overview, status.files, status.entry
    cost = overview.cost(entry) if entry is not None else None
    facts, left, now = services.facts(status), status.remaining_seconds, time.time()
    model = alike(ModelWire, status)(
        progress=progress_of(status, cost, now),
        backend=files.backend if files else None,
        library=facts.library if facts else None,
        format=files.format if files else None,
        architecture=files.architecture if files else None,
        remote=files is not None and files.elsewhere is not None,
        context_length=context_length(status),
        size_bytes=files.size_bytes or None if files else None,
        capabilities=known.capabilities if known else None,
        pinned=cost.pinned if cost else entry is not None and entry.pinned,
        preload=entry is not None and entry.preload,
        default=default in (status.id, *status.aliases),
        copy_of=services.reloader.copies.get(status.id),
        same_as=entry.of.name if entry and entry.of else None,
        cost=cost.devices if cost else None,
        parts=cost.parts if cost else None,
        measured=cost is not None and cost.measured,
        load_seconds=cost.load_seconds if cost else None,
        missing_bytes=status.missing,
        memory=status.arithmetic or None,
        fit=overview.fit(entry) if entry is not None else Fit(verdict="unknown"),
        slots=cost.slots if cost else None,
        ttl=cost.ttl if cost else None,
        expires_at=now + left if left is not None else None,
        loaded_at=now - cost.loaded_for if cost and cost.loaded_for is not None else None,
        file=_file(status),
    )
    why_failed = status.why_failed and services.without_paths(status.why_failed)
    return ModelUpdate(model, why_failed)


def progress_of(status: ModelStatus, cost: ModelCost | None, now: float) -> LoadProgress | None:
    """While it loads, also before its engine reports anything."""
    if status.state != "loading":
        return None
    progress, since = status.progress, cost.loading_for if cost else None
    since = since or 0.0
    last = cost.load_seconds if cost else None
    return LoadProgress(
        stage=progress.stage if progress else "",
        done=progress.done if progress else 0,
        total=progress.total if progress else 0,
        began_at=now - since,
        seconds_left=max(0.0, last - since) if last is not None else None,
    )


def _file(status: ModelStatus) -> str | None:
    """The name of the file or folder; None where it is not on this machine."""
    if status.files is None:
        return status.unusable.name if status.unusable is not None else None
    return status.files.path.name if status.files.elsewhere is None else None


POLL_EVERY = 0.25  # seconds between two polls; of faster changes the last is sent
SECOND = 1.0  # between two gauges
CONSOLE = "console"  # what it is called where a poll fails
LINGER = 60.0  # seconds after its last reader in which one may come again and miss nothing


async def poll_forever(poll: Callable[[], Awaitable[None]], every: float) -> None:
    """Until it fails."""
    while True:
        await anyio.sleep(every)
        await poll()


class Publisher:
    """One per server; it runs as long as that."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._feed: Feed = services.feed
        self._last_line = services.lines.last
        self._publishes = False
        self._supervisor = services.registry.supervisor

    async def run(self) -> None:
        """Until the server stops."""
        with self._services.registry.watchers.watching() as changes:
            async with companions() as tasks:
                self._poll_in(tasks, self._rest, EVERY)
                while not self._feed.ended:
                    await self._feed.wait_for_reader()
                    await self._publish(changes)

    async def _publish(self, changes: Changes) -> None:
        """Until there has been no reader for `LINGER` seconds, or the server stops."""
        self._publishes = True
        async with companions() as tasks:
            self._poll_in(tasks, self._poll, POLL_EVERY)
            self._poll_in(tasks, self._measure, SECOND)
            tasks.start_soon(self._cancel_when_unread, tasks.cancel_scope)
            await self._follow_models(changes)
            self._feed.end()
        self._publishes = False
        if not self._feed.ended:
            self._feed.interrupt()

    def _poll_in(self, tasks: TaskGroup, poll: Callable[[], Awaitable[None]], every: float) -> None:
        """What fails is missed by the console alone."""
        tasks.start_soon(self._supervisor.keep, CONSOLE, poll_forever, poll, every)

    async def _cancel_when_unread(self, scope: anyio.CancelScope) -> None:
        last_read = time.monotonic()
        while (now := time.monotonic()) - last_read < LINGER:
            last_read = now if self._feed.readers else last_read
            await anyio.sleep(SECOND)
        scope.cancel()

    async def _follow_models(self, changes: Changes) -> None:
        while names := await changes.read():
            await self._supervisor.attempt(CONSOLE, self._publish_models, names)
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
        requests = services.books.activity.take_moved(running=False)
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
        for owner, standing in self._services.books.activity.take_moved(running=True):
            self._feed.add(RequestUpdate(owner, standing))
