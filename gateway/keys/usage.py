"""Usage by key, model and day, in the store's file.

It is counted in memory as answers end, and written a moment later in one transaction, off the
event loop: a process that is killed loses a second of it. Days are UTC's. Keys are known by
their owners' digests, so one that is given another label goes on as the same. Knows no HTTP.
"""

import csv
import io
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
import structlog
from msgspec import UNSET, UnsetType

from backends.machine.supervision import Supervisor
from config.values import alike
from gateway.keys.access import Access
from gateway.keys.store import Store
from gateway.terms.errors import InternalError
from gateway.terms.events import NO_USAGE, Usage
from gateway.terms.tasks import companions

WRITE_AFTER = 1.0  # seconds between what is counted first and its writing

Group: TypeAlias = Literal["key", "model", "day"]
GROUPS: tuple[Group, ...] = ("key", "model", "day")

log = structlog.get_logger(__name__)

# What a group is called in the table: labels may be alike, and change.
COLUMNS: Mapping[Group, str] = {"key": "owner", "model": "model", "day": "day"}
TAKEN = """
SELECT owner, sum(prompt_tokens) + sum(completion_tokens) FROM usage WHERE day = ? GROUP BY owner
"""
FORMULA = ("=", "+", "-", "@")  # begin one in a spreadsheet, and names are others' words


class Counted(msgspec.Struct, kw_only=True):
    """What was used. `requests`: all; `failed`: those of them that ended in an error."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of the completions

    def add(self, other: "Counted") -> None:
        """Both together."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTS = Counted.__struct_fields__
TABLE = f"""
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, owner TEXT NOT NULL, model TEXT NOT NULL, label TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTS)},
    PRIMARY KEY (day, owner, model)) WITHOUT ROWID
"""
ADD = f"""
INSERT INTO usage VALUES (?, ?, ?, ?{", ?" * len(COUNTS)})
ON CONFLICT (day, owner, model) DO UPDATE SET label = excluded.label,
    {", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)}
"""  # noqa: S608 - our own words
SUMS = ", ".join(f"sum({name})" for name in COUNTS)


class UsageRow(Counted, kw_only=True):
    """Of one group; what isn't grouped by is absent. `key`: its label, null without keys."""

    key: str | UnsetType | None = UNSET
    model: str | UnsetType = UNSET  # "" where a request named none that exists
    day: str | UnsetType = UNSET


class Period(msgspec.Struct, frozen=True):
    """Days in UTC, both included."""

    first: date
    last: date


Place: TypeAlias = tuple[str, str, str]  # day, owner, model


class UsageBook:
    """One per server; open in `running`, within the store's context."""

    def __init__(self, store: Store, max_age: float) -> None:
        """`max_age`: seconds after which a day is forgotten."""
        self._store = store
        self._max_age = max_age
        self._pending: dict[Place, Counted] = {}
        self._labels: dict[str, str] = {}  # of owners
        self._changed = anyio.Event()
        self._is_failing = False

    def count(
        self, now: float, access: Access, model: str, usage: Usage | None, *, ok: bool
    ) -> None:
        """A request is over. `now`: Unix time; `usage`: None where it never came to an answer."""
        owner = access.owner
        self._labels[owner] = access.label or ""
        counted = alike(Counted, usage or NO_USAGE)(requests=1, failed=not ok)
        self._add({(day_of(now), owner, model): counted})

    def _add(self, counts: Mapping[Place, Counted]) -> None:
        for place, counted in counts.items():
            self._pending.setdefault(place, Counted()).add(counted)
        self._changed.set()

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """What is counted in this context is written in it, at the latest when it ends. Raises
        InternalError where the table can't be made.
        """
        await self._store.carry_out(lambda connection: connection.execute(TABLE))
        try:
            async with companions() as tasks:
                tasks.start_soon(supervisor.keep, "usage", self._write_on)
                yield
        finally:
            with anyio.CancelScope(shield=True):
                await self.write()

    async def _write_on(self) -> None:
        while True:
            await self._changed.wait()
            await anyio.sleep(WRITE_AFTER)
            await self.write()

    async def write(self) -> None:
        """All that was counted until now. Where that fails it is kept for the next time."""
        counts, self._pending = self._pending, {}
        self._changed = anyio.Event()
        if not counts:
            return
        rows = [
            (*place, self._labels[place[1]], *msgspec.structs.astuple(counted))
            for place, counted in counts.items()
        ]
        oldest = day_of(datetime.now(UTC).timestamp() - self._max_age)

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(ADD, rows)
            connection.execute("DELETE FROM usage WHERE day < ?", (oldest,))

        try:
            with anyio.CancelScope(shield=True):  # else it could be written and counted again
                await self._store.carry_out(work)
        except InternalError as error:
            if not self._is_failing:
                log.warning("usage not written, but kept in memory", reason=error.message)
            self._is_failing = True
            self._add(counts)
        else:
            self._is_failing = False

    async def read(
        self, period: Period, groups: Sequence[Group], owner: str | None = None
    ) -> Sequence[UsageRow]:
        """Sums by `groups`, in their order; of one owner, or of all."""
        await self.write()
        columns = [COLUMNS[group] for group in groups]
        which = "" if owner is None else "AND owner = :owner"
        by = f"GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
        statement = f"""
            SELECT {", ".join([*columns, "max(day)", "label"])}, {SUMS} FROM usage
            WHERE day BETWEEN :first AND :last {which} {by}
        """  # noqa: S608 - our own words
        values = {"first": str(period.first), "last": str(period.last), "owner": owner}
        rows = await self._store.carry_out(
            lambda connection: connection.execute(statement, values).fetchall()
        )
        return [_row(groups, row) for row in rows if row[-1] is not None]

    async def taken_today(self, now: float) -> dict[str, int]:
        """Tokens of today's prompts and answers, by owner."""
        rows = await self._store.carry_out(
            lambda connection: connection.execute(TAKEN, (day_of(now),)).fetchall()
        )
        return dict(rows)


def _row(groups: Sequence[Group], row: Sequence[Any]) -> UsageRow:
    _, label, *sums = row[len(groups) :]  # of the last day: SQLite takes it where `max` is
    counted = dict(zip(COUNTS, sums, strict=True))
    named: dict[str, Any] = dict(zip(groups, row, strict=False))
    if "key" in named:
        named["key"] = label or None
    return UsageRow(**named, **counted)


def day_of(now: float) -> str:
    """The day in UTC, as `2026-01-31`."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def as_csv(rows: Sequence[UsageRow], groups: Sequence[Group]) -> str:
    """With a line of names, for spreadsheets."""
    text = io.StringIO()
    table = csv.writer(text)
    names = [*groups, *COUNTS]
    table.writerow(names)
    table.writerows([_cell(getattr(row, name)) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
