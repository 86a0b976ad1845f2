"""The store of computed beginnings: carries out what the shelf decides. It has the bytes, a lock,
the clock and the threads of the disk tier. Several engines' threads use it at once; none of them
waits for a disk.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import structlog

from backends.contract.beginnings import Coming, Found, Taken, Tier, packed
from backends.contract.latest import Latest
from backends.places.kept.files import Folder, Head, Unusable
from backends.places.kept.shelf import Delete, Entry, Order, Origin, Read, Release, Shelf, Write
from config.values import alike

log = structlog.get_logger(__name__)

MOST_PINNED = 1_000  # names of conversations; the ones pinned first are forgotten
TICK = 5.0  # seconds between two looks for what may go to disk


class KeptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, for people. `size` in bytes; `age`, `idle`: seconds since it was made, and used.
    `saves`: seconds that computing it takes.
    """

    id: int
    model: str
    tokens: int
    size: int
    tiers: tuple[Tier, ...]
    age: float
    idle: float
    uses: int
    saves: float
    pinned: bool


class KeptBeginning(KeptFacts, frozen=True, kw_only=True):
    """An entry, and whose it is."""

    owner: str
    conversation: str


class KeptCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store holds, and what it was good for since the server's start, by tier: how often
    a prompt went on from it, and for how many tokens; and the seconds that were not computed.
    """

    entries: int
    memory: int
    memory_limit: int
    disk: int
    disk_limit: int
    hits: dict[Tier, int]
    tokens: dict[Tier, int]
    seconds: float
    taken: int


class KeptStore:
    """`memory`, `disk`: bytes that may be kept there. `folder`: None: nothing goes to disk. Used
    by any thread.
    """

    def __init__(
        self,
        *,
        memory: int,
        folder: Folder | None = None,
        disk: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._shelf = Shelf(memory=memory, disk=disk if folder is not None else 0)
        self._folder = folder
        self._now = now
        self._lock = threading.RLock()
        self._bytes: dict[int, Taken] = {}  # of what is in memory
        self._paths: dict[int, Path] = {}  # of what is on disk
        self._pinned = Latest[tuple[str, str], None](MOST_PINNED)  # owners, their conversations
        self._hits: dict[Tier, int] = {"memory": 0, "disk": 0}
        self._tokens: dict[Tier, int] = {"memory": 0, "disk": 0}
        self._saved = 0.0
        self._taken = 0
        self._closed = threading.Event()
        self._writer = ThreadPoolExecutor(1, "kept-writer")
        self._reader = ThreadPoolExecutor(1, "kept-reader")

    def open(self) -> None:
        """Find what is on disk. Blocks."""
        if self._folder is None:
            return
        try:
            found = [(path, _entry(head, tokens)) for path, head, tokens in self._folder.open()]
        except OSError as error:
            log.warning("conversations are not kept on disk", reason=str(error))
            self._folder, self._shelf.disk = None, 0
            return
        with self._lock:
            for path, entry in found:
                entry.pinned = self._folder.is_pinned(path)
                if entry.pinned and entry.conversation:
                    self._pinned[entry.origin.owner, entry.conversation] = None
                orders = self._shelf.listed(entry)
                self._paths[entry.number] = path
                self._carry_out(orders)
        threading.Thread(target=self._run, name="kept-clock", daemon=True).start()

    def flush(self) -> None:
        """What is in memory is on disk, if there is one, as far as it has room. Blocks."""
        with self._lock:
            self._carry_out(self._shelf.closing(self._now()))
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """What is in memory goes to disk, if there is one. Blocks."""
        self._closed.set()
        self.flush()
        self._writer.shutdown()
        self._reader.shutdown()

    def _run(self) -> None:
        while not self._closed.wait(TICK):
            with self._lock:
                self._carry_out(self._shelf.tick(self._now()))

    def beginnings(self, identity: str, model: str) -> "ModelBeginnings":
        """What an engine of `model` sees of it; `identity`: see `Origin`."""
        return ModelBeginnings(self, identity, model)

    def longest(self, origin: Origin, tokens: Sequence[int], than: int) -> Found | Coming | None:
        """See `Beginnings.longest`."""
        with self._lock:
            found = self._shelf.longest(origin, tokens, than)
            if found is None:
                return None
            entry, start = found
            self._carry_out(self._shelf.wanted(self._now(), entry.number))
            if entry.in_memory:
                tier: Tier = "disk" if entry.is_read else "memory"
                return Found(entry.number, self._bytes[entry.number], start, tier)
            return Coming() if entry.is_moving else None

    def put_back(self, found: Found, tokens: int, seconds: float) -> None:
        """See `Beginnings.put_back`."""
        taken = found.taken
        with self._lock:
            if (entry := self._shelf.entries.get(found.number)) is not None:
                self._shelf.rates.copied(entry.origin.identity, entry.size, seconds)
            self._shelf.used(self._now(), found.number)
            self._hits[found.tier] += 1
            self._tokens[found.tier] += tokens
            self._saved += max(0.0, taken.seconds * tokens / len(taken.tokens) - seconds)

    def wants(self, origin: Origin, tokens: Sequence[int], size: int, seconds: float) -> bool:
        """See `Beginnings.wants`."""
        with self._lock:
            return self._shelf.wants(self._now(), origin, tokens, size, seconds)

    def keep(self, origin: Origin, model: str, taken: Taken, seconds: float) -> None:
        """See `Beginnings.keep`."""
        now = self._now()
        entry = alike(Entry, taken)(
            number=0,
            origin=origin,
            tokens=packed(taken.tokens),
            made=now,
            used=now,
            model=model,
            pinned=(origin.owner, taken.conversation) in self._pinned,
        )
        with self._lock:
            self._shelf.rates.copied(origin.identity, taken.size, seconds)
            orders = self._shelf.put(now, entry)
            if entry.number in self._shelf.entries:
                self._bytes[entry.number] = taken
                self._taken += 1
            self._carry_out(orders)

    def allow(self, memory: int) -> None:
        """From now on entries may have so much memory."""
        with self._lock:
            self._carry_out(self._shelf.allow(self._now(), memory))

    @property
    def memory(self) -> int:
        """Bytes that are kept in memory."""
        with self._lock:
            return sum(taken.size for taken in self._bytes.values())

    def listed(self) -> Sequence[KeptBeginning]:
        """All entries, the last used first."""
        now = self._now()
        with self._lock:
            entries = sorted(self._shelf.entries.values(), key=lambda one: -one.used)
            return [_for_people(entry, now) for entry in entries]

    def counts(self) -> KeptCounts:
        """See there."""
        with self._lock:
            return KeptCounts(
                entries=len(self._shelf.entries),
                memory=self.memory,
                memory_limit=self._shelf.memory,
                disk=self._shelf.on_disk,
                disk_limit=self._shelf.disk,
                hits=dict(self._hits),
                tokens=dict(self._tokens),
                seconds=self._saved,
                taken=self._taken,
            )

    def drop(self, chosen: Callable[[KeptBeginning], bool]) -> int:
        """Forget entries; how many."""
        now = self._now()
        with self._lock:
            entries = tuple(self._shelf.entries.values())
            numbers = [entry.number for entry in entries if chosen(_for_people(entry, now))]
            for number in numbers:
                self._carry_out(self._shelf.drop(number))
            return len(numbers)

    def pin(self, chosen: Callable[[KeptBeginning], bool], *, pinned: bool) -> int:
        """Entries that nothing else pushes out, while models leave them memory; how many. No more
        of one owner's than its share.
        """
        now = self._now()
        with self._lock:
            entries = [
                entry
                for entry in self._shelf.entries.values()
                if chosen(_for_people(entry, now)) and self._shelf.pin(entry.number, pinned=pinned)
            ]
            for entry in entries:
                self._mark(entry)
            return len(entries)

    def _mark(self, entry: Entry) -> None:
        """Whether it is pinned is known after a restart, too."""
        if self._folder is not None and (path := self._paths.get(entry.number)) is not None:
            mark = partial(self._folder.pin, path, pinned=entry.pinned)
            self._start(self._writer, mark)

    def pin_conversation(self, owner: str, conversation: str, *, pinned: bool) -> int:
        """The conversation that `owner` calls so, and what will be kept of it; entries so far."""
        with self._lock:
            self._pinned.pop((owner, conversation), None)
            if pinned:
                self._pinned[owner, conversation] = None
            return self.pin(
                lambda one: (one.owner, one.conversation) == (owner, conversation), pinned=pinned
            )

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            match order:
                case Release(number):
                    self._bytes.pop(number, None)
                case Delete(number):
                    path = self._paths.pop(number, None)
                    if path is not None and self._folder is not None:
                        self._start(self._writer, self._folder.remove, path)
                case Write(number):
                    taken = self._bytes[number]
                    head = _head(self._shelf.entries[number], taken)
                    self._start(self._writer, self._write, number, head, taken)
                case Read(number):
                    self._start(self._reader, self._read, number, self._paths[number])

    def _start(
        self, pool: ThreadPoolExecutor, work: Callable[..., None], *arguments: object
    ) -> None:
        """What can't be started any more is not needed: the server stops."""
        with contextlib.suppress(RuntimeError):
            pool.submit(work, *arguments).add_done_callback(_report)

    def _write(self, number: int, head: Head, taken: Taken) -> None:
        """On the writer's thread."""
        assert self._folder is not None
        with self._lock:
            if (entry := self._shelf.entries.get(number)) is None:
                return
            if self._shelf.pauses(self._now()):
                self._carry_out(self._shelf.unwritten(self._now(), number))
                return
        try:
            path = self._folder.write(head, taken)
            self._folder.pin(path, pinned=entry.pinned)
        except OSError as error:
            log.warning("conversations can't be kept on disk now", reason=str(error))
            with self._lock:
                self._carry_out(self._shelf.unwritten(self._now(), number))
            return
        with self._lock:
            self._paths[number] = path
            self._carry_out(self._shelf.written(self._now(), number))

    def _read(self, number: int, path: Path) -> None:
        """On the reader's thread."""
        assert self._folder is not None
        began = time.perf_counter()
        try:
            taken = self._folder.read(path)
        except (Unusable, OSError, MemoryError) as error:
            self._folder.discard(path, error)
            with self._lock:
                self._carry_out(self._shelf.drop(number))
            return
        with self._lock:
            self._shelf.rates.read(taken.size, time.perf_counter() - began)
            self._bytes[number] = taken
            self._carry_out(self._shelf.came(self._now(), number))


