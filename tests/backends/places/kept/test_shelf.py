"""Which beginnings are found, and which of them stay: a shelf with a clock of its own, and a fuzz
against the plainest shelf there could be.
"""

import random
from array import array
from collections.abc import Iterable, Sequence

import pytest

from backends.contract.beginnings import BLOCK, common_length, packed
from backends.places.kept.shelf import (
    CALL,
    COPY_RATE,
    HALF_LIFE,
    PAUSE,
    SETTLED,
    Delete,
    Entry,
    Order,
    Origin,
    Read,
    Release,
    Shelf,
    Write,
)

HERE = Origin("engine", "somebody")
MEGABYTE = 1 << 20
TOKEN = 1_000  # bytes of a token's cell
SPEED = 100.0  # tokens a second


def entry(
    tokens: Sequence[int], now: float = 0.0, origin: Origin = HERE, **changes: object
) -> Entry:
    made = Entry(
        number=0,
        origin=origin,
        tokens=packed(tokens),
        cuts_from=0,
        places=(),
        size=len(tokens) * TOKEN,
        seconds=len(tokens) / SPEED,
        made=now,
        used=now,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(1_000), k=length)


def found(shelf: Shelf, prompt: Sequence[int], than: int = 0, origin: Origin = HERE) -> int:
    """From which cell on the prompt goes on."""
    best = shelf.longest(origin, prompt, than)
    return best[1] if best else than


def test_the_longest_beginning_is_found() -> None:
    shelf, long = Shelf(memory=MEGABYTE), text(0, 300)
    shelf.put(0, entry([*long[:100], 7, 7, 7]))
    shelf.put(0, entry(long[:200]))
    shelf.put(0, entry(text(1, 300)))
    assert found(shelf, long) == 200
    assert found(shelf, long[:150]) == 149  # one is left to compute
    assert found(shelf, [*long[:101], 8]) == 101
    assert found(shelf, [8, *long]) == 0


def test_what_is_there_already_is_not_put_back() -> None:
    shelf, long = Shelf(memory=MEGABYTE), text(0, 300)
    shelf.put(0, entry(long))
    assert shelf.longest(HERE, [*long, 1], than=300) is None
    assert found(shelf, [*long, 1], than=250) == 300
    shelf.rates.copy = 300_000  # bytes a second: all of it takes one
    assert shelf.longest(HERE, [*long, 1], than=250) is None  # these take half a second
    assert found(shelf, [*long, 1], than=100) == 300


def test_a_sequence_that_can_not_be_cut_is_gone_on_from_its_snapshots() -> None:
    shelf, long = Shelf(memory=MEGABYTE), text(0, 300)
    shelf.put(0, entry(long, cuts_from=300, places=(64, 200)))
    assert found(shelf, [*long, 1]) == 300
    assert found(shelf, long) == 200
    assert found(shelf, [*long[:250], -1, -1]) == 200
    assert found(shelf, [*long[:100], -1, -1]) == 64
    assert found(shelf, [*long[:50], -1, -1]) == 0


@pytest.mark.parametrize("other", [Origin("engine", "other"), Origin("other", "somebody")])
def test_nobody_else_and_no_other_engine_finds_it(other: Origin) -> None:
    shelf, long = Shelf(memory=MEGABYTE), text(0, 300)
    shelf.put(0, entry(long))
    assert shelf.longest(other, [*long, 1], 0) is None
    assert shelf.covers(other, packed(long)) is None
    shelf.put(0, entry(long, origin=other))
    assert len(shelf.entries) == 2


def test_a_longer_entry_takes_the_place_of_what_it_begins_with() -> None:
    shelf, long = Shelf(memory=600 * TOKEN), text(0, 300)
    shelf.memory = 350 * TOKEN
    shelf.put(0, entry(long[:200], conversation="mine", pinned=True))
    shelf.used(1, 1)
    assert shelf.wants(1, HERE, long, 300 * TOKEN, 3.0)
    orders = shelf.put(1, entry(long))
    assert orders == [Release(1)]
    (left,) = shelf.entries.values()
    assert (left.cells, left.uses, left.conversation, left.pinned) == (300, 1, "mine", True)


