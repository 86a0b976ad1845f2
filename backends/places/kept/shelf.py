"""The shelf of kept beginnings: which are kept, where, and which of them a prompt goes on from.
Pure: events in, orders out; it knows no engine, no bytes, no thread and no clock.

An entry is known by its origin, everything that must be the same for it to hold, and by its tokens:
a prompt is compared with all that begin with the same block.

Kept is what is worth more than it costs: the seconds that it saves, by how likely that is, to the
byte. Age alone pushes nothing out, since the side jobs of an agent are always the newest.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from backends.contract.beginnings import BLOCK, WORD, Tier, common_length, packed

HALF_LIFE = 3_600.0  # seconds in which the next use of a beginning becomes half as likely
MOST_USES = 8  # that count
LONG = 1.0  # second; whoever waits no longer than that hardly misses a beginning
AGAIN = 0.9  # of an older entry, which a longer one makes superfluous
SETTLED = 30.0  # seconds after which an entry is written to disk
PAUSE = 300.0  # seconds without writing, after a file could not be written
PINNED = 0.5  # of the most memory there was, which entries of one owner may be pinned in
WRITING = 0.5  # of the most memory there was, which entries that leave hold until written
# Bytes a second, until measured.
COPY_RATE, DISK_RATE = 1e9, 2e8
LEAST_MEASURED = 1 << 20  # bytes; a smaller copy says nothing of the rate
CALL = 1e-3  # seconds that any copy takes


class Origin(msgspec.Struct, frozen=True):
    """`identity`: a digest of what computed it: weights, adapters, options, the engine's build.
    `owner`: whose it is; "" where it is anybody's.
    """

    identity: str
    owner: str


class Entry(msgspec.Struct, eq=False, kw_only=True):
    """A beginning that is kept. `tokens`: eight bytes each, the lowest first. `places`: of its
    snapshots, ascending. Times are the caller's clock.
    """

    number: int
    origin: Origin
    tokens: bytes
    cuts_from: int
    places: tuple[int, ...]
    size: int  # bytes
    seconds: float  # that computing it takes
    made: float
    used: float
    model: str = ""
    conversation: str = ""
    uses: int = 0
    pinned: bool = False
    in_memory: bool = False
    on_disk: bool = False
    is_moving: bool = False  # a file of it is being read or written
    is_leaving: bool = False  # out of memory, once it is written
    is_read: bool = False  # from disk, and not gone on from since

    @property
    def cells(self) -> int:
        return len(self.tokens) // WORD

    @property
    def tier(self) -> Tier:
        return "memory" if self.in_memory else "disk"

    def start(self, shared: int) -> int:
        """From which of its first `shared` cells a prompt can go on; as `Slot.start`."""
        if shared >= min(self.cuts_from, self.cells):
            return shared
        return max((place for place in self.places if place <= shared), default=0)


class Order(msgspec.Struct, frozen=True):
    """What is to be done with an entry."""

    number: int


class Release(Order, frozen=True):
    """Its bytes leave memory."""


class Write(Order, frozen=True):
    """A file of it is to be written; then `written` or `unwritten` is called."""


class Read(Order, frozen=True):
    """Its file is to be read into memory; then `came` or `drop` is called."""


class Delete(Order, frozen=True):
    """Its file goes."""


class Rates(msgspec.Struct):
    """Bytes a second, as measured: of copies to and from each engine, by its identity, since one
    may be at the other end of a network; `copy`: until then.
    """

    copy: float = COPY_RATE
    disk: float = DISK_RATE
    copies: dict[str, float] = {}

    def copied(self, identity: str, size: int, seconds: float) -> None:
        """`size` bytes took so long."""
        if size >= LEAST_MEASURED and seconds > 0:
            known = self.copies.get(identity, self.copy)
            self.copies[identity] = known + 0.3 * (size / seconds - known)

    def read(self, size: int, seconds: float) -> None:
        """As `copied`, from disk."""
        if size >= LEAST_MEASURED and seconds > 0:
            self.disk += 0.3 * (size / seconds - self.disk)

    def seconds(self, identity: str, tier: Tier, size: int) -> float:
        """What it takes to put so many bytes back."""
        read = size / self.disk if tier == "disk" else 0.0
        return CALL + size / self.copies.get(identity, self.copy) + read


def _family_of(origin: Origin, tokens: bytes) -> tuple[Origin, bytes]:
    return origin, tokens[: BLOCK * WORD]


def shared(left: bytes, right: bytes) -> int:
    """How many tokens two sequences begin with alike."""
    return common_length(left, right) // WORD


class Shelf:
    """All entries. `memory`, `disk`: bytes that they may have there; no disk: 0."""

    def __init__(self, *, memory: int, disk: int = 0) -> None:
        self.entries: dict[int, Entry] = {}
        self.rates = Rates()
        self.memory, self.disk = memory, disk
        self._usual = memory  # before models took some of it
        self._paused_until = 0.0
        # By whose they are and how they begin.
        self._families = defaultdict[tuple[Origin, bytes], list[Entry]](list)
        self._numbers = itertools.count(1)

    @property
    def in_memory(self) -> int:
        """Bytes, those that are being read included."""
        return sum(one.size for one in self.entries.values() if one.in_memory or one.is_moving)

    @property
    def on_disk(self) -> int:
        """Bytes, those that are being written included."""
        return sum(
            entry.size
            for entry in self.entries.values()
            if entry.on_disk or (entry.is_moving and entry.in_memory)
        )

    def longest(self, origin: Origin, tokens: Sequence[int], than: int) -> tuple[Entry, int] | None:
        """The entry that leaves the least of a prompt to compute, and from which cell on, if that
        is worth putting it back in place of what `than` cells save. One token is always left.
        """
        if len(tokens) <= max(than, BLOCK):
            return None
        best: tuple[Entry, int] | None = None
        for entry, start in self._starts(origin, packed(tokens[:-1])):
            gained = (start - than) * entry.seconds / entry.cells
            if gained <= self.rates.seconds(origin.identity, entry.tier, entry.size):
                continue
            if best is None or (start, entry.in_memory) > (best[1], best[0].in_memory):
                best = entry, start
        return best

    def _family(self, origin: Origin, tokens: bytes) -> Sequence[Entry]:
        """Those that begin with the same block as `tokens`."""
        return self._families.get(_family_of(origin, tokens), ())

    def _starts(self, origin: Origin, prompt: bytes) -> Iterator[tuple[Entry, int]]:
        """Entries, and where a prompt can go on from each; none that has less than one before it:
        what was kept last is most likely gone on from. Thousands may begin with one system message,
        so what they have in common with it is compared at C speed, and counted once.
        """
        head = b""  # of the prompt, so far as one can go on
        for entry in reversed(self._family(origin, prompt)):
            if not entry.tokens.startswith(head):
                continue
            following = slice(len(head), len(head) + WORD)
            has_more = entry.tokens[following] == prompt[following]
            common = shared(entry.tokens, prompt) if has_more else len(head) // WORD
            if start := entry.start(common):
                yield entry, start
                if start * WORD > len(head):
                    head = prompt[: start * WORD]

    def _known(self, origin: Origin, tokens: bytes) -> tuple[Entry | None, int]:
        """The entry that has the most of `tokens`, and behind how many one can go on from it."""
        return max(self._starts(origin, tokens), key=lambda one: one[1], default=(None, 0))

    def covers(self, origin: Origin, tokens: bytes) -> Entry | None:
        """The entry from which all of `tokens` could be gone on."""
        entry, start = self._known(origin, tokens)
        return entry if start == len(tokens) // WORD else None

    def wants(
        self, now: float, origin: Origin, tokens: Sequence[int], size: int, seconds: float
    ) -> bool:
        """Whether a beginning is worth its room, and taking it out and putting it back."""
        if len(tokens) < BLOCK or not 0 < size <= self.memory:
            return False
        copied = self.rates.seconds(origin.identity, "memory", size)
        if copied >= seconds / 2:
            return False
        own = packed(tokens)
        known, start = self._known(origin, own)
        if known is not None and self._suffices(known, start, len(tokens), seconds, copied):
            known.used = now
            return False
        saved, older = seconds - copied, self._beginning(origin, own)
        uses = max((entry.uses for entry in older), default=0)
        worth = self._worth(now, size, saved, now, uses)
        return self._room_for(now, size, worth, older) is not None

    def _suffices(
        self, known: Entry, start: int, cells: int, seconds: float, copied: float
    ) -> bool:
        """Whether what is lost besides an entry from which the first `start` of so many `cells` can
        be gone on is not worth another one: the last words of an answer, say, that stand otherwise
        in the next prompt. `seconds`: of computing all of them; `copied`: of copying.
        """
        parted = start < known.cells  # else the other one takes its place
        few = cells - start < BLOCK if parted else start == cells
        return few or copied >= seconds * (1 - start / cells) / 2

    def put(self, now: float, entry: Entry) -> list[Order]:
        """It is in memory now, if it is in `entries` afterwards: less worthy ones leave for it."""
        older = self._superfluous(entry)
        for old in older:
            entry.pinned = entry.pinned or old.pinned
            entry.uses = max(entry.uses, old.uses)
            entry.conversation = entry.conversation or old.conversation
        entry.pinned = entry.pinned and self._may_pin(entry, older)
        leaving = self._room_for(now, entry.size, self._value(now, entry), older)
        if leaving is None:
            return []
        orders = [order for old in leaving for order in self._leave(old)]
        orders += [order for old in older for order in self.drop(old.number)]
        entry.number = next(self._numbers)
        entry.in_memory = True
        self._add(entry)
        return orders

    def listed(self, entry: Entry) -> list[Order]:
        """A file of it was found. What there is no room or no use for goes."""
        entry.number = next(self._numbers)
        if self.covers(entry.origin, entry.tokens) is not None:
            return [Delete(entry.number)]
        entry.pinned = entry.pinned and self._may_pin(entry)
        entry.on_disk = True
        self._add(entry)
        return list(self._spare_disk(entry.used))

    def wanted(self, now: float, number: int) -> list[Order]:
        """A prompt goes on from it; what lies on disk alone comes."""
        entry = self.entries[number]
        entry.used = now
        if entry.in_memory or entry.is_moving:
            return []
        room = self._room_for(now, entry.size, float("inf"))
        if room is None:
            return []
        entry.is_moving = True
        return [*(order for old in room for order in self._leave(old)), Read(number)]

    def came(self, now: float, number: int) -> list[Order]:
        """Its bytes are in memory."""
        if (entry := self.entries.get(number)) is None:
            return [Release(number)]
        entry.is_moving, entry.in_memory, entry.is_read = False, True, True
        return self.allow(now, self.memory)  # which may have become less meanwhile

    def written(self, now: float, number: int) -> list[Order]:
        """Its file is there."""
        if (entry := self.entries.get(number)) is None:
            return [Delete(number)]
        entry.is_moving, entry.on_disk = False, True
        orders: list[Order] = []
        if entry.is_leaving:
            entry.in_memory = entry.is_leaving = False
            orders.append(Release(number))
        return [*orders, *self._spare_disk(now)]

    def unwritten(self, now: float, number: int) -> list[Order]:
        """Its file can't be written. A full disk would take no other one: nothing is written for a
        while.
        """
        if not self.pauses(now):
            self._paused_until = now + PAUSE
        if (entry := self.entries.get(number)) is None:
            return []
        entry.is_moving = False
        return self.drop(number) if entry.is_leaving else []

    def pauses(self, now: float) -> bool:
        """Whether nothing is to be written now."""
        return now < self._paused_until

    def used(self, now: float, number: int) -> None:
        """A prompt went on from it."""
        if (entry := self.entries.get(number)) is not None:
            entry.uses, entry.used, entry.is_read = entry.uses + 1, now, False

    def pin(self, number: int, *, pinned: bool) -> bool:
        """Nothing else pushes it out, while models leave memory; or something may, again. False:
        its owner has pinned its share.
        """
        entry = self.entries[number]
        if pinned and not entry.pinned and not self._may_pin(entry):
            return False
        entry.pinned = pinned
        return True

    def tick(self, now: float) -> list[Order]:
        """Time has passed: what no longer conversation has replaced goes to disk, too."""
        if self.pauses(now):
            return []
        return self._written_if(now, lambda entry: now - entry.made >= SETTLED)

    def closing(self, now: float) -> list[Order]:
        """The server stops: all that is in memory goes to disk, as far as it can be written."""
        self._paused_until = 0.0
        return self._written_if(now, lambda _: True)

    def allow(self, now: float, memory: int) -> list[Order]:
        """From now on entries may have so much memory."""
        self.memory, self._usual = memory, max(self._usual, memory)
        leaving = self._least(now, self.in_memory - self._on_their_way() - memory)
        return [order for entry in leaving for order in self._leave(entry)]

    def drop(self, number: int) -> list[Order]:
        """It is forgotten, if it wasn't: since its file can't be read, say."""
        if (entry := self.entries.pop(number, None)) is None:
            return []
        family = _family_of(entry.origin, entry.tokens)
        self._families[family].remove(entry)
        if not self._families[family]:
            del self._families[family]
        orders: list[Order] = [Release(number)] if entry.in_memory else []
        return [*orders, Delete(number)] if entry.on_disk else orders

    def _may_pin(self, entry: Entry, older: Sequence[Entry] = ()) -> bool:
        """Whether there is as much left of its owner's share; `older` ones go."""
        there = sum(
            one.size
            for one in self.entries.values()
            if one.pinned and one.origin.owner == entry.origin.owner and one not in older
        )
        return there + entry.size <= PINNED * self._usual

    def _add(self, entry: Entry) -> None:
        self.entries[entry.number] = entry
        self._families[_family_of(entry.origin, entry.tokens)].append(entry)

    def _value(self, now: float, entry: Entry) -> float:
        if entry.pinned:
            return float("inf")
        copied = self.rates.seconds(entry.origin.identity, "memory", entry.size)
        return self._worth(now, entry.size, entry.seconds - copied, entry.used, entry.uses)

    def _worth(self, now: float, size: int, saved: float, used: float, uses: int) -> float:
        """Seconds that it saves to the byte. A beginning for which somebody would wait long is
        missed more than many short ones together.
        """
        saved = max(0.0, saved)
        halves = max(0.0, now - used) / HALF_LIFE
        likely: float = (1 + min(uses, MOST_USES)) * 0.5**halves
        return saved * saved / (saved + LONG) * likely / size

    def _on_their_way(self) -> int:
        return sum(entry.size for entry in self.entries.values() if entry.is_leaving)

    def _room_for(
        self, now: float, size: int, worth: float, older: Sequence[Entry] = ()
    ) -> list[Entry] | None:
        """Whose places are to be given up for `size` bytes worth so much, besides those of `older`
        ones that go anyway; None: what is there is worth more.
        """
        if size > self.memory:
            return None
        going = sum(one.size for one in older if one.in_memory and not one.is_leaving)
        missing = self.in_memory - self._on_their_way() - going + size - self.memory
        chosen = self._least(now, missing, below=worth, spared=older)
        return chosen if sum(entry.size for entry in chosen) >= missing else None

    def _least(
        self, now: float, missing: int, below: float = float("inf"), spared: Sequence[Entry] = ()
    ) -> list[Entry]:
        """Of what is in memory the least worthy, `missing` bytes together as far as there are."""
        there = [
            (self._value(now, entry), entry)
            for entry in self.entries.values()
            if entry.in_memory and not entry.is_leaving and entry not in spared
        ]
        chosen: list[Entry] = []
        for value, entry in sorted(there, key=lambda one: one[0]):
            if missing <= 0 or value >= below != float("inf"):
                break
            chosen.append(entry)
            missing -= entry.size
        return chosen

    def _leave(self, entry: Entry) -> list[Order]:
        """Out of memory: to disk, where there is one."""
        if entry.on_disk:
            entry.in_memory = False
            return [Release(entry.number)]
        crowded = self._on_their_way() + entry.size > WRITING * self._usual
        if not self.disk or crowded or entry.size > self.disk:
            return self.drop(entry.number)
        orders: list[Order] = [] if entry.is_moving else [Write(entry.number)]
        entry.is_leaving = entry.is_moving = True
        return orders

    def _written_if(self, now: float, chosen: Callable[[Entry], bool]) -> list[Order]:
        orders: list[Order] = []
        if not self.disk:
            return orders
        for entry in self.entries.values():
            there = entry.in_memory and not entry.on_disk and not entry.is_moving
            if there and entry.size <= self.disk and chosen(entry):
                entry.is_moving = True
                orders.append(Write(entry.number))
        return orders

    def _spare_disk(self, now: float) -> Iterator[Order]:
        """The least worthy files go while there are too many bytes."""
        there = [one for one in self.entries.values() if one.on_disk and not one.is_moving]
        excess = sum(entry.size for entry in there) - self.disk
        for entry in sorted(there, key=lambda one: self._value(now, one)):
            if excess <= 0:
                return
            excess -= entry.size
            if entry.in_memory:
                entry.on_disk = False
                yield Delete(entry.number)
            else:
                yield from self.drop(entry.number)

    def _beginning(self, origin: Origin, tokens: bytes) -> list[Entry]:
        """Those with which `tokens` begin."""
        there = self._family(origin, tokens)
        return [entry for entry in there if tokens.startswith(entry.tokens)]

    def _superfluous(self, entry: Entry) -> list[Entry]:
        """Those that `entry` makes so: it can be gone on from where they end, or nearly there. Of
        the same conversation also where it lacks no more than their last words: an answer's, say,
        that stands otherwise in the next prompt.
        """

        def is_needless(old: Entry) -> bool:
            if not entry.tokens.startswith(old.tokens[: max(0, old.cells - BLOCK) * WORD]):
                return False
            common = shared(old.tokens, entry.tokens)
            start = entry.start(common)
            again = common == old.cells and start >= AGAIN * old.cells
            return again or (old.conversation == entry.conversation and old.cells - start < BLOCK)

        return list(filter(is_needless, self._family(entry.origin, entry.tokens)))
