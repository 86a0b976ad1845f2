"""Which cores there are to compute with, on machines made of files."""

import os
from pathlib import Path

import pytest

from backends.engines.threads import IdleCores, cores, count, cpu_quota


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/a/b\n", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/only/the/host/knows\n", {"cpu.max": "400000 100000"}, 4.0),
        ("3:cpu,cpuacct:/x\n0::/\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1"}, None),
        (
            "3:cpu,cpuacct:/x\n0::/\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "250000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            "1:cpu:/gone\n",
            {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"},
            2.0,
        ),
        ("1:cpuset:/x\n", {"cpuset/cpu.cfs_quota_us": "1", "cpuset/cpu.cfs_period_us": "1"}, None),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, None),
        ("nonsense\n", {}, None),
    ],
)
def test_the_smallest_quota_of_the_cgroup_and_those_above_it_counts(
    tmp_path: Path, group: str, files: dict[str, str], quota: float | None
) -> None:
    write(tmp_path / "proc/self/cgroup", group)
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert cpu_quota(tmp_path) == quota


def test_where_the_system_tells_nothing_all_processors_are_cores(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert cores(tmp_path) == count()


def test_hyperthreads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu in allowed():
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(topology / "thread_siblings_list", "0-511\n")
    assert cores(tmp_path) == 1


def test_a_quota_of_less_than_a_core_leaves_one(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "20000 100000")
    assert cores(tmp_path) == 1


def test_idle_time_is_unknown_where_there_is_no_proc(tmp_path: Path) -> None:
    assert IdleCores(tmp_path)() is None


def test_idle_time_of_the_processors_we_may_use_is_read(tmp_path: Path) -> None:
    stat, mine = tmp_path / "proc/stat", allowed()[0]

    def idle(ticks: int) -> None:
        write(stat, f"cpu 1 1 1 {ticks} 0 0\ncpu{mine} 1 1 1 {ticks} 0 0 0\nintr 5 5\n")

    idle(100)
    looking = IdleCores(tmp_path)
    idle(100)
    assert looking() == 0
    idle(1_000_000)
    cores_idle = looking()
    assert cores_idle is not None
    assert cores_idle > 0
