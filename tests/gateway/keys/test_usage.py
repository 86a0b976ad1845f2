"""The book of usage: what is counted, written, summed up and forgotten."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path

import pytest

from backends.machine.supervision import Supervisor
from config.settings import StoreConfig
from gateway.keys.access import Access
from gateway.keys.store import Store
from gateway.keys.usage import Counted, Period, UsageBook, as_csv, day_of
from gateway.terms.events import Usage

pytestmark = pytest.mark.anyio

AGE = 400 * 86_400.0
NOW = 2_000_000_000.0  # a day in 2033
TODAY = date.fromisoformat(day_of(NOW))
ALL = Period(date(2000, 1, 1), date(2100, 1, 1))
SOME = Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=3, reasoning_tokens=2)


def who(owner: str, label: str | None) -> Access:
    return Access(owner=owner, label=label)


@asynccontextmanager
async def opened(path: Path | None = None) -> AsyncIterator[UsageBook]:
    async with Store(StoreConfig(path=str(path) if path else None)) as store:
        book = UsageBook(store, AGE)
        async with book.running(Supervisor()):
            yield book


async def test_sums_by_what_is_asked_for() -> None:
    async with opened() as book:
        for owner, model, usage in (("a", "m", SOME), ("a", "n", SOME), ("b", "m", None)):
            book.count(NOW, who(owner, f"key {owner}"), model, usage, ok=usage is not None)
        rows = await book.read(ALL, ("key", "model"))
        assert [(row.key, row.model, row.requests, row.failed) for row in rows] == [
            ("key a", "m", 1, 0),
            ("key a", "n", 1, 0),
            ("key b", "m", 1, 1),
        ]
        (whole,) = await book.read(ALL, ())
        assert (whole.requests, whole.prompt_tokens, whole.cached_tokens) == (3, 20, 6)
        assert (whole.completion_tokens, whole.reasoning_tokens) == (8, 4)
        (mine,) = await book.read(ALL, ("day",), "b")
        assert (mine.day, mine.requests) == (str(TODAY), 1)


async def test_only_days_of_the_period_count() -> None:
    async with opened() as book:
        for days in range(5):
            book.count(NOW + days * 86_400, who("a", "a"), "m", SOME, ok=True)
        first, last = (date.fromisoformat(day_of(NOW + days * 86_400)) for days in (1, 3))
        period = Period(first, last)
        assert len(await book.read(period, ("day",))) == 3
        assert await book.read(Period(date(2001, 1, 1), date(2001, 1, 2)), ()) == []


async def test_it_is_there_after_a_restart_and_a_renamed_key_goes_on(tmp_path: Path) -> None:
    for day, label in enumerate(("phone", "laptop", "desk")):
        async with opened(tmp_path / "store.db") as book:
            book.count(NOW + (day - 2) * 86_400, who("a", label), "m", SOME, ok=True)
    async with opened(tmp_path / "store.db") as book:
        (row,) = await book.read(ALL, ("key",))
        assert (row.key, row.requests) == ("desk", 3)
        assert await book.taken_today(NOW) == {"a": 14}
        assert await book.taken_today(NOW + 86_400) == {}


async def test_two_keys_of_one_label_stay_two() -> None:
    async with opened() as book:
        for owner in ("a", "b"):
            book.count(NOW, who(owner, "laptop"), "m", SOME, ok=True)
        assert [row.key for row in await book.read(ALL, ("key",))] == ["laptop", "laptop"]


async def test_old_days_are_forgotten() -> None:
    async with opened() as book:
        book.count(1_000_000_000.0, who("a", "a"), "m", SOME, ok=True)  # a day in 2001
        assert await book.read(ALL, ("day",)) == []


async def test_what_can_t_be_written_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as book:
        book.count(NOW, who("a", "a"), "m", SOME, ok=True)
        with sqlite3.connect(path, timeout=30) as other:
            other.execute("ALTER TABLE usage RENAME TO elsewhere")
        await book.write()
        with sqlite3.connect(path, timeout=30) as other:
            other.execute("ALTER TABLE elsewhere RENAME TO usage")
        book.count(NOW, who("a", "a"), "m", SOME, ok=True)
        (row,) = await book.read(ALL, ())
        assert row.requests == 2


async def test_a_name_is_no_formula_in_a_spreadsheet() -> None:
    async with opened() as book:
        book.count(NOW, who("a", None), "=1+1", SOME, ok=True)
        rows = await book.read(ALL, ("key", "model"))
        assert as_csv(rows, ("key", "model")).splitlines() == [
            f"key,model,{','.join(Counted.__struct_fields__)}",
            ",'=1+1,1,0,10,3,4,2",
        ]
