"""The files around the program: they can be read, and they agree with what they speak of."""

import configparser
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.loader import load_config
from config.settings import ServerConfig
from gateway.cli.arguments import parser

ROOT = Path(__file__).parent.parent
FILES = sorted({*ROOT.glob(".github/**/*.yml"), *ROOT.glob("deploy/*.yaml")})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_yaml_can_be_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_workflow_runs_what_ci_runs_on_the_pythons_that_are_promised() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["check"]
    assert any(step.get("run") == ".ci/run" for step in job["steps"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert job["strategy"]["matrix"]["python"] == promised


def test_ci_installs_it_where_there_is_no_compiler() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    commands = [step.get("run", "") for step in workflow["jobs"]["without-a-compiler"]["steps"]]
    assert any(command.startswith("scripts/install llamacpp") for command in commands)
    assert not any(tool in " ".join(commands) for tool in ("gcc", "build-essential", "cmake"))


def test_a_container_for_cards_is_built_for_cards_that_are_not_there_yet() -> None:
    """llama.cpp asks the machine that builds for its cards, unless it is told not to."""
    service = yaml.safe_load((ROOT / "deploy/compose.cuda.yaml").read_text())["services"]
    arguments = service["roundhouse"]["build"]["args"]
    assert arguments["CMAKE_ARGS"].split() == ["-DGGML_CUDA=on", "-DGGML_NATIVE=off"]
    docker = (ROOT / "deploy/Dockerfile").read_text()
    assert all(f"ARG {name}" in docker for name in arguments)
    assert all(f"{name}={value}" in docker for name, value in arguments.items())


def test_systemd_waits_for_running_answers() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy/roundhouse.service")
    service = unit["Service"]
    assert service["RestartPreventExitStatus"] == "2"
    assert float(service["TimeoutStopSec"]) > ServerConfig().shutdown_grace
    command = service["ExecStart"].split()
    assert parser().parse_args(command[1:]).command == "serve"


def test_the_containers_variables_are_options(tmp_path: Path) -> None:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    variables = compose["services"]["roundhouse"]["environment"]
    image = {"ROUNDHOUSE_SERVER_HOST": "0.0.0.0", "ROUNDHOUSE_MODEL_DIRS": str(tmp_path)}
    config = load_config(None, {**image, **variables})
    assert config.server.allow_open
    assert config.server.hosts == ("roundhouse",)
    docker = (ROOT / "deploy/Dockerfile").read_text()
    assert all(name in docker for name in image)
