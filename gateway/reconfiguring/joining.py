"""Boxes that announce themselves to this server, and this server's own announcement to another.

A box is an upstream's server as long as its lease lasts. It renews the lease by announcing itself
again, and withdraws when it stops; the lease of one that is killed ends by itself. Boxes of one
name are replicas of one upstream. Requests that run when a box goes end with what they began with
(`Fleet.apply`). Knows no routes.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

import anyio
import httpx
import msgspec
import structlog
from msgspec.structs import replace

from backends.machine.supervision import Supervisor
from config.errors import ConfigError, Source
from config.settings import JoinConfig
from config.upstreams import UpstreamConfig, completed
from gateway.reconfiguring.reloading import Reloader
from gateway.terms.errors import InvalidRequest, QueueFull
from gateway.terms.tasks import Signal

SHORTEST_LEASE, LONGEST_LEASE = 1.0, 3600.0  # seconds
MOST_BOXES = 256
REFRESH = 10.0  # seconds between two requests for a box's list, where no model of it is known
PROBES = 2.0  # seconds between two probes of a box that failed
# A key in a header. What a configuration would read from elsewhere (`env:…`) is none.
KEY = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")

log = structlog.get_logger(__name__)


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """A box: a server at `url`, one of the upstream `name`. `key`: that it wants to be asked with;
    `lease`: seconds.
    """

    url: str
    name: str
    prefix: str = ""
    key: str | None = None
    lease: float = 30.0


class Boxes:
    """All that announced themselves, and until when. Pure: time comes with each call."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[str, str], tuple[Announcement, float]] = {}

    def announce(self, now: float, box: Announcement) -> bool:
        """Whether more changes than the end of its lease. Raises InvalidRequest, QueueFull."""
        place = box.name, box.url
        known = self._boxes.get(place)
        if known is None and len(self._boxes) >= MOST_BOXES:
            raise QueueFull(f"{MOST_BOXES} servers are announced already", retry_after=box.lease)
        for other, _ in self._boxes.values():
            if other.name == box.name and other.url != box.url and other.prefix != box.prefix:
                text = f"The other servers of {box.name!r} have {other.prefix!r}."
                raise InvalidRequest.at("prefix", text)
        self._boxes[place] = box, now + box.lease
        return known is None or known[0] != box

    def withdraw(self, name: str, url: str) -> bool:
        """Whether it was there."""
        return self._boxes.pop((name, url), None) is not None

    def end(self, now: float) -> Sequence[Announcement]:
        """Those whose leases are over; they are gone."""
        over = [box for box, until in self._boxes.values() if until <= now]
        for box in over:
            self.withdraw(box.name, box.url)
        return over

    def next_end(self) -> float | None:
        """When the next lease ends, unless it is renewed."""
        return min((until for _, until in self._boxes.values()), default=None)

    def leases(self, now: float) -> Mapping[tuple[str, str], float]:
        """Seconds that are left, by name and URL."""
        return {place: max(0.0, until - now) for place, (_, until) in self._boxes.items()}

    def upstreams(self) -> tuple[UpstreamConfig, ...]:
        """As they would be configured, in the order in which they came."""
        names = dict.fromkeys(name for name, _ in self._boxes)
        return tuple(map(self._upstream, names))

    def _upstream(self, name: str) -> UpstreamConfig:
        boxes = [box for box, _ in self._boxes.values() if box.name == name]
        return UpstreamConfig(
            name=name,
            urls=tuple(box.url for box in boxes),
            keys=tuple(box.key or "" for box in boxes),
            prefix=boxes[0].prefix,
            server="roundhouse",
            refresh=REFRESH,
            probe_interval=PROBES,
        )


class Announcements:
    """One per server: puts in force what `Boxes` says."""

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader
        self._boxes = Boxes()
        self._changed = Signal()

    async def announce(self, box: Announcement) -> Announcement:
        """The box is asked from now on, or longer; as it is known: with its whole base URL. Raises
        InvalidRequest, QueueFull.
        """
        box = checked(box)
        if self._boxes.announce(time.monotonic(), box):
            log.info("a server joined", upstream=box.name, url=box.url, lease=box.lease)
            try:
                await self._put_in_force()
            except InvalidRequest:
                self._boxes.withdraw(box.name, box.url)
                raise
        self._changed.give()
        return box

    async def withdraw(self, name: str, url: str) -> bool:
        """It gets no more requests; whether it was there."""
        if not self._boxes.withdraw(name, url):
            return False
        log.info("a server left", upstream=name, url=url)
        await self._put_in_force()
        return True

    def leases(self) -> Mapping[tuple[str, str], float]:
        """Seconds that are left, by name and URL."""
        return self._boxes.leases(time.monotonic())

    async def run(self) -> None:
        """For ever: let leases end."""
        while True:
            end = self._boxes.next_end()
            with anyio.move_on_after(None if end is None else max(0.0, end - time.monotonic())):
                await self._changed.wait()
            if over := self._boxes.end(time.monotonic()):
                for box in over:
                    log.warning("a server's lease ended", upstream=box.name, url=box.url)
                await self._put_in_force()

    async def _put_in_force(self) -> None:
        """To its end, whoever asked for it and leaves: a renewal of what is known puts nothing in
        force.
        """
        with anyio.CancelScope(shield=True):
            await self._reloader.announce(self._boxes.upstreams())


