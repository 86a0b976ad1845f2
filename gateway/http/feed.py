"""The events of the console's stream: their kinds and who may see them, numbered, the last ones
kept. A slow or returning reader continues where it was, or is notified that events were lost.

This is the one place that decides which events a key may see: the lists that can be requested are
filtered by the same functions.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from gateway.http.gauges import GaugesWire, HistoryWire, ModelWire
from gateway.http.standing import RequestStanding
from gateway.hub.downloads import DownloadState
from gateway.keys.access import Access
from gateway.terms.logs import LogLine
from gateway.terms.tasks import Signal


class ModelUpdate(msgspec.Struct, frozen=True):
    """A model as it is now. `why_failed`: its own without places on the disk."""

    model: ModelWire
    why_failed: str | None


class ModelRemoved(msgspec.Struct, frozen=True):
    """There is no such model any more."""

    id: str


class RequestUpdate(msgspec.Struct, frozen=True):
    """A request as it is now, and its owner."""

    owner: str
    standing: RequestStanding


class DownloadRemoved(msgspec.Struct, frozen=True):
    """A download is not listed any more."""

    id: str


class Reloaded(msgspec.Struct, frozen=True):
    """Another configuration is in force: which options changed, and which wait for a restart."""

    changed: Sequence[str]
    restart: Sequence[str]


ConsoleEvent: TypeAlias = (
    ModelUpdate
    | ModelRemoved
    | RequestUpdate
    | GaugesWire
    | DownloadState
    | DownloadRemoved
    | LogLine
    | Reloaded
)
SeenEvent: TypeAlias = tuple[str, msgspec.Struct]  # the event's name, and its data


def seen_event(event: ConsoleEvent, access: Access) -> SeenEvent | None:
    """An event as the holder of a key may see it; None: not at all."""
    match event:
        case ModelUpdate(model=model):
            return ("model", seen_model(event, access)) if access.allows(model.id) else None
        case ModelRemoved(id=id):
            return ("model_removed", event) if access.allows(id) else None
        case RequestUpdate(owner=owner, standing=standing):
            return ("request", standing) if access.oversees(owner) else None
        case GaugesWire():
            return "gauges", seen_gauges(event, access)
        case DownloadState():
            return ("download", event) if access.role == "admin" else None
        case DownloadRemoved():
            return ("download_removed", event) if access.role == "admin" else None
        case LogLine():
            return ("log", event) if access.role == "admin" else None
        case Reloaded():
            return ("reloaded", event) if access.role == "admin" else None


def seen_model(update: ModelUpdate, access: Access) -> ModelWire:
    """Keys that are no administrator's get nothing of other models, nor of file paths."""
    if access.role == "admin":
        return update.model
    return replace(
        update.model,
        why_failed=update.why_failed,
        memory=None,
        fit=None,
        missing_bytes=None,
        cost=None,
        parts=None,
        file=None,
        copy_of=None,
    )


def seen_gauges(gauges: GaugesWire, access: Access) -> GaugesWire:
    """Lines of the caller's models; memory and other models' speeds are for administrators."""
    if access.role == "admin":
        return gauges
    models = [
        replace(one, tokens_per_second=0.0, prompt_tokens_per_second=0.0, ttft=None)
        for one in gauges.models
        if access.allows(one.id)
    ]
    return replace(
        gauges,
        devices=(),
        models=models,
        waiting=sum(one.waiting for one in models),
        in_use=sum(one.in_use for one in models),
        tokens_per_second=0.0,
    )


def seen_history(history: HistoryWire, access: Access) -> HistoryWire:
    """It is for administrators; others get an empty one."""
    return history if access.role == "admin" else replace(history, times=(), devices={}, models={})


MOST = 4096  # events


NumberedEvent: TypeAlias = tuple[int, ConsoleEvent]


class Feed:
    """One per server. While there is no reader nothing is written."""

    def __init__(self, most: int = MOST) -> None:
        self._epoch = secrets.token_hex(4)  # of this server: another one counts from 1 as well
        self._events: deque[NumberedEvent] = deque(maxlen=most)
        self._first = 1  # earlier events are dropped
        self.last = 0
        self.ended = False
        self.readers = 0
        self._changed = Signal()
        self._reader_came = Signal()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around the reading of one reader: what changes meanwhile is written."""
        self.readers += 1
        self._reader_came.give()
        try:
            yield
        finally:
            self.readers -= 1

    async def wait_for_reader(self) -> None:
        """Until there is one."""
        while not self.readers:
            await self._reader_came.wait()

    def add(self, event: ConsoleEvent) -> None:
        """It happened now."""
        self.last += 1
        self._events.append((self.last, event))
        self._first, _ = self._events[0]
        self._changed.give()

    def interrupt(self) -> None:
        """Events from now on are not written: a returning reader starts with a snapshot."""
        self._events.clear()
        self.last += 1
        self._first = self.last + 1

    def end(self) -> None:
        """The server stops."""
        self.ended = True
        self._changed.give()

    def since(self, number: int) -> Sequence[NumberedEvent] | None:
        """The events behind `number`; None where some of them are gone."""
        if not self._first - 1 <= number <= self.last:
            return None
        skipped = number - self._first + 1
        return tuple(self._events)[skipped:]

    async def wait(self, number: int) -> None:
        """Until there is something behind `number`, or the end."""
        while self.last <= number and not self.ended:
            await self._changed.wait()

    def id(self, number: int, access: Access) -> str:
        """What a client sends to go on behind event `number`; of no use with another key."""
        return f"{self._epoch}-{self._whose(access)}-{number}"

    def number(self, id: str, access: Access) -> int | None:
        """What `id` says; None for what is no id of this server for this key."""
        head, _, number = id.rpartition("-")
        good = number.isascii() and number.isdigit() and len(number) <= 18
        return int(number) if good and head == f"{self._epoch}-{self._whose(access)}" else None

    def _whose(self, access: Access) -> str:
        rights = f"{self._epoch} {access.owner} {access.role} {sorted(access.models)}"
        return sha256(rights.encode()).hexdigest()[:8]
