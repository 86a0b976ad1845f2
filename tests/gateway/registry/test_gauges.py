"""What the machine tells of its memory."""

import ctypes
import os
from typing import Any

import pytest

from gateway.registry.gauges import SystemGauge, own_memory, visible_cards

NO_CARDS = SystemGauge({"CUDA_VISIBLE_DEVICES": ""})


def test_some_main_memory_is_free_and_not_all_there_is() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < NO_CARDS.free()["cpu"] < whole


def test_what_the_process_takes_shows() -> None:
    before = NO_CARDS.used()["cpu"]
    ballast = bytearray(os.urandom(1)) * (64 << 20)
    assert NO_CARDS.used()["cpu"] - before > (48 << 20)
    del ballast


def test_hidden_cards_are_not_there() -> None:
    assert NO_CARDS.free().keys() == NO_CARDS.used().keys() == {"cpu"}


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("-1", []),
        ("2,0", ["2", "0"]),
        ("1, GPU-8f6a", ["1", "GPU-8f6a"]),
        ("0,7,1", ["0"]),
    ],
)
def test_cards_are_those_cuda_sees_in_its_order(variable: str | None, expected: list[str]) -> None:
    assert visible_cards(variable, 3) == expected


class Driver:
    """Answers as nvmlDeviceGetComputeRunningProcesses_v3 does."""

    def __init__(self, *processes: tuple[int, int], status: int = 0) -> None:
        self._processes = processes
        self._status = status

    def nvmlDeviceGetComputeRunningProcesses_v3(  # noqa: N802 - the driver's name
        self, handle: object, count: Any, found: Any
    ) -> int:
        for index, (pid, used) in enumerate(self._processes):
            found[index].pid, found[index].used = pid, used
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint)).contents.value = len(self._processes)
        return self._status


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (Driver((1, 5), (os.getpid(), 7), (os.getpid(), 1)), 8),
        (Driver((1, 5)), None),  # another process, or our own under another number
        (Driver((os.getpid(), 2**64 - 1)), None),
        (Driver((os.getpid(), 7), status=7), None),
    ],
)
def test_a_process_learns_what_it_has_itself(driver: Any, expected: int | None) -> None:
    assert own_memory(driver, ctypes.c_void_p()) == expected


@pytest.mark.gpu
def test_a_card_tells_its_memory() -> None:
    gauge = SystemGauge()
    assert gauge.free()["cuda:0"] > (1 << 30)
    assert gauge.used()["cuda:0"] > 0