def checked(box: Announcement) -> Announcement:
    """With its whole base URL. Raises InvalidRequest."""
    if not SHORTEST_LEASE <= box.lease <= LONGEST_LEASE:
        text = f"Expected {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} seconds."
        raise InvalidRequest.at("lease", text)
    if box.key is not None and not KEY.fullmatch(box.key):
        raise InvalidRequest.at("key", "Expected 16 to 256 characters of a token.")
    for param, text in (("name", box.name), ("prefix", box.prefix)):
        if len(text) > 64 or not (text.isprintable() or not text) or (param == "name" and not text):
            raise InvalidRequest.at(param, "Expected at most 64 characters.")
    try:
        written = UpstreamConfig(name=box.name, urls=(box.url,))
        (upstream,) = completed((written,), Source("the announcement"))
    except ConfigError as error:
        raise InvalidRequest.at("url", error.problem) from None
    return replace(box, url=upstream.urls[0])


RETRY = 2.0  # seconds until a failed announcement is tried again
PATIENCE = 5.0  # seconds for the other server's answer
LAST_PATIENCE = 2.0  # the same when this server stops


class Joiner:
    """Announces this server to another, from `begin` to `withdraw`. `key`: that the other server is
    to ask this one with; None: it needs none.
    """

    def __init__(self, config: JoinConfig, key: str | None, supervisor: Supervisor) -> None:
        assert config.url is not None, "else there is nobody to join"
        self._config = config
        self._key = key
        self._supervisor = supervisor
        self._target = f"{config.url.rstrip('/').removesuffix('/v1')}/v1/upstreams"
        self._task: asyncio.Task[None] | None = None
        self._known_as: tuple[str, str] | None = None  # name and URL there
        self._trouble = ""

    def begin(self, port: int) -> None:
        """This server listens on `port`. On the event loop."""
        announcing = self._supervisor.keep("joining", self._run, port)
        self._task = asyncio.get_running_loop().create_task(announcing)

    async def withdraw(self) -> None:
        """This server takes no more requests. Raises nothing."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._known_as is None:
            return
        name, url = self._known_as
        try:
            async with self._client(LAST_PATIENCE) as client:
                await client.delete(self._target, params={"name": name, "url": url})
        except httpx.HTTPError as error:
            log.warning(
                "not withdrawn: the lease will end", server=self._config.url, reason=str(error)
            )

    async def _run(self, port: int) -> None:
        config = self._config
        body: dict[str, object] = {
            "name": config.name,
            "prefix": config.prefix,
            "key": self._key,
            "lease": config.lease,
            **({"port": port} if config.advertise is None else {"url": config.advertise}),
        }
        async with self._client(PATIENCE) as client:
            while True:
                is_known = await self._announce(client, body)
                await asyncio.sleep(config.lease / 3 if is_known else min(RETRY, config.lease / 3))

    async def _announce(self, client: httpx.AsyncClient, body: Mapping[str, object]) -> bool:
        """Whether the other server has taken it. The log has each trouble once, and its end."""
        try:
            answer = await client.post(self._target, json=body)
            if not answer.is_success:
                return self._note(f"{answer.status_code}: {answer.text[:300]}")
            wire = msgspec.json.decode(answer.content, type=Announcement)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            return self._note(str(error) or type(error).__name__)
        if self._known_as is None or self._trouble:
            log.info("joined", server=self._config.url, upstream=wire.name, url=wire.url)
        self._known_as, self._trouble = (wire.name, wire.url), ""
        return True

    def _note(self, trouble: str) -> bool:
        if trouble != self._trouble:
            log.warning("not joined", server=self._config.url, reason=trouble)
        self._trouble = trouble
        return False

    def _client(self, patience: float) -> httpx.AsyncClient:
        key = self._config.key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(headers=headers, timeout=patience, trust_env=False)
