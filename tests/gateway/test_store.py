"""What is told to be kept is there: for its owner alone, after a restart and after a kill."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from config.settings import StoreConfig
from gateway.errors import InternalError
from gateway.store import KeptConversation, KeptItem, KeptResponse, Store

pytestmark = pytest.mark.anyio

NOW = time.time()


def response(id: str, previous: str | None = None, **fields: Any) -> KeptResponse:
    values = {"created": NOW, "document": b"{}", "input": b'["in"]', "output": b'["out"]'}
    return KeptResponse(id=id, previous=previous, **{**values, **fields})


@pytest.fixture(params=["file", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    path = str(tmp_path / "deep" / "store.sqlite") if request.param == "file" else None
    async with Store(StoreConfig(path=path)) as one:
        yield one


async def test_each_owner_sees_their_own(store: Store) -> None:
    await store.put("a", response("r1"))
    assert await store.get("a", "r1") == response("r1")
    for owner in ("b", ""):
        assert await store.get(owner, "r1") is None
        assert await store.chain(owner, "r1") is None
        assert not await store.remove(owner, "r1")
        await store.put(owner, response("r1", document=b"stolen"))
    assert await store.get("a", "r1") == response("r1")
    assert await store.remove("a", "r1")
    assert await store.get("a", "r1") is None


async def test_conversations_are_their_owners_too(store: Store) -> None:
    kept, items = KeptConversation("c1", NOW, b"{}"), [KeptItem("i1", b"1"), KeptItem("i2", b"2")]
    await store.begin("a", kept, items)
    assert await store.append("a", "c1", [KeptItem("i3", b"3")])
    assert await store.items("a", "c1") == [*items, KeptItem("i3", b"3")]
    assert await store.describe("a", "c1", b'{"k":"v"}') == KeptConversation(
        "c1", NOW, b'{"k":"v"}'
    )
    assert await store.conversation("b", "c1") is None
    assert await store.items("b", "c1") is None
    assert not await store.append("b", "c1", items)
    assert not await store.drop("b", "c1", "i1")
    assert await store.describe("b", "c1", b"{}") is None
    assert not await store.forget("b", "c1")
    assert await store.drop("a", "c1", "i1")
    assert await store.items("a", "c1") == [KeptItem("i2", b"2"), KeptItem("i3", b"3")]
    assert await store.forget("a", "c1")
    assert await store.items("a", "c1") is None


async def test_a_chain_is_reported_from_its_beginning(store: Store) -> None:
    for name, previous in (("r1", None), ("r2", "r1"), ("r3", "r2")):
        await store.put("a", response(name, previous))
    chain = await store.chain("a", "r3")
    assert chain is not None
    assert [one.id for one in chain] == ["r1", "r2", "r3"]
    await store.remove("a", "r2")
    assert await store.chain("a", "r3") is None


async def test_what_has_become_of_a_response_replaces_it(store: Store) -> None:
    await store.put("a", response("r1", running=True, output=b"[]"))
    await store.put("a", response("r1", document=b"done", events=b"event"))
    found = await store.get("a", "r1")
    assert found == response("r1", document=b"done", events=b"event")


async def test_what_was_running_is_mended(tmp_path: Path) -> None:
    settings = StoreConfig(path=str(tmp_path / "store.sqlite"))
    async with Store(settings) as store:
        await store.put("a", response("r1", running=True))
        await store.put("a", response("r2"))
    async with Store(settings) as store:
        await store.mend(lambda document: document + b" mended")
        assert await store.get("a", "r1") == response("r1", document=b"{} mended")
        assert await store.get("a", "r2") == response("r2")


async def test_the_oldest_goes_when_there_is_too_much(tmp_path: Path) -> None:
    settings = StoreConfig(path=str(tmp_path / "store.sqlite"), max_bytes=100_000)
    async with Store(settings) as store:
        await store.begin("a", KeptConversation("c1", NOW, b"{}"), [KeptItem("i", b"x" * 1_000)])
        for number in range(300):
            kept = response(f"r{number}", created=NOW + number, document=b"x" * 1_000)
            await store.put("a", kept)
        assert await store.get("a", "r0") is None
        assert await store.get("a", "r299") is not None
    (size,) = (
        sqlite3.connect(tmp_path / "store.sqlite").execute("SELECT bytes FROM total").fetchone()
    )
    assert size <= 100_000


async def test_what_is_too_old_goes(tmp_path: Path) -> None:
    async with Store(StoreConfig(max_age=3600.0)) as store:
        await store.put("a", response("r1"))
        assert await store.get("a", "r1") is not None
    async with Store(StoreConfig(max_age=3600.0)) as store:
        await store.put("a", response("r1", created=NOW - 7200))
        await store.put("a", response("r2"))
        assert await store.get("a", "r1") is None
        assert await store.get("a", "r2") is not None


async def test_many_writers_all_find_what_they_wrote(store: Store) -> None:
    async def write(number: int) -> None:
        await store.put("a", response(f"r{number}"))
        assert await store.get("a", f"r{number}") == response(f"r{number}")

    async with anyio.create_task_group() as tasks:
        for number in range(500):
            tasks.start_soon(write, number)


async def test_one_that_fails_takes_no_other_with_it(store: Store) -> None:
    kept = KeptConversation("c1", NOW, b"{}")
    await store.begin("a", kept, [])
    failures = []

    async def begin_again() -> None:
        try:
            await store.begin("a", kept, [KeptItem("i", b"1")])
        except InternalError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "a", response("r1"))
        tasks.start_soon(begin_again)
        tasks.start_soon(store.put, "a", response("r2"))
    assert len(failures) == 1
    assert await store.items("a", "c1") == []
    assert await store.get("a", "r1") is not None
    assert await store.get("a", "r2") is not None


async def test_a_file_that_cant_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="store"):
        async with Store(StoreConfig(path=str(tmp_path))):
            pass


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    async def make() -> None:
        async with Store(StoreConfig(path=str(tmp_path / "store.sqlite"))):
            pass

    anyio.run(make)
    assert (tmp_path / "store.sqlite").stat().st_mode & 0o077 == 0


WRITER = """
import anyio, sys
from config.settings import StoreConfig
from gateway.store import KeptResponse, Store

async def main():
    async with Store(StoreConfig(path=sys.argv[1])) as store:
        for number in range(1_000_000):
            kept = KeptResponse(id=f"r{number}", created=2e9, document=b"x" * 500, input=b"[]")
            await store.put("a", kept)
            print(number, flush=True)

anyio.run(main)
"""


async def test_a_kill_loses_nothing_that_was_reported_to_be_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite")
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
        [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        last = -1
        while last < 200:
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        last = max([last, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    async with Store(StoreConfig(path=path)) as store:
        for number in range(last + 1):
            assert await store.get("a", f"r{number}") is not None, number
