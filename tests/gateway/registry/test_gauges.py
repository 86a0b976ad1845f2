"""What the machine tells of its memory."""

import mmap
import os
from pathlib import Path

import pytest

from gateway.registry.gauges import Gauge

NO_CARDS = Gauge({"CUDA_VISIBLE_DEVICES": ""})


def test_some_main_memory_is_free_and_not_all_there_is() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < NO_CARDS.free()["cpu"] < whole


def test_a_control_group_is_seen(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/system.slice/roundhouse.service"
    for path, text in {
        tmp_path / "proc/meminfo": f"MemAvailable:    {8 << 20} kB\n",
        tmp_path / "proc/self/cgroup": "0::/system.slice/roundhouse.service\n",
        group / "memory.max": "10000\n",
        group / "memory.current": "7000\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    gauge = Gauge({"CUDA_VISIBLE_DEVICES": ""}, root=tmp_path)
    assert (gauge.available()["cpu"], gauge.total()["cpu"]) == (3000, 10000)


def test_what_the_process_takes_shows() -> None:
    before = NO_CARDS.used()["cpu"]
    with mmap.mmap(-1, 64 << 20) as ballast:  # pages of its own, not what was freed before
        ballast.write(bytes(64 << 20))
        assert NO_CARDS.used()["cpu"] - before > (48 << 20)


def test_hidden_cards_are_not_there() -> None:
    assert NO_CARDS.free().keys() == NO_CARDS.used().keys() == NO_CARDS.total().keys() == {"cpu"}


@pytest.mark.gpu
def test_a_card_tells_its_memory() -> None:
    gauge = Gauge()
    assert gauge.free()["cuda:0"] > (1 << 30)
    assert gauge.used()["cuda:0"] > 0
