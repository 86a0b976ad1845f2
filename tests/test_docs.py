"""What the pages under docs/ and the files under deploy/ say is true."""

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks import hardware
from config.settings import Config
from gateway.answers.turns import TurnCounts
from gateway.http.metrics import Metrics
from gateway.registry import History, ModelLibrary, Registry

ROOT = Path(__file__).parent.parent


def test_what_fits_is_what_is_computed() -> None:
    page = (ROOT / "docs" / "hardware.md").read_text("utf-8")
    shown = page.partition("<!-- computed -->\n")[2].partition("<!-- end -->")[0]
    assert shown.splitlines() == list(hardware.rows())


def test_the_worked_example_of_a_swap_is_what_is_computed() -> None:
    page = (ROOT / "docs" / "memory-and-swap.md").read_text("utf-8")
    needs = {shape.name: hardware.need(shape, 16_384, "f16") for shape in hardware.MODELS}
    for name in ("Qwen3 8B Q4_K_M", "Qwen3 4B Q4_K_M"):
        assert f"{needs[name] / hardware.GIB:.1f} GiB" in page


def texts() -> Iterator[str]:
    """Every text in the program, what is put into it as `…`."""
    for folder in ("gateway", "backends", "config"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                elif isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )


def test_every_message_explained_is_one_the_program_has() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    first = (row.split("|")[1] for row in page.splitlines() if row.startswith("| `"))
    shown = [message for cell in first for message in re.findall(r"`([^`]{9,})`", cell)]
    program = "\n".join(texts()).lower()
    missing = [
        part
        for message in shown
        for part in re.split(r" ?… ?", message.lower())
        if part.strip(":, ") and part.strip(" ") not in program
    ]
    assert missing == []


async def metric_names() -> set[str]:
    config, metrics = Config(), Metrics()
    async with Registry(ModelLibrary(config), config, history=History(None)) as registry:
        metrics.watch(registry, lambda: {"user": 1}, TurnCounts())
        text = metrics.text().decode()
    families = re.findall(r"^# TYPE (\w+) (\w+)", text, flags=re.MULTILINE)
    names = set()
    for name, kind in families:
        names |= {f"{name}_bucket", f"{name}_count"} if kind == "histogram" else {name}
    return names


def expressions() -> Iterator[str]:
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    alerts = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text("utf-8"))
    for group in alerts["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def test_every_alert_says_how_urgent_it_is_and_what_to_do() -> None:
    alerts = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text("utf-8"))
    for rule in (rule for group in alerts["groups"] for rule in group["rules"]):
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]
        assert rule["annotations"]["description"].endswith("."), rule["alert"]


def test_alerts_fire_on_a_server_in_trouble_and_on_no_other() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool here (Debian: apt-get install prometheus)")
    path = ROOT / "tests" / "alerts.yaml"
    ran = subprocess.run([promtool, "test", "rules", path], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    tried = set(re.findall(r'alertname="(\w+)"', path.read_text("utf-8")))
    alerts = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text("utf-8"))
    assert tried == {rule["alert"] for group in alerts["groups"] for rule in group["rules"]}


@pytest.mark.anyio
async def test_dashboards_and_alerts_ask_for_metrics_there_are() -> None:
    names = await metric_names()
    asked = {name for one in expressions() for name in re.findall(r"\broundhouse_\w+", one)}
    assert asked
    assert asked <= names
