"""What is told to be kept is there: for its owner alone, after a restart and after a kill."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from config.settings import StoreConfig
from gateway.keys.store import KeptConversation, KeptItem, KeptResponse, Store
from gateway.terms.errors import InternalError, QueueFull, TooLarge
from tests.hang import HANG

pytestmark = pytest.mark.anyio

NOW = time.time()


def response(id: str, previous: str | None = None, **fields: Any) -> KeptResponse:
    values = {"created": NOW, "document": b"{}", "input": b'["in"]', "output": b'["out"]'}
    return KeptResponse(id=id, previous=previous, **{**values, **fields})


def free(_size: int) -> None:
    """There is room for everything."""


async def document(store: Store, owner: str, id: str) -> bytes | None:
    return await store.part(owner, id, "document", free)


async def items(store: Store, owner: str, id: str) -> Sequence[KeptItem] | None:
    return await store.items(owner, id, free)


@pytest.fixture(params=["file", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    path = str(tmp_path / "deep" / "store.sqlite") if request.param == "file" else None
    async with Store(StoreConfig(path=path)) as one:
        yield one


async def test_each_owner_sees_their_own(store: Store) -> None:
    await store.put("a", response("r1"))
    assert await document(store, "a", "r1") == b"{}"
    for owner in ("b", ""):
        assert await document(store, owner, "r1") is None
        assert await store.chain(owner, "r1", free) is None
        assert not await store.remove(owner, "r1")
        await store.put(owner, response("r1", document=b"stolen"))
    assert await document(store, "a", "r1") == b"{}"
    assert await store.remove("a", "r1")
    assert await document(store, "a", "r1") is None


async def test_conversations_are_their_owners_too(store: Store) -> None:
    kept, first = KeptConversation("c1", NOW, b"{}"), [KeptItem("i1", b"1"), KeptItem("i2", b"2")]
    await store.begin("a", kept, first)
    assert await store.append("a", "c1", [KeptItem("i3", b"3")])
    assert await items(store, "a", "c1") == [*first, KeptItem("i3", b"3")]
    assert await store.describe("a", "c1", b'{"k":"v"}') == KeptConversation(
        "c1", NOW, b'{"k":"v"}'
    )
    assert await store.conversation("b", "c1") is None
    assert await items(store, "b", "c1") is None
    assert not await store.append("b", "c1", first)
    assert not await store.drop("b", "c1", "i1")
    assert await store.describe("b", "c1", b"{}") is None
    assert not await store.forget("b", "c1")
    assert await store.drop("a", "c1", "i1")
    assert await items(store, "a", "c1") == [KeptItem("i2", b"2"), KeptItem("i3", b"3")]
    assert await store.forget("a", "c1")
    assert await items(store, "a", "c1") is None


async def test_a_chain_is_reported_from_its_beginning(store: Store) -> None:
    for name, previous in (("r1", None), ("r2", "r1"), ("r3", "r2")):
        await store.put("a", response(name, previous, input=b'["%s"]' % name.encode()))
    chain = await store.chain("a", "r3", free)
    assert chain is not None
    assert [one.input for one in chain] == [b'["r1"]', b'["r2"]', b'["r3"]']
    await store.remove("a", "r2")
    assert await store.chain("a", "r3", free) is None


async def test_what_has_become_of_a_response_replaces_it(store: Store) -> None:
    await store.put("a", response("r1", running=True, output=b"[]"))
    await store.put("a", response("r1", document=b"done", events=b"event"))
    assert await document(store, "a", "r1") == b"done"
    assert await store.part("a", "r1", "events", free) == b"event"


async def test_what_was_running_is_mended(tmp_path: Path) -> None:
    settings = StoreConfig(path=str(tmp_path / "store.sqlite"))
    async with Store(settings) as store:
        await store.put("a", response("r1", running=True))
        await store.put("a", response("r2"))
    async with Store(settings) as store:
        await store.mend(lambda document: document + b" mended")
        assert await document(store, "a", "r1") == b"{} mended"
        assert await document(store, "a", "r2") == b"{}"


async def test_the_oldest_goes_when_there_is_too_much(tmp_path: Path) -> None:
    settings = StoreConfig(path=str(tmp_path / "store.sqlite"), max_bytes=100_000)
    async with Store(settings) as store:
        await store.begin("a", KeptConversation("c1", NOW, b"{}"), [KeptItem("i", b"x" * 1_000)])
        for number in range(300):
            kept = response(f"r{number}", created=NOW + number, document=b"x" * 1_000)
            await store.put("a", kept)
        assert await document(store, "a", "r0") is None
        assert await document(store, "a", "r299") is not None
    assert held(tmp_path / "store.sqlite") <= 100_000


def held(file: Path) -> int:
    """Bytes of all owners."""
    with closing(sqlite3.connect(file)) as connection:
        (size,) = connection.execute("SELECT sum(bytes) FROM owners").fetchone()
    return int(size)


async def test_a_key_that_fills_the_store_takes_nothing_from_the_others() -> None:
    async with Store(StoreConfig(max_bytes=100_000)) as store:
        for owner in ("b", "c"):
            await store.put(owner, response(f"of {owner}", document=b"x" * 25_000))
        talk = KeptConversation("c1", NOW, b"{}")
        await store.begin("b", talk, [KeptItem("i", b"x" * 1_000)])
        for number in range(20):
            await store.put("a", response(f"r{number}", created=NOW + number, input=b"x" * 40_000))
        assert await document(store, "b", "of b") is not None
        assert await document(store, "c", "of c") is not None
        assert await items(store, "b", "c1")
        assert await document(store, "a", "r18") is None
        assert await document(store, "a", "r19") is not None


async def test_what_is_larger_than_a_share_is_refused_and_changes_nothing() -> None:
    async with Store(StoreConfig(max_bytes=100_000)) as store:
        await store.put("a", response("mine"))
        await store.put("b", response("theirs", document=b"x" * 60_000))
        large = response("large", document=b"x" * 60_000)
        with pytest.raises(TooLarge, match=r"store\.max_bytes"):
            await store.put("a", large)
        with pytest.raises(TooLarge):
            await store.check("a", 60_000)
        with pytest.raises(TooLarge):
            await store.begin("a", KeptConversation("c1", NOW, b"x" * 60_000), [])
        await store.begin("a", KeptConversation("c2", NOW, b"{}"), [])
        with pytest.raises(TooLarge):
            await store.append("a", "c2", [KeptItem("i", b"x" * 60_000)])
        assert await document(store, "b", "theirs") is not None
        assert await document(store, "a", "mine") is not None
        assert await items(store, "a", "c2") == []
        await store.put("a", response("half", document=b"x" * 49_000))  # the other one has more
        assert await document(store, "a", "half") is not None
        assert await document(store, "b", "theirs") is None


async def test_everything_is_counted(tmp_path: Path) -> None:
    """Metadata, ids, and the rows themselves: a store of a megabyte is one."""
    file = tmp_path / "store.sqlite"
    async with Store(StoreConfig(path=str(file), max_bytes=1_000_000)) as store:
        for number in range(2_000):
            kept = KeptConversation(f"c{number}", NOW, b"x" * 9_000)
            await store.begin("a", kept, [KeptItem("i" * 1_000, b"1")])
        await store.describe("a", "c1999", b"x" * 900_000)
        for number in range(6_000):
            await store.put("a", response(f"r{number}", created=NOW + number, document=b""))
    assert held(file) <= 1_000_000
    assert file.stat().st_size < 4_000_000


async def test_nothing_is_read_that_there_is_no_room_for(store: Store) -> None:
    await store.put("a", response("r1", document=b"x" * 9_000, input=b"x" * 1_000, output=b""))
    await store.put("a", response("r2", "r1", input=b"x" * 500, output=b"x" * 500))
    talk = KeptConversation("c1", NOW, b"{}")
    await store.begin("a", talk, [KeptItem(f"i{k}", b"x" * 100) for k in range(10)])
    rooms: list[int] = []

    def room(size: int) -> None:
        rooms.append(size)
        if size > 1_900:
            raise QueueFull("full")

    with pytest.raises(QueueFull):
        await store.chain("a", "r2", room)
    with pytest.raises(QueueFull):
        await store.named("a", ["resp_none", "r2", "r1", "c1"], frozenset({"i3"}), room)
    await store.items("a", "c1", room)
    page = await store.page("a", "c1", after="i7", limit=5, newest_first=True, room=room)
    assert page is not None
    assert [one.id for one in page] == ["i6", "i5", "i4", "i3", "i2"]
    assert await store.item("a", "c1", "i9", room) == KeptItem("i9", b"x" * 100)
    assert await store.part("a", "r2", "document", room) == b"{}"
    assert rooms == [2_000, 2_100, 1_000, 500, 100, 2]


async def test_items_are_found_by_name_in_what_holds_them(store: Store) -> None:
    await store.put("a", response("r1", input=b'["in"]', output=b'["out"]'))
    talk = KeptConversation("c1", NOW, b"{}")
    await store.begin("a", talk, [KeptItem(f"i{k}", b"%d" % k) for k in range(10)])
    found = await store.named("a", ["r1", "c1", "c2"], frozenset({"i3", "i5"}), free)
    assert found == [b'["in"]', b'["out"]', b"[3,5]", b"[]"]
    assert await store.named("b", ["r1", "c1"], frozenset({"i3"}), free) == [b"[]", b"[]"]


# The tables before owners were counted, with a response and a conversation.
VERSION_0 = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, previous TEXT,
    running INTEGER NOT NULL, document BLOB NOT NULL, input BLOB NOT NULL, output BLOB NOT NULL,
    events BLOB NOT NULL, size INTEGER NOT NULL);
CREATE TABLE conversations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, metadata BLOB NOT NULL);
CREATE TABLE items (
    position INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, id TEXT NOT NULL,
    item BLOB NOT NULL, size INTEGER NOT NULL);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total SELECT 0;
CREATE TRIGGER responses_in AFTER INSERT ON responses
    BEGIN UPDATE total SET bytes = bytes + NEW.size; END;
CREATE TRIGGER items_in AFTER INSERT ON items
    BEGIN UPDATE total SET bytes = bytes + NEW.size; END;
INSERT INTO responses VALUES
    ('r1', 'a', 2e9, NULL, 0, CAST('{}' AS BLOB), CAST('[]' AS BLOB), CAST('[]' AS BLOB), '', 6);
INSERT INTO conversations VALUES ('c1', 'a', 2e9, CAST('{}' AS BLOB));
INSERT INTO items (conversation, id, item, size) VALUES ('c1', 'i1', CAST('1' AS BLOB), 1);
"""


