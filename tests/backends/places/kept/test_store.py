"""The store with its threads and files: what is put back is what was taken out, whatever became of
the disk and of the process meanwhile.
"""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from backends.contract.beginnings import SOON, Coming, Found, Taken
from backends.places.kept.files import Folder
from backends.places.kept.store import MOST_PINNED, KeptStore
from tests.hang import HANG

ROOT = Path(__file__).parents[4]
CELLS = 200
WRITER = """
import sys
from pathlib import Path
from tests.backends.places.kept.test_store import made, opened
with opened(Path(sys.argv[1])) as store:
    beginnings = store.beginnings("engine", "model")
    for seed in range(int(sys.argv[2]), 1 << 30):
        beginnings.keep(made(seed % 50, version=seed), 0.0)
        store.flush()
        print(seed, flush=True)
"""
CROWDED = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))\n"
FULL = """
import sys
from pathlib import Path
from tests.backends.places.kept.test_store import made, opened, put_back
with opened(Path(sys.argv[1])) as store:
    beginnings = store.beginnings("engine", "model")
    for seed in range(3):
        beginnings.keep(made(seed), 0.0)
    store.flush()
    print(put_back(store, 0), len(store.listed()), flush=True)
"""


def made(seed: int, version: int = 0) -> Taken:
    """What its tokens say it must be: each version of a text has more of it."""
    tokens = tokens_of(seed, version)
    return Taken(
        owner="somebody",
        tokens=tokens,
        cuts_from=len(tokens),
        buffers=(bytes_of(tokens, 100_000), bytes_of(tokens, 999)),
        places=(len(tokens) // 2,),
        seconds=50.0,
    )


def tokens_of(seed: int, version: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1_000), k=CELLS + version % 7)


def bytes_of(tokens: list[int], size: int) -> np.ndarray:
    return np.random.default_rng(tokens).integers(0, 256, size, np.uint8)


@contextmanager
def opened(folder: Path | None, memory: int = 1 << 30, disk: int = 1 << 30) -> Iterator[KeptStore]:
    kept = KeptStore(memory=memory, folder=Folder(folder) if folder else None, disk=disk)
    kept.open()
    try:
        yield kept
    finally:
        kept.close()


def found(store: KeptStore, seed: int) -> Found | None:
    """What is kept of a text, once it is there."""
    beginnings, until = store.beginnings("engine", "model"), time.monotonic() + HANG
    while time.monotonic() < until:
        match beginnings.longest("somebody", [*tokens_of(seed, 6), 1], 0):
            case Coming():
                time.sleep(SOON)
            case answer:
                return answer
    raise TimeoutError


def put_back(store: KeptStore, seed: int) -> bool:
    """Whether something was found; what was is right."""
    if (answer := found(store, seed)) is None:
        return False
    tokens = list(answer.taken.tokens)
    assert tokens == tokens_of(seed, 6)[: len(tokens)]
    assert np.array_equal(answer.taken.whole, bytes_of(tokens, 100_000))
    assert np.array_equal(answer.taken.buffers[1], bytes_of(tokens, 999))
    return True


def test_what_was_taken_out_is_put_back_from_memory_and_from_disk(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as store:
        store.beginnings("engine", "model").keep(made(0), 0.0)
        assert put_back(store, 0)
        assert not put_back(store, 1)
        answer = found(store, 0)
        assert answer is not None
        assert answer.tier == "memory"
    with opened(tmp_path / "kept") as store:
        assert [one.tiers for one in store.listed()] == [("disk",)]
        assert put_back(store, 0)
        answer = found(store, 0)
        assert answer is not None
        assert answer.tier == "disk"  # it came from there
        store.beginnings("engine", "model").put_back(answer, 100, 0.1)
        assert store.counts().hits == {"memory": 0, "disk": 1}


def test_what_memory_has_no_room_for_lies_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path / "kept", memory=250_000) as store:
        beginnings = store.beginnings("engine", "model")
        for seed in range(6):
            beginnings.keep(made(seed), 0.0)
            store.flush()
        assert store.memory <= 250_000
        assert all(put_back(store, seed) for seed in range(6))


