"""Which number a card has: as CUDA counts, whatever the environment says."""

# ruff: noqa: N802
# The stand-in's functions have the driver's names.

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from backends.machine import devices
from backends.machine.devices import Card, number_by_bus, visible

A, B, C = "GPU-aa11", "GPU-ab22", "GPU-cc33"
CARDS = (Card(A), Card(B), Card(C))
PART_1, PART_2 = "MIG-1111", "MIG-2222"
DIVIDED = (Card(A, (PART_1, PART_2)), Card(B))


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [A, B, C]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 2 , 0 ", [C, A]),
        ("+1", [B]),
        ("1st,2nd", [B, C]),  # strtoul stops at the first letter
        ("0,7,1", [A]),
        ("0,,1", [A]),
        ("0,-1,1", [A]),
        ("1,1", []),
        (f"{C},{A}", [C, A]),
        ("GPU-cc,GPU-ab", [C, B]),  # shortened
        ("GPU-a", []),  # two cards begin so
        ("GPU-cc,GPU-dd,GPU-ab", [C]),
        (f"{A},GPU-aa", []),
        (f"1, {A}", [B, A]),
    ],
)
def test_cards_are_those_cuda_sees_in_its_order(variable: str | None, expected: list[str]) -> None:
    assert visible(variable, CARDS) == expected


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [PART_1]),  # a process sees one instance, the first
        ("0", [PART_1]),
        ("1", [B]),
        (PART_2, [PART_2]),
        ("MIG-22", [PART_2]),
        (f"{PART_2},{PART_1}", [PART_2]),
        (B, [B]),
    ],
)
def test_of_a_divided_card_a_process_sees_one_instance(
    variable: str | None, expected: list[str]
) -> None:
    assert visible(variable, DIVIDED) == expected


@given(
    st.one_of(
        st.lists(
            st.sampled_from(["0", "1", "2", "-1", "+0", " 1", "2x", "x"]), max_size=4, unique=True
        ),
        st.lists(st.sampled_from([A, B, C, "GPU-a", "GPU-cc", "GPU-ab"]), max_size=4, unique=True),
    )
)
def test_lists_are_read_as_torch_reads_them(entries: list[str]) -> None:
    cuda = pytest.importorskip("torch").cuda
    variable = ",".join(entries)
    before = os.environ.get(devices.VISIBLE)
    os.environ[devices.VISIBLE] = variable
    try:
        read: Sequence[Any] = cuda._parse_visible_devices()  # noqa: SLF001 - its reading of the list
    finally:
        if before is None:
            del os.environ[devices.VISIBLE]
        else:
            os.environ[devices.VISIBLE] = before
    if read and isinstance(read[0], str):
        read = cuda._transform_uuid_to_ordinals(list(read), [A, B, C])  # noqa: SLF001 - as above
    assert visible(variable, CARDS) == [(A, B, C)[number] for number in read]


def test_cuda_is_made_to_count_as_nvml_does() -> None:
    environment: dict[str, str] = {}
    number_by_bus(environment)
    assert environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_an_order_the_user_chose_stays() -> None:
    environment = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    number_by_bus(environment)
    assert environment == {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


class Driver:
    """Stands in for NVML with three cards, of which some are out of order."""

    NVMLError = pynvml.NVMLError
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(
        self, *, lost: Sequence[int] = (), own: Sequence[tuple[int, int | None]] = ()
    ) -> None:
        self._lost = lost
        self._own = own

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self._lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return (A, B, C)[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"card {handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:C{handle}:00.0")

    def nvmlDeviceGetMigMode(self, device: int) -> list[int]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=100 + handle, free=60, used=40 + handle)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self._own]


def test_the_stand_in_has_nvml_s_functions() -> None:
    for name in vars(Driver):
        assert name.startswith("_") or hasattr(pynvml, name)


def test_an_order_by_speed_is_warned_of_at_the_start_and_not_at_every_reading() -> None:
    environment = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    with capture_logs() as lines:
        number_by_bus(environment, Driver())
        assert [line["log_level"] for line in lines] == ["warning"]
        devices.memory(environment, Driver())
        assert len(lines) == 1


def test_a_lost_card_does_not_move_the_others() -> None:
    found = devices.memory({}, Driver(lost=[0]))
    assert {name: one.total for name, one in found.items()} == {"cuda:1": 101, "cuda:2": 102}


def test_numbers_are_those_of_the_visible_cards() -> None:
    found = devices.memory({"CUDA_VISIBLE_DEVICES": "GPU-cc,GPU-aa"}, Driver())
    assert {name: one.total for name, one in found.items()} == {"cuda:0": 102, "cuda:1": 100}


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([(1, 5), (os.getpid(), 7), (os.getpid(), 1)], 8),
        ([(1, 5)], None),  # another process, or our own under another number
        ([(os.getpid(), None)], None),
    ],
)
def test_a_process_learns_what_it_has_itself(
    processes: list[tuple[int, int | None]], expected: int | None
) -> None:
    found = devices.memory({"CUDA_VISIBLE_DEVICES": "1"}, Driver(own=processes))
    assert found["cuda:0"].own == expected


def test_without_a_driver_there_are_no_cards() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert devices.memory({}) == {}
    else:
        pytest.skip("there is a driver here")
