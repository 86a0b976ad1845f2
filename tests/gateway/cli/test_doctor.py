"""The table of platforms is the same in docs/installation.md and from `roundhouse doctor`."""

import re
from pathlib import Path

import pytest

from backends.contract.catalog import BACKENDS, IN_WSL, PLATFORMS, Way
from gateway.cli import main
from gateway.cli.doctor import TABLE, row_of, this_platform

ROOT = Path(__file__).parents[3]


def markdown() -> str:
    """The table in docs/installation.md."""
    engines = list(TABLE[PLATFORMS[0]])
    lines = [f"| platform | {' | '.join(engines)} |", "|---" * (1 + len(engines)) + "|"]
    for name, ways in TABLE.items():
        cells = " | ".join(_cell(ways[engine]) for engine in engines)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def _cell(way: Way) -> str:
    if not way.command:
        return way.note
    tried = f"**tried**: {way.tried}" if way.tried else "not tried"
    command = way.command if way == IN_WSL else f"`{way.command}`"
    return f"{command}{f' ({way.note})' * bool(way.note)}: {tried}"


def test_the_documentation_shows_it() -> None:
    assert markdown() in (ROOT / "docs" / "installation.md").read_text("utf-8")


def test_every_engine_that_is_installed_stands_in_every_row() -> None:
    engines = [name for name, one in BACKENDS.items() if one.files.INSTALLATION]
    assert {tuple(ways) for ways in TABLE.values()} == {tuple(engines)}


def test_its_commands_are_there() -> None:
    extras = (ROOT / "pyproject.toml").read_text("utf-8")
    for way in (way for ways in TABLE.values() for way in ways.values()):
        for extra in re.findall(r"scripts/install (\w+)", way.command):
            assert re.search(rf"^{extra} = \[", extras, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("system", "cards", "amd", "row"),
    [
        ("Linux", (), False, "Linux, CPUs"),
        ("Linux", ("cuda:0",), False, "Linux, CUDA"),
        ("Linux", ("cuda:0",), True, "Linux, CUDA"),
        ("Linux", (), True, "Linux, ROCm"),
        ("Linux", ("rocm:0",), True, "Linux, ROCm"),
        ("Linux", ("vulkan:0",), True, "Linux, Vulkan"),
        ("Linux", ("vulkan:0", "cuda:0"), False, "Linux, CUDA"),
        ("Darwin", (), False, "macOS (Metal)"),
        ("Windows", (), False, "Windows"),
    ],
)
def test_a_machine_finds_its_row(system: str, cards: tuple[str, ...], amd: bool, row: str) -> None:
    found, why = row_of(system, cards, amd=amd)
    assert found == row
    kind = row.rpartition(" ")[2].lower()
    assert all(card in why for card in cards if card.startswith(kind))


def test_doctor_tells_this_machines_row_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    row, why = this_platform()
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"{row}: {why}" in said
    for engine, way in TABLE[row].items():
        assert any(
            line.startswith(engine) and (way.command or way.note) in line
            for line in said.splitlines()
        )