def test_what_is_kept_already_is_not_wanted_again() -> None:
    shelf, long = Shelf(memory=MEGABYTE), text(0, 300)
    shelf.put(0, entry(long))
    assert not shelf.wants(1, HERE, long, 300 * TOKEN, 3.0)
    assert not shelf.wants(1, HERE, long[:200], 200 * TOKEN, 2.0)
    assert shelf.wants(1, HERE, [*long, 1], 301 * TOKEN, 3.0)
    assert not shelf.wants(1, HERE, [*long[:280], *text(1, BLOCK - 1)], 311 * TOKEN, 3.1)
    assert shelf.wants(1, HERE, [*long[:280], *text(1, BLOCK)], 312 * TOKEN, 3.1)


def test_an_answer_that_stands_otherwise_in_the_next_prompt_is_not_kept_twice() -> None:
    shelf, long = Shelf(memory=2 * MEGABYTE), text(0, 300)
    shelf.put(0, entry([*long, *text(1, BLOCK - 1)], conversation="mine"))
    assert shelf.put(1, entry([*long, *text(2, 90)], conversation="mine")) == [Release(1)]
    shelf.put(2, entry([*long, *text(3, 90)], conversation="mine"))
    shelf.put(2, entry([*long, *text(4, 90)], conversation="another"))
    assert len(shelf.entries) == 3


def test_what_costs_more_than_it_saves_is_not_wanted() -> None:
    shelf = Shelf(memory=MEGABYTE)
    assert not shelf.wants(0, HERE, text(0, BLOCK - 1), 100, 9.0)
    assert not shelf.wants(0, HERE, text(0, 300), 2 * MEGABYTE, 9.0)
    assert not shelf.wants(0, HERE, text(0, 300), 300 * TOKEN, 0.002)
    shelf.rates.copy = 100_000.0
    assert not shelf.wants(0, HERE, text(0, 300), 300 * TOKEN, 3.0)


def test_side_jobs_push_out_no_conversation() -> None:
    """However many there are: titles and summaries, in a store that a conversation nearly fills."""
    shelf, long = Shelf(memory=1_100 * TOKEN), text(0, 1_000)
    shelf.put(0, entry(long))
    for number in range(1, 500):
        job = text(number, 60)
        if shelf.wants(number, HERE, job, 60 * TOKEN, 60 / SPEED):
            shelf.put(number, entry(job, float(number)))
        assert found(shelf, [*long, 1]) == 1_000
    assert len(shelf.entries) > 1


def test_what_was_long_unused_goes_for_what_is_new() -> None:
    shelf = Shelf(memory=1_500 * TOKEN)
    shelf.put(0, entry(text(0, 1_000)))
    later = 4 * HALF_LIFE
    assert shelf.wants(later, HERE, text(1, 1_000), 1_000 * TOKEN, 10.0)
    assert shelf.put(later, entry(text(1, 1_000), later)) == [Release(1)]


def test_what_is_pinned_stays_while_models_leave_it_memory() -> None:
    shelf = Shelf(memory=2_000 * TOKEN)
    shelf.put(0, entry(text(0, 1_000), pinned=True))
    shelf.memory = 1_500 * TOKEN
    assert not shelf.wants(9 * HALF_LIFE, HERE, text(1, 1_000), 1_000 * TOKEN, 10.0)
    assert shelf.allow(9 * HALF_LIFE, 10) == [Release(1)]


def test_nobody_pins_more_than_half_of_the_memory() -> None:
    shelf = Shelf(memory=2_000 * TOKEN)
    for number in range(4):
        shelf.put(0, entry(text(number, 400)))
    assert [shelf.pin(number, pinned=True) for number in range(1, 5)] == [True, True, False, False]
    shelf.put(0, entry(text(9, 400), pinned=True))
    assert not shelf.entries[5].pinned
    shelf.drop(5)
    other = Origin("engine", "other")
    shelf.put(0, entry(text(0, 400), origin=other, pinned=True))
    assert shelf.entries[6].pinned
    assert shelf.pin(1, pinned=False)
    assert shelf.pin(3, pinned=True)