class ModelBeginnings(msgspec.Struct, eq=False):
    """The store, as one model's engine sees it. See `Beginnings`."""

    _store: KeptStore
    _identity: str
    _model: str

    def longest(self, owner: str, tokens: Sequence[int], than: int) -> Found | Coming | None:
        return self._store.longest(Origin(self._identity, owner), tokens, than)

    def put_back(self, found: Found, tokens: int, seconds: float) -> None:
        self._store.put_back(found, tokens, seconds)

    def wants(self, owner: str, tokens: Sequence[int], size: int, seconds: float) -> bool:
        return self._store.wants(Origin(self._identity, owner), tokens, size, seconds)

    def keep(self, taken: Taken, seconds: float) -> None:
        self._store.keep(Origin(self._identity, taken.owner), self._model, taken, seconds)


def _report(future: "Future[None]") -> None:
    if (error := future.exception()) is not None:
        log.error("the store of kept conversations failed", exc_info=error)


def _entry(head: Head, tokens: bytes) -> Entry:
    return alike(Entry, head)(
        number=0,
        origin=Origin(head.identity, head.owner),
        tokens=tokens,
        size=sum(head.sizes),
        used=head.made,
    )


def _head(entry: Entry, taken: Taken) -> Head:
    return alike(Head, entry)(
        identity=entry.origin.identity,
        owner=entry.origin.owner,
        sizes=taken.sizes,
    )


def _for_people(entry: Entry, now: float) -> KeptBeginning:
    tiers: list[Tier] = []
    if entry.in_memory:
        tiers.append("memory")
    if entry.on_disk:
        tiers.append("disk")
    return alike(KeptBeginning, entry)(
        id=entry.number,
        owner=entry.origin.owner,
        tokens=entry.cells,
        tiers=tuple(tiers),
        age=max(0.0, now - entry.made),
        idle=max(0.0, now - entry.used),
        saves=entry.seconds,
    )