def test_what_is_dropped_is_gone_from_disk(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as store:
        for seed in range(3):
            store.beginnings("engine", f"model {seed}").keep(made(seed), 0.0)
    with opened(tmp_path / "kept") as store:
        assert store.drop(lambda one: one.model == "model 1") == 1
        assert [put_back(store, seed) for seed in range(3)] == [True, False, True]
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_files_that_are_of_no_use_are_gone_after_a_start(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as one, opened(tmp_path / "kept") as other:
        for store, version in ((one, 0), (other, 6)):
            long = msgspec.structs.replace(made(0, version), cuts_from=0)
            store.beginnings("engine", "model").keep(long, 0.0)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    with opened(tmp_path / "kept") as store:
        assert put_back(store, 0)
    with opened(tmp_path / "kept", disk=1) as store:
        assert store.listed() == []
    assert list((tmp_path / "kept").iterdir()) == []


def test_what_there_is_no_memory_to_read_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(folder: Folder, path: Path) -> Taken:
        raise MemoryError("Unable to allocate 9.31 GiB")

    with opened(tmp_path / "kept") as store:
        store.beginnings("engine", "model").keep(made(0), 0.0)
    with opened(tmp_path / "kept") as store:
        monkeypatch.setattr(Folder, "read", without_memory)
        assert not put_back(store, 0)


def test_a_file_in_the_place_of_another_is_not_used(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as store:
        beginnings = store.beginnings("engine", "model")
        beginnings.keep(made(0), 0.0)
        beginnings.keep(msgspec.structs.replace(made(1), owner="another"), 0.0)
    with opened(tmp_path / "kept") as store:
        one, other = (tmp_path / "kept").iterdir()
        aside = one.rename(tmp_path / "aside")
        other.rename(one)
        aside.rename(other)
        assert not put_back(store, 0)
        assert [listed.owner for listed in store.listed()] == ["another"]


def test_a_file_that_was_renamed_is_gone_after_a_start(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as store:
        for seed in range(2):
            store.beginnings("engine", "model").keep(made(seed), 0.0)
    renamed = min((tmp_path / "kept").iterdir())
    renamed.rename(renamed.with_stem("another"))
    with opened(tmp_path / "kept") as store:
        assert len(store.listed()) == 1
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_a_conversation_that_is_pinned_by_its_name_stays_pinned_as_it_grows() -> None:
    with opened(None, memory=210_000) as store:
        beginnings = store.beginnings("engine", "model")
        assert store.pin_conversation("somebody", "mine", pinned=True) == 0
        for version in (0, 1, 2):
            taken = made(0, version)
            named = msgspec.structs.replace(taken, conversation="mine", cuts_from=0)
            beginnings.keep(named, 0.0)
            (one,) = store.listed()
            assert (one.pinned, one.tokens) == (True, CELLS + version)
        beginnings.keep(made(1), 0.0)
        beginnings.keep(made(2), 0.0)
        assert put_back(store, 0)


def test_what_is_pinned_stays_so_over_restarts(tmp_path: Path) -> None:
    with opened(tmp_path / "kept") as store:
        beginnings = store.beginnings("engine", "model")
        for seed, name in enumerate(("mine", "other", "")):
            beginnings.keep(msgspec.structs.replace(made(seed), conversation=name), 0.0)
        assert store.pin_conversation("somebody", "mine", pinned=True) == 1
        assert store.pin(lambda one: not one.conversation, pinned=True) == 1
    with opened(tmp_path / "kept") as store:
        pinned = {one.conversation: one.pinned for one in store.listed()}
        assert pinned == {"mine": True, "other": False, "": True}
        assert store.pin(lambda one: not one.conversation, pinned=False) == 1
        assert store.drop(lambda one: one.conversation == "other") == 1
        edited = msgspec.structs.replace(made(3), conversation="mine")
        store.beginnings("engine", "model").keep(edited, 0.0)
    with opened(tmp_path / "kept") as store:
        assert [(one.conversation, one.pinned) for one in store.listed()].count(("mine", True)) == 2
        assert store.drop(lambda _: True) == 3
    assert list((tmp_path / "kept").iterdir()) == []


def test_many_threads_use_it_at_once(tmp_path: Path) -> None:
    faults: list[BaseException] = []

    def work(first: int) -> None:
        rng, beginnings = random.Random(first), store.beginnings("engine", "model")
        try:
            for _ in range(60):
                seed = rng.randrange(12)
                if rng.randrange(2):
                    beginnings.keep(made(seed, rng.randrange(7)), 0.0)
                else:
                    put_back(store, seed)
                if not rng.randrange(10):
                    store.allow(rng.choice((150_000, 500_000)))
        except BaseException as error:
            faults.append(error)
            raise

    with opened(tmp_path / "kept", memory=500_000) as store:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG)
    assert not faults


def test_a_disk_that_is_full_takes_nothing_and_memory_goes_on(tmp_path: Path) -> None:
    # Without bytecode, which would be cut short where its modules lie.
    program = [sys.executable, "-B", "-c", CROWDED + FULL, str(tmp_path / "kept")]
    done = subprocess.run(
        program, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=True
    )
    assert "True 3" in done.stdout.splitlines(), done.stderr
    assert (done.stdout + done.stderr).count(
        "can't be kept on disk now"
    ) == 2  # once more at the end
    assert list((tmp_path / "kept").iterdir()) == []


def killed(folder: Path, times: int) -> None:
    """A process that writes all the time is ended at any moment; what it leaves is right."""
    rng, left = random.Random(0), 0
    for number in range(times):
        program = [sys.executable, "-c", WRITER, str(folder), str(number * 1_000)]
        with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            threading.Event().wait(rng.random() / 20)
            process.kill()
        with opened(folder) as store:
            left = len(store.listed())
            assert all(put_back(store, seed) for seed in _seeds(store))
    assert left


def _seeds(store: KeptStore) -> list[int]:
    known = {tuple(tokens_of(seed)): seed for seed in range(50)}
    entries = store._shelf.entries.values()  # noqa: SLF001
    return [known[tuple(memoryview(one.tokens).cast("q")[:CELLS])] for one in entries]


def test_a_process_that_is_killed_while_it_writes_leaves_no_wrong_entry(tmp_path: Path) -> None:
    killed(tmp_path / "kept", 3)


@pytest.mark.long
def test_however_often_it_is_killed(tmp_path: Path) -> None:
    killed(tmp_path / "kept", 200)


def test_of_many_names_that_are_pinned_the_first_are_forgotten() -> None:
    with opened(None) as store:
        for number in range(MOST_PINNED + 1):
            store.pin_conversation("somebody", f"mine {number}", pinned=True)
        beginnings = store.beginnings("engine", "model")
        for seed, name in enumerate(("mine 0", f"mine {MOST_PINNED}")):
            taken = msgspec.structs.replace(made(seed), owner="somebody", conversation=name)
            beginnings.keep(taken, 0.0)
        assert {one.conversation: one.pinned for one in store.listed()} == {
            "mine 0": False,
            f"mine {MOST_PINNED}": True,
        }