def test_what_leaves_memory_goes_to_disk_and_comes_back() -> None:
    shelf = Shelf(memory=1_500 * TOKEN, disk=MEGABYTE * 10)
    shelf.put(0, entry(text(0, 700)))
    shelf.put(1, entry(text(1, 700), 1.0))
    assert shelf.put(2, entry(text(2, 700), 2.0)) == [Write(1)]
    assert found(shelf, [*text(0, 700), 1]) == 700  # still in memory
    assert shelf.written(3, 1) == [Release(1)]
    assert shelf.wanted(4, 1) == [Write(2), Read(1)]
    assert shelf.wanted(4, 1) == []  # it is coming
    assert shelf.came(5, 1) == []
    assert shelf.entries[1].tier == "memory"


def test_what_rests_is_written() -> None:
    shelf = Shelf(memory=MEGABYTE, disk=MEGABYTE)
    shelf.put(0, entry(text(0, 100)))
    assert shelf.tick(SETTLED / 2) == []
    assert shelf.tick(SETTLED) == [Write(1)]
    assert shelf.tick(SETTLED) == []
    assert shelf.written(SETTLED, 1) == []
    assert shelf.closing(SETTLED) == []
    shelf.put(0, entry(text(1, 100)))
    assert shelf.closing(0) == [Write(2)]


def test_a_disk_that_is_full_loses_no_answer() -> None:
    shelf = Shelf(memory=MEGABYTE, disk=MEGABYTE)
    shelf.put(0, entry(text(0, 100)))
    shelf.closing(0)
    assert shelf.unwritten(0, 1) == []
    assert found(shelf, [*text(0, 100), 1]) == 100


def test_a_disk_that_is_full_is_left_alone_for_a_while() -> None:
    shelf = Shelf(memory=MEGABYTE, disk=MEGABYTE)
    shelf.put(0, entry(text(0, 100)))
    assert shelf.tick(SETTLED) == [Write(1)]
    shelf.unwritten(SETTLED, 1)
    assert shelf.tick(SETTLED + PAUSE / 2) == []
    shelf.unwritten(SETTLED + PAUSE / 2, 1)  # one that was under way
    assert shelf.tick(SETTLED + PAUSE) == [Write(1)]
    shelf.unwritten(SETTLED + PAUSE, 1)
    assert shelf.closing(SETTLED + PAUSE) == [Write(1)]


def test_a_file_of_which_another_has_all_is_deleted() -> None:
    shelf = Shelf(memory=MEGABYTE, disk=MEGABYTE)
    assert shelf.listed(entry(text(0, 200))) == []
    assert shelf.listed(entry(text(0, 100))) == [Delete(2)]
    assert list(shelf.entries) == [1]


def test_the_least_worthy_files_go_where_there_are_too_many_bytes() -> None:
    shelf = Shelf(memory=MEGABYTE, disk=250 * TOKEN)
    files = [entry(text(number, 100), float(number) * HALF_LIFE) for number in range(3)]
    assert [shelf.listed(one) for one in files] == [[], [], [Delete(1)]]
    assert [one.tier for one in shelf.entries.values()] == ["disk", "disk"]


def test_a_lookup_that_finds_nothing_costs_no_more_with_thousands_of_entries() -> None:
    shelf = Shelf(memory=1 << 40)
    for number in range(2_000):
        shelf.put(0, entry(text(number, 64)))
    assert shelf.longest(HERE, text(9_999, 8_000), 0) is None
    assert len(list(shelf._starts(HERE, packed(text(5, 64))))) == 1  # noqa: SLF001


def test_what_goes_on_farthest_is_found_among_all_that_begin_alike() -> None:
    rng = random.Random(0)

    def words() -> list[int]:
        return [*range(BLOCK), *(rng.randrange(2) for _ in range(rng.randrange(1, 12)))]

    for _ in range(300):
        shelf, prompt = Shelf(memory=0, disk=1 << 40), words()
        for _ in range(8):
            places = tuple(sorted(rng.sample(range(BLOCK, BLOCK + 12), 3)))
            shelf.listed(entry(words(), cuts_from=rng.choice((0, 99)), places=places))
        starts = [
            one.start(common_length(array("q", one.tokens), array("q", prompt)))
            for one in shelf.entries.values()
        ]
        _, start = shelf._known(HERE, packed(prompt))  # noqa: SLF001
        assert start == max(starts, default=0)


