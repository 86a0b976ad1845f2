"""Each fault of the study once: no other stream breaks, and nothing is left."""

import asyncio

import pytest

from benchmarks.faults import FAULTS, PLACES, STREAMS, measured, pointers


def test_pointers_of_a_library_are_where_it_is_written_to_and_was() -> None:
    maps = """\
1000-2000 r--p 00000000 fe:00 7 /lib/libggml-cpu.so
2000-3000 r-xp 00001000 fe:00 7 /lib/libggml-cpu.so
3000-4000 r--p 00002000 fe:00 7 /lib/libggml-cpu.so
4000-4800 r--p 00003000 fe:00 7 /lib/libggml-cpu.so
4800-5000 rw-p 00003800 fe:00 7 /lib/libggml-cpu.so
5000-6000 rw-p 00000000 00:00 0
6000-7000 rw-p 00000000 fe:00 8 /lib/libother.so
"""
    assert [*pointers(maps)] == [(0x4000, 0x4800), (0x4800, 0x5000)]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_the_end_of_a_worker_ends_its_own_streams_and_leaves_nothing(place: str) -> None:
    kinds = [kind for kind, fault in FAULTS.items() if place in fault.places]
    with PLACES[place]() as there:
        found = asyncio.run(measured(there, kinds, 1)).trials
    assert [one.kind for one in found] == kinds
    for one in found:
        assert one.broken == 0, one
        assert not one.left, one
        assert one.over < STREAMS, f"all had ended before: {one}"
