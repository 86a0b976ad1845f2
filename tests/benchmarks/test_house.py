"""No module imports one that imports it, and a plain chat pays for what it asks: what it enters
grows by a decision alone.
"""

import ast
import re
import subprocess
import sys

import pytest

from benchmarks.house import ROOT, circles, console_arrows, imports, modules

# Of one warm streamed chat of thirty tokens: what was reached last, and a twentieth more.
MOST = {"files": 75, "functions": 463, "calls": 2_320}


@pytest.fixture(scope="module")
def printed() -> str:
    house = [sys.executable, "-m", "benchmarks.house"]
    return subprocess.run(house, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_no_modules_import_each_other_however_late_or_only_for_types(printed: str) -> None:
    known = modules()
    app = ast.parse(known["gateway.serving.app"].read_text())
    assert "config.settings" in imports(app, known, types=True)
    assert re.search(r"^circles +none of modules$", printed, re.MULTILINE)
    assert [*map(set, circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}))] == [{"b", "c"}]


def test_no_modules_of_the_console_import_each_other() -> None:
    known = {name.rpartition("console/")[2]: others for name, others in console_arrows().items()}
    assert any(path.endswith("chat/files.js") for path in known["chat/thread.js"])  # a late import
    assert circles(console_arrows()) == []


@pytest.mark.slow
def test_a_warm_chat_enters_no_more_than_it_did(printed: str) -> None:
    (line,) = re.findall("^warm chat +(.*)$", printed, re.MULTILINE)
    entered = {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", line)}
    assert entered.keys() == MOST.keys()
    assert {what: count for what, count in entered.items() if count > MOST[what]} == {}
