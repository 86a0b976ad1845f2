"""Nothing computes on after the benchmark."""

import os

import pytest

from benchmarks.peers import busy_processes


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_busy_processes_end_with_the_block_however_it_ends() -> None:
    seen: list[int] = []

    def interrupted() -> None:
        with busy_processes(2) as started:
            assert all(map(exists, started))
            seen.extend(started)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(seen) == 2
    assert not any(map(exists, seen))
