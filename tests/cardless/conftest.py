"""exllamav2 and exllamav3 themselves, on a machine without a card.

Each file of this folder runs in a process of its own, in which modules of those packages see cards
(`finding`): nothing of it reaches the tests of other engines. The process that was asked for the
tests starts that one with the tests chosen of the file, and reports as its own what it reports. A
file may set environment variables for its process: `ENVIRONMENT`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.cardless import finding

HERE = Path(__file__).parent
REPORTS = "ROUNDHOUSE_CARDLESS_REPORTS"  # set in such a process: the file that it reports to
CARDS = 2

if REPORTS in os.environ:
    finding.install(CARDS)


def pytest_configure(config: pytest.Config) -> None:
    if REPORTS in os.environ:
        config.pluginmanager.register(Reporter(config, Path(os.environ[REPORTS])))
    else:
        config.pluginmanager.register(Runner())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:  # what the packages warn of is their own
            item.add_marker(pytest.mark.filterwarnings("ignore"))


class Reporter:
    """Writes each report as a line of JSON."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        made = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a") as file:
            file.write(json.dumps(made) + "\n")


class Runner:
    """Runs a file's tests when the first of them is due."""

    def __init__(self) -> None:
        self._reports: dict[Path, Mapping[str, list[Any]]] = {}  # by file and test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if HERE not in item.path.parents:
            return None
        if item.path not in self._reports:
            self._reports[item.path] = run(item)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports[item.path][item.nodeid]:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


def run(first: pytest.Item) -> Mapping[str, list[Any]]:
    """The reports of all chosen tests in the file of `first`."""
    chosen = [item for item in first.session.items if item.path == first.path]
    environment = getattr(getattr(first, "module", None), "ENVIRONMENT", {})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "reports"
        done = subprocess.run(
            [*command, *(item.nodeid for item in chosen)],
            cwd=first.config.rootpath,
            env={**os.environ, **environment, REPORTS: str(path), "PYTEST_ADDOPTS": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = path.read_text().splitlines() if path.exists() else []
    reports: dict[str, list[Any]] = {item.nodeid: [] for item in chosen}
    for line in lines:
        hook = first.config.hook.pytest_report_from_serializable
        report = hook(config=first.config, data=json.loads(line))
        reports[report.nodeid].append(report)
    words = f"its process ended first:\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    for item in chosen:
        if not reports[item.nodeid] or reports[item.nodeid][-1].when != "teardown":
            reports[item.nodeid].append(broken(item, words))
    return reports


def broken(item: pytest.Item, words: str) -> pytest.TestReport:
    return pytest.TestReport(
        item.nodeid, item.location, {}, outcome="failed", longrepr=words, when="call"
    )
