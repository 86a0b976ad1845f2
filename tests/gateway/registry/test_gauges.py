"""What the machine tells of its memory."""

import mmap
import os
from pathlib import Path

import pytest

from gateway.registry.gauges import SystemGauge

NO_CARDS = SystemGauge({"CUDA_VISIBLE_DEVICES": ""})


def test_some_main_memory_is_free_and_not_all_there_is() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < NO_CARDS.free()["cpu"] < whole


@pytest.mark.parametrize(
    ("group", "free"),
    [
        ({}, 8 << 30),
        ({"max": "max\n", "current": "7000\n"}, 8 << 30),
        ({"max": "10000\n", "current": "7000\n"}, 3000),
        # Copies of files fill a group to its limit, and go where a program needs their room.
        (
            {
                "max": "10000\n",
                "current": "10000\n",
                "stat": "anon 3000\ninactive_file 4000\nactive_file 2500\n",
            },
            6500,
        ),
    ],
)
def test_a_control_group_has_what_is_left_of_its_limit(
    group: dict[str, str], free: int, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    memory = (
        f"MemTotal:       16777216 kB\nMemAvailable:    {8 << 20} kB\nHugePages_Total:       0\n"
    )
    (tmp_path / "proc/meminfo").write_text(memory)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in group.items():
        (tmp_path / f"sys/fs/cgroup/memory.{name}").write_text(text)
    gauge = SystemGauge({"CUDA_VISIBLE_DEVICES": ""}, root=tmp_path)
    assert gauge.available()["cpu"] == free


def test_what_the_process_takes_shows() -> None:
    before = NO_CARDS.used()["cpu"]
    with mmap.mmap(-1, 64 << 20) as ballast:  # pages of its own, not what was freed before
        ballast.write(bytes(64 << 20))
        assert NO_CARDS.used()["cpu"] - before > (48 << 20)


def test_hidden_cards_are_not_there() -> None:
    assert NO_CARDS.free().keys() == NO_CARDS.used().keys() == NO_CARDS.total().keys() == {"cpu"}


@pytest.mark.gpu
def test_a_card_tells_its_memory() -> None:
    gauge = SystemGauge()
    assert gauge.free()["cuda:0"] > (1 << 30)
    assert gauge.used()["cuda:0"] > 0