async def test_a_file_of_before_is_read_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(VERSION_0)
    for _ in range(2):
        async with Store(StoreConfig(path=str(file))) as store:
            assert await document(store, "a", "r1") == b"{}"
            assert await items(store, "a", "c1") == [KeptItem("i1", b"1")]
        assert held(file) == 3 * 256 + 6 + 2 + 3
    async with Store(StoreConfig(path=str(file))) as store:
        assert await store.remove("a", "r1")
        assert await store.forget("a", "c1")
    assert held(file) == 0


async def test_what_is_too_old_goes(tmp_path: Path) -> None:
    async with Store(StoreConfig(max_age=3600.0)) as store:
        await store.put("a", response("r1"))
        assert await document(store, "a", "r1") is not None
    async with Store(StoreConfig(max_age=3600.0)) as store:
        await store.put("a", response("r1", created=NOW - 7200))
        await store.put("a", response("r2"))
        assert await document(store, "a", "r1") is None
        assert await document(store, "a", "r2") is not None


async def test_many_writers_all_find_what_they_wrote(store: Store) -> None:
    async def write(number: int) -> None:
        await store.put("a", response(f"r{number}"))
        assert await document(store, "a", f"r{number}") == b"{}"

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
    assert await items(store, "a", "c1") == []
    assert await document(store, "a", "r1") is not None
    assert await document(store, "a", "r2") is not None


