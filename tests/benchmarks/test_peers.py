"""Other servers are installed by versions of their own; one that can't be had is left out."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.peers import (
    CONSTRAINTS,
    LLAMA_CPP_PYTHON,
    ROOT,
    Running,
    free_port,
    peer,
    peer_python,
    serving,
)


def pins(path: Path) -> dict[str, str]:
    lines = path.read_text("utf-8").splitlines()
    found = (line.partition("==") for line in lines if "==" in line)
    return {name.lower().replace("_", "-"): version for name, _, version in found}


def test_the_library_that_is_compared_is_the_one_that_is_tested() -> None:
    name = "llama-cpp-python"
    assert pins(CONSTRAINTS)[name] == pins(ROOT / "constraints.txt")[name]


@pytest.mark.slow
def test_the_peers_versions_go_together() -> None:
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    done = subprocess.run([*pip, *LLAMA_CPP_PYTHON], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def server() -> Iterator[Running]:
        peer_python("peers", ("--no-index", "no-such-distribution-here"), tmp_path)
        yield Running(port=0, pid=0, started_in=0.0)

    with ExitStack() as running:
        assert peer(running, "a peer", server()) is None
    printed = capsys.readouterr().out
    assert "a peer is left out: -m pip install failed:" in printed
    assert "no-such-distribution-here" in printed


def test_a_peer_that_does_not_start_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as running:
        command = [sys.executable, "-c", "raise SystemExit('its last words')"]
        assert peer(running, "a peer", serving(command, free_port())) is None
    printed = capsys.readouterr().out
    assert printed.startswith("a peer is left out: ")
    assert "its last words" in printed