class Shell:
    """Carries orders out at once, and watches for what must not happen."""

    def __init__(self, shelf: Shelf, rng: random.Random) -> None:
        self.shelf = shelf
        self.rng = rng
        self.memory: set[int] = set()
        self.disk: set[int] = set()
        self.pending: list[Order] = []

    def take(self, orders: Iterable[Order]) -> None:
        for order in orders:
            match order:
                case Release(number):
                    self.memory.discard(number)
                case Delete(number):
                    self.disk.discard(number)
                case Write(number):
                    assert number in self.memory
                    self.pending.append(order)
                case Read(number):
                    assert number in self.disk
                    self.pending.append(order)

    def finish(self, now: float) -> None:
        """One of what is under way ends, well or not."""
        if not self.pending:
            return
        order = self.pending.pop(self.rng.randrange(len(self.pending)))
        number = order.number
        if not self.rng.randrange(5):
            self.disk.discard(number)
            gone = isinstance(order, Read)
            self.take(self.shelf.drop(number) if gone else self.shelf.unwritten(now, number))
        elif isinstance(order, Write):
            self.disk.add(number)
            self.take(self.shelf.written(now, number))
        else:
            self.memory.add(number)
            self.take(self.shelf.came(now, number))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_books_are_right_and_the_best_start_is_found(seed: int) -> None:
    rng = random.Random(seed)
    shelf = Shelf(memory=2_000 * TOKEN, disk=rng.choice((0, 3_000 * TOKEN)))
    shell, now = Shell(shelf, rng), 0.0
    known = [text(number, 400) for number in range(3)]
    origins = [HERE, Origin("engine", "other")]
    for _ in range(300):
        now += rng.expovariate(0.1)
        tokens = [*rng.choice(known)[: rng.randrange(40, 400)], *text(rng.randrange(9), 30)]
        origin = rng.choice(origins)
        match rng.randrange(6):
            case 0 | 1 if shelf.wants(now, origin, tokens, len(tokens) * TOKEN, 9.0):
                places = tuple(sorted(rng.sample(range(1, len(tokens)), 2)))
                cuts = rng.choice((0, len(tokens)))
                new = entry(tokens, now, origin, cuts_from=cuts, places=places)
                orders = shelf.put(now, new)
                if new.number in shelf.entries:
                    shell.memory.add(new.number)
                shell.take(orders)
            case 2 if (best := shelf.longest(origin, tokens, 0)) is not None:
                shell.take(shelf.wanted(now, best[0].number))
                shelf.used(now, best[0].number)
            case 3:
                shell.finish(now)
            case 4:
                shell.take(shelf.tick(now))
            case 5:
                shell.take(shelf.allow(now, rng.choice((500, 2_000, 2_000)) * TOKEN))
        there = shelf.entries
        assert {number for number, one in there.items() if one.in_memory} == shell.memory
        assert {number for number, one in there.items() if one.on_disk} == shell.disk & set(there)
        leaving = sum(one.size for one in there.values() if one.is_leaving)
        reading = sum(one.size for one in there.values() if one.is_moving and not one.in_memory)
        assert shelf.in_memory - leaving - reading <= shelf.memory
        assert leaving <= 1_000 * TOKEN
        best = shelf.longest(origin, tokens, 0)
        plainest = max((plain_start(one, origin, tokens) for one in there.values()), default=0)
        assert (best[1] if best else 0) == plainest


def plain_start(one: Entry, origin: Origin, prompt: Sequence[int]) -> int:
    """Where a prompt can go on from an entry, token by token; 0: nowhere of worth."""
    if one.origin != origin:
        return 0
    tokens, shared = memoryview(one.tokens).cast("q"), 0
    while shared < min(len(tokens), len(prompt) - 1) and tokens[shared] == prompt[shared]:
        shared += 1
    if shared < BLOCK:
        return 0
    start = one.start(shared)
    return start if start * one.seconds / one.cells > CALL + one.size / COPY_RATE else 0