async def test_two_servers_may_have_one_file(tmp_path: Path) -> None:
    """An old one ends its answers while a new one begins, say: each waits for the other."""
    config = StoreConfig(path=str(tmp_path / "store.sqlite"))

    async def serve(name: str) -> None:
        async with Store(config) as store, anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(store.put, "a", response(f"{name}{number}"))

    async with anyio.create_task_group() as tasks:
        for name in ("old", "new"):
            tasks.start_soon(serve, name)
    async with Store(config) as store:
        for name in ("old", "new"):
            assert await document(store, "a", f"{name}199") == b"{}"


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
from gateway.keys.store import KeptResponse, Store

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
            assert await document(store, "a", f"r{number}") is not None, number


async def test_a_copy_of_the_file_alone_has_what_was_kept_while_the_server_runs(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "store.sqlite", tmp_path / "copy.sqlite"
    async with Store(StoreConfig(path=str(path))) as store:
        await store.put("a", response("r1"))
        with anyio.fail_after(HANG):
            while True:
                copy.write_bytes(path.read_bytes())
                with closing(sqlite3.connect(copy)) as copied:
                    (tables,) = copied.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                    if tables and copied.execute("SELECT id FROM responses").fetchall():
                        break
                await anyio.sleep(0.02)
        await store.put("a", response("r2"))  # it goes on
    async with Store(StoreConfig(path=str(copy))) as restored:
        assert await document(restored, "a", "r1") == b"{}"


async def test_a_file_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    async with Store(StoreConfig(path=str(path))) as store:
        await store.put("a", response("r1"))
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(InternalError, match="written by a newer release"):
        async with Store(StoreConfig(path=str(path))):
            pass
    assert path.read_bytes() == before
