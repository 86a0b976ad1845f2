"""Each fault of the study once: no other stream breaks, and nothing is left."""

import asyncio

import pytest

from backends.machine import prebuilt
from benchmarks.answers import Answer, Arrival
from benchmarks.faults import FAULTS, PLACES, STREAMS, ended, measured, pointers


@pytest.mark.parametrize("library", ["libggml-cpu.so", prebuilt.LIBRARY])
def test_pointers_of_a_library_are_where_it_is_written_to_and_was(library: str) -> None:
    maps = """\
1000-2000 r--p 00000000 fe:00 7 /lib/libggml-cpu.so
2000-3000 r-xp 00001000 fe:00 7 /lib/libggml-cpu.so
3000-4000 r--p 00002000 fe:00 7 /lib/libggml-cpu.so
4000-4800 r--p 00003000 fe:00 7 /lib/libggml-cpu.so
4800-5000 rw-p 00003800 fe:00 7 /lib/libggml-cpu.so
5000-6000 rw-p 00000000 00:00 0
6000-7000 rw-p 00000000 fe:00 8 /lib/libother.so
"""
    maps = maps.replace("libggml-cpu.so", library)
    assert [*pointers(maps)] == [(0x4000, 0x4800), (0x4800, 0x5000)]


HEAD = Arrival(1.0, b"HTTP/1.1 200 OK\r\n\r\n")
TEXT = Arrival(2.0, b'data: {"content":"the \\"error\\""}\n\n')


@pytest.mark.parametrize(
    ("rest", "error", "at"),
    [
        ([Arrival(3.0, b"data: [DONE]\n\n")], None, 3.0),
        (
            [Arrival(3.0, b'data: {"err'), Arrival(4.0, b'or":{}}\n\n'), Arrival(5.0, b"0")],
            "error",
            4.0,
        ),
        ([], "cut off", 2.0),
    ],
)
def test_a_stream_ends_well_or_with_its_error_when_that_has_come(
    rest: list[Arrival], error: str | None, at: float
) -> None:
    found = ended(Answer(0.0, (HEAD, TEXT, *rest)))
    assert found.at == at
    assert (found.error is None) == (error is None)
    assert (error or "") in (found.error or "")


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
