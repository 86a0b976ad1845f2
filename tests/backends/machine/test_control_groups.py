"""What control groups leave a process of main memory, on machines made of files."""

from pathlib import Path

import pytest

from backends.machine.control_groups import main_memory, main_memory_free

V1 = "7:memory:/box\n3:cpu,cpuacct:/x\n0::/\n"
NONE = str(2**63 - 4096)  # what version 1 writes where there is no limit
# Copies of files fill a group to its limit, and go where a program needs their room.
FULL = "anon 3000\ninactive_file 4000\nactive_file 2500\n"


def machine(root: Path, group: str, files: dict[str, str]) -> Path:
    """8 GiB of it are free."""
    memory = (
        f"MemTotal:       16777216 kB\nMemAvailable:    {8 << 20} kB\nHugePages_Total:       0\n"
    )
    kernel = {"proc/meminfo": memory, "proc/self/cgroup": group}
    for name, text in (
        kernel | {f"sys/fs/cgroup/{key}": one for key, one in files.items()}
    ).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "files", "total", "free"),
    [
        ("0::/\n", {}, None, 8 << 30),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "7000\n"}, None, 8 << 30),
        ("0::/\n", {"memory.max": "10000\n", "memory.current": "7000\n"}, 10000, 3000),
        (
            "0::/\n",
            {"memory.max": "10000", "memory.current": "10000", "memory.stat": FULL},
            10000,
            6500,
        ),
        # A service of systemd's: MemoryMax, MemoryHigh, and a slice around it.
        ("0::/a/b\n", {"a/b/memory.max": "10000", "a/b/memory.current": "7000"}, 10000, 3000),
        (
            "0::/a/b\n",
            {"a/b/memory.high": "8000", "a/b/memory.max": "max", "a/b/memory.current": "7000"},
            8000,
            1000,
        ),
        (
            "0::/a/b\n",
            {
                "a/b/memory.max": "10000",
                "a/b/memory.current": "1000",
                "a/memory.max": "9000",
                "a/memory.current": "8500",
            },
            9000,
            500,
        ),
        ("0::/only/the/host/knows\n", {"memory.max": "10", "memory.current": "30"}, 10, 0),
        (V1, {"memory/box/memory.limit_in_bytes": NONE}, None, 8 << 30),
        (
            V1,
            {
                "memory/box/memory.limit_in_bytes": "10000",
                "memory/box/memory.usage_in_bytes": "9000",
                "memory/box/memory.stat": "inactive_file 9\ntotal_inactive_file 4000\n",
                "memory/memory.limit_in_bytes": NONE,
                "memory/memory.usage_in_bytes": "500000",
            },
            10000,
            5000,
        ),
        ("nonsense\n", {}, None, 8 << 30),
    ],
)
def test_the_smallest_limit_of_the_group_and_those_above_it_counts(
    tmp_path: Path, group: str, files: dict[str, str], total: int | None, free: int
) -> None:
    root = machine(tmp_path, group, files)
    assert main_memory_free(root) == free
    assert main_memory(root) == (main_memory(tmp_path / "no groups") if total is None else total)


def test_where_nothing_says_what_is_free_it_is_all_there_is(tmp_path: Path) -> None:
    assert main_memory_free(tmp_path) == main_memory(tmp_path) > 0
