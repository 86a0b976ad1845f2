"""How many threads a step has, and what a process is prepared with."""

import gc
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.engines.threads import BETWEEN, StepThreads, cores, count, left, most, rested
from backends.machine.process_settings import ARENAS, prepare_process


def seconds(cores: int, busy: int) -> Iterator[int]:
    """The threads of each second beside so many busy processes, which share the cores with them."""
    threads = cores
    while True:
        share = min(1.0, cores / (threads + busy))
        threads = min(cores, left(max(0.0, cores - (threads + busy)), threads * share))
        yield threads


@pytest.mark.parametrize(
    ("cores", "busy", "threads"),
    [(2, 0, 2), (2, 1, 1), (2, 4, 1), (16, 0, 16), (16, 4, 12), (1, 1, 1)],
)
def test_others_are_left_what_they_keep_busy(cores: int, busy: int, threads: int) -> None:
    found = seconds(cores, busy)
    assert [next(found) for _ in range(8)][-4:] == [threads] * 4


def test_a_part_of_a_core_now_and_then_takes_no_thread() -> None:
    assert left(0.1, 1.6) == left(0.0, 2.0) == 2
    assert left(0.0, 0.0) == 1


def test_a_number_of_threads_stays_that_number() -> None:
    assert most(3) == 3
    assert most("all") == count()
    assert most("auto") == most(None) == cores()


def test_the_engine_is_given_another_count_only_when_it_changes() -> None:
    used: list[int] = []
    threads = StepThreads(2, 4, used.append)
    for rows in (1, 1, 300, 2, 1):
        threads.begin(rows)
        assert threads.end() >= 0
    assert used == [2, 4, 2]


@contextmanager
def computing(others: int) -> Iterator[None]:
    """So many other models of this process are in a step, each on a thread of its own."""
    begun, over = threading.Barrier(others + 1), threading.Event()

    def step() -> None:
        threads = StepThreads(1, 1, lambda _: None)
        threads.begin(1)
        begun.wait()
        over.wait()
        threads.end()

    running = [threading.Thread(target=step) for _ in range(others)]
    for one in running:
        one.start()
    begun.wait()
    yield
    over.set()
    for one in running:
        one.join()


def used(threads: StepThreads, found: list[int]) -> int:
    """How many a step is computed with."""
    threads.begin(1)
    threads.end()
    return found[-1]


@pytest.mark.parametrize(("others", "left"), [(0, 8), (1, 4), (3, 2), (9, 1)])
def test_models_of_one_process_share_the_cores_at_once(
    others: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.engines.threads.cores", lambda: 8)
    found: list[int] = []
    threads = StepThreads("auto", "auto", found.append, lambda: None)
    drafting = StepThreads("auto", "auto", lambda _: None, lambda: None)
    with computing(others):
        drafting.begin(1)  # its draft model takes nothing of it
        drafting.end()
        assert used(threads, found) == left
        assert used(StepThreads(6, 6, found.append), found) == 6
    time.sleep(2 * BETWEEN)
    again: list[int] = []
    assert used(StepThreads("auto", "auto", again.append, lambda: None), again) == 8


def test_whose_step_failed_computes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.engines.threads.cores", lambda: 8)
    found: list[int] = []

    def fail() -> None:
        StepThreads(1, 1, lambda _: None).begin(1)
        rested()

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert used(StepThreads("auto", "auto", found.append, lambda: None), found) == 8


def test_what_another_engine_of_this_process_computes_is_not_taken_for_a_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.engines.threads.cores", lambda: 2)
    monkeypatch.setattr("backends.engines.threads.LOOK_EVERY", 0.05)
    monkeypatch.setattr(time, "process_time", time.perf_counter)  # one thread computes always
    found: list[int] = []
    threads = StepThreads("auto", "auto", found.append, lambda: 1.0)
    time.sleep(0.1)  # another engine's step
    threads.begin(1)
    threads.end()
    threads.begin(1)
    assert found == [2]


def test_the_spin_of_waiting_threads_is_bounded_unless_the_user_chose() -> None:
    plain: dict[str, str] = {}
    before, collected = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(0.005)
    gc.set_threshold(700, 10, 10)  # Python's own
    try:
        prepare_process(plain)
        assert int(plain["GOMP_SPINCOUNT"]) < 300_000
        for chosen in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}):
            environment = dict(chosen)
            prepare_process(environment)
            assert environment == chosen
        assert sys.getswitchinterval() < 0.005
        assert gc.get_threshold() == (700, 10, 100)
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*collected)


# Prints how many arenas glibc made for eight threads that allocate at once.
ARENAS_OF_EIGHT_THREADS = """
import ctypes, os, sys, tempfile, threading
from backends.machine.process_settings import prepare_process

prepare_process(os.environ)
libc, barrier = ctypes.CDLL(None), threading.Barrier(8)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def allocate():
    barrier.wait()
    libc.malloc(4096)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(open(sys.argv[1]).read().count("<heap nr="))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")
@pytest.mark.parametrize(("chosen", "most"), [({}, ARENAS), ({"MALLOC_ARENA_MAX": "5"}, 5)])
def test_memory_is_torn_into_few_arenas_unless_the_user_chose(
    chosen: dict[str, str], most: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", ARENAS_OF_EIGHT_THREADS, str(tmp_path / "info.xml")]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), **chosen}
    process = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert int(process.stdout) == most
