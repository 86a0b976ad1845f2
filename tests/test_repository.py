"""The files around the program: they can be read, and they agree with what they speak of."""

import configparser
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from backends.machine.prebuilt import FITTING
from config.loader import load_config
from config.product import DISTRIBUTION, VERSION
from config.settings import ServerConfig
from gateway.cli.arguments import parser
from tests.served import Serve

ROOT = Path(__file__).parent.parent
TEXTS = (
    "*.md",
    ".github/**/*.*",
    "backends/**/*.py",
    "config/*.*",
    "deploy/*",
    "docs/**/*.md",
    "gateway/**/*.py",
    "scripts/*",
)
WHEEL = f"{DISTRIBUTION.replace('-', '_')}-{VERSION}"
FILES = sorted({*ROOT.glob(".github/**/*.yml"), *ROOT.glob("deploy/*.yaml")})


def test_no_text_has_the_name_alone_installed_which_is_another_project_on_pypi() -> None:
    alone = re.compile(
        r"""\b(?:pip3?|tool|pipx|uv)\ (?:install|add|upgrade)\ [^`\n]*?
            (?<![/\w-])roundhouse(?![\w/-])
        | \buvx\ (?:--from\ )?['"]?roundhouse(?![\w-]) | \broundhouse\[\w""",
        re.VERBOSE,
    )
    wrong = ("pip install -U roundhouse", "uv tool install 'roundhouse[mcp]'", "uvx roundhouse")
    assert all(map(alone.search, wrong))
    texts = [path for kind in TEXTS for path in ROOT.glob(kind) if path.is_file()]
    assert len(texts) > 300
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in [*texts, ROOT / "pyproject.toml", ROOT / "Makefile"]
        for line in path.read_text("utf-8").splitlines()
        if alone.search(line)
    ]
    assert found == []


def test_every_text_names_the_wheel_that_is_built() -> None:
    named = {
        name
        for page in ("README.md", "docs/installation.md")
        for name in re.findall(r"\w+-[\d.]+-py3-none-any\.whl", (ROOT / page).read_text("utf-8"))
    }
    assert named == {f"{WHEEL}-py3-none-any.whl"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (project["name"], project["dynamic"][-1]) == (DISTRIBUTION, "version")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_yaml_can_be_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_workflow_runs_what_ci_runs_on_the_pythons_that_are_promised() -> None:
    job = workflow("ci")["check"]
    assert any(step.get("run") == ".ci/run" for step in job["steps"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert job["strategy"]["matrix"]["python"] == promised


def workflow(name: str) -> dict[str, Any]:
    """Its jobs by name."""
    found: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    return cast(dict[str, Any], found["jobs"])


def test_actions_of_others_are_named_by_what_they_are_and_not_by_a_tag() -> None:
    texts = {path.name: path.read_text("utf-8") for path in ROOT.glob(".github/workflows/*.yml")}
    used = [use for text in texts.values() for use in re.findall(r"uses: (.*)", text)]
    assert len(used) > 20
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+$|\./\.github/workflows/\w+\.yml$")
    assert [use for use in used if not pinned.match(use)] == []
    digests: dict[str, set[str]] = {}
    for use in used:
        digests.setdefault(use.partition("@")[0], set()).add(use)
    assert [uses for uses in digests.values() if len(uses) > 1] == []


def test_nothing_is_published_before_the_version_the_suite_and_the_wheel_are_sound() -> None:
    jobs = workflow("release")

    def after(name: str) -> set[str]:
        needed = jobs[name].get("needs", [])
        direct = {needed} if isinstance(needed, str) else set(needed)
        return direct.union(*map(after, direct))

    for publishing in ("pypi", "github", "image", "site"):
        assert {"version", "check", "build"} <= after(publishing), publishing
    assert "scripts/try-wheel" in str(jobs["build"]["steps"])
    assert jobs["image"]["uses"].endswith("/image.yml")
    triggers = yaml.safe_load((ROOT / ".github/workflows/image.yml").read_text())[True]  # `on`
    assert set(triggers) == {"workflow_call", "pull_request"}
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}  # no token of PyPI's anywhere
    assert "password" not in str(jobs["pypi"])


def test_ci_installs_it_where_there_is_no_compiler() -> None:
    steps = workflow("ci")["without-a-compiler"]["steps"]
    commands = [step.get("run", "") for step in steps]
    assert any(command.startswith("scripts/install llamacpp") for command in commands)
    assert not any(tool in " ".join(commands) for tool in ("gcc", "build-essential", "cmake"))


DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: each one's name and the rest of its line, continued lines joined."""
    plain = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(None, 1) for line in plain.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, rest in lines]


def test_the_image_has_two_stages_and_the_second_one_no_compiler() -> None:
    names = [name for name, _ in instructions()]
    assert names.count("FROM") == 2
    build, run = DOCKERFILE.split("\nFROM ")[1:]
    assert "build-essential" in build
    assert not any(tool in run for tool in ("build-essential", "cmake", "git", "python3-venv"))


def test_a_change_of_the_code_installs_nothing_again() -> None:
    """What is installed is installed before the sources are copied, and needs what was copied."""
    build = instructions()[: [name for name, _ in instructions()].index("ENV")]
    installed = next(i for i, (_, rest) in enumerate(build) if "scripts/install" in rest)
    copied = " ".join(rest for name, rest in build[:installed] if name == "COPY").split()
    assert ("COPY", ". .") in build[installed:]
    assert {"pyproject.toml", "constraints.txt", "hatch_build.py", "scripts"} <= set(copied)
    assert not {".", "gateway", "backends", "README.md"} & set(copied)


def test_the_container_runs_as_its_own_user_with_its_state_in_volumes() -> None:
    found = dict(instructions())  # the last of each
    assert found["USER"] == "10001:10001"
    assert json.loads(found["VOLUME"]) == ["/models", "/var/lib/roundhouse"]
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "test" not in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_health_check_succeeds_where_a_server_answers_and_fails_elsewhere(
    serve: Serve,
) -> None:
    command = json.loads(dict(instructions())["HEALTHCHECK"].partition("CMD ")[2])
    server = serve()
    port = server.url.rpartition(":")[2]
    environment = {"PATH": os.environ["PATH"], "ROUNDHOUSE_SERVER_PORT": port}
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    server.stop()
    done = subprocess.run(command, env=environment, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == 1


def image_arguments() -> dict[str, dict[str, str]]:
    """Of every image that is built: by compose, and by the workflow for each kind."""
    compose = yaml.safe_load((ROOT / "deploy/compose.cuda.yaml").read_text())["services"]
    kinds = {
        kind["kind"]: {"BASE": kind["base"], "PREBUILT_INDEX": kind["index"]}
        for kind in workflow("image")["image"]["strategy"]["matrix"]["include"]
    }
    return {"compose": compose["roundhouse"]["build"]["args"], **kinds}


def test_images_for_cards_are_for_cards_that_are_not_there_yet() -> None:
    """No card is seen while an image is built: the index of the prebuilt library is named."""
    arguments = image_arguments()
    assert arguments["compose"] == arguments["cuda"]
    assert arguments["cuda"]["PREBUILT_INDEX"].endswith("/cu128")
    assert "12.8" in arguments["cuda"]["BASE"]
    declared = [rest.partition("=")[0] for name, rest in instructions() if name == "ARG"]
    assert all(set(one) <= set(declared) for one in arguments.values())
    page = (ROOT / "docs/docker.md").read_text()
    assert all(f"{name}={value}" in page for name, value in arguments["cuda"].items())


def test_every_file_that_a_workflow_runs_exists() -> None:
    for path in ROOT.glob(".github/workflows/*.yml"):
        for name in re.findall(r"(?:\./)?((?:scripts|deploy|\.ci)/[\w-]+)", path.read_text()):
            assert (ROOT / name).exists(), (path.name, name)


def test_what_the_light_target_leaves_out_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    left_out = re.findall(r"--(?:ignore|deselect) (tests/[\w/.]+)(?:::(\w+))?", makefile)
    assert left_out
    for path, name in left_out:
        assert f"def {name}" in (ROOT / path).read_text()


# ------------------------------------------------------------------------------------- releases


def checkout(folder: Path, changelog: str) -> Path:
    """The files that a release is made of, with another changelog."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    for name in listed.stdout.splitlines():
        if not name.startswith(("tests/", "benchmarks/", "training/", "docs/images/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "CHANGELOG.md").write_text(changelog)
    return folder


def release(folder: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = [str(folder / "scripts/release"), tag]
    environment = {**os.environ, "PYTHON": sys.executable, "GITHUB_REPOSITORY": "a/b"}
    environment["GITHUB_SERVER_URL"] = "https://example.org"
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_tag_that_is_not_the_version_and_a_version_without_notes_are_no_release(
    tmp_path: Path,
) -> None:
    folder = checkout(tmp_path, f"# Changelog\n\n## Unreleased\n\n- a\n\n## {VERSION}0\n\n- b\n")
    wrong = release(folder, "v9.9.9")
    assert (wrong.returncode, f"config/product.py has the version {VERSION}" in wrong.stderr) == (
        1,
        True,
    )
    silent = release(folder, f"v{VERSION}")
    assert (silent.returncode, f"no heading '## {VERSION} (date)'" in silent.stderr) == (1, True)
    assert not (folder / "dist").exists()


def test_the_bindings_in_a_wheel_are_those_that_the_library_fits() -> None:
    pinned = (ROOT / "scripts/bindings.txt").read_text("utf-8")
    (bindings,) = re.findall(r"^llama-cpp-python==(\S+)", pinned, re.MULTILINE)
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extra = project["optional-dependencies"]["llamacpp"]
    assert f"llama-cpp-python=={bindings}\n" in constraints
    assert f"xllamacpp=={FITTING[bindings].wheel}" in extra
    assert re.search(r"--hash=sha256:(?!0{64})[0-9a-f]{64}$", pinned, re.MULTILINE)


@pytest.mark.slow
def test_a_release_is_a_wheel_a_source_distribution_their_digests_and_the_notes(
    tmp_path: Path,
) -> None:
    notes = "### Added\n\n- a release"
    folder = checkout(
        tmp_path, f"# C\n\n## {VERSION} (2026-11-23)\n\n{notes}\n\n## 0.0.1\n\n- old\n"
    )
    done = release(folder, f"v{VERSION}")
    assert done.returncode == 0, done.stderr
    dist = folder / "dist"
    made = {f"{WHEEL}-py3-none-any.whl", f"{WHEEL}.tar.gz"}
    recipes = {"roundhouse.rb", "PKGBUILD"}
    assert {path.name for path in dist.iterdir()} == made | recipes | {"NOTES.md", "SHA256SUMS"}
    digest = hashlib.sha256((dist / f"{WHEEL}.tar.gz").read_bytes()).hexdigest()
    for recipe in recipes:
        written = (dist / recipe).read_text("utf-8")
        assert (digest in written, VERSION in written, "@" in written.split("depends")[0]) == (
            True,
            True,
            False,
        )
    assert (dist / "NOTES.md").read_text().strip() == notes
    assert (
        subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=dist, check=False).returncode
        == 0
    )
    with zipfile.ZipFile(dist / f"{WHEEL}-py3-none-any.whl") as wheel:
        metadata = wheel.read(f"{WHEEL}.dist-info/METADATA").decode()
        assert "roundhouse/bindings/llama_cpp/llama_cpp.py" in wheel.namelist()
        (listed,) = (name for name in wheel.namelist() if ".dist-info/sboms/" in name)
        parts = {part["name"]: part for part in json.loads(wheel.read(listed))["components"]}
    assert {"llama-cpp-python", "preact", "pdfjs-dist"} <= set(parts)
    assert parts["llama-cpp-python"]["purl"].startswith("pkg:pypi/llama-cpp-python@0.")
    assert "Project-URL: Repository, https://example.org/a/b" in metadata
    assert "Author: The Roundhouse maintainers" in metadata
    assert "](https://example.org/a/b/blob/main/docs/installation.md" in metadata


def test_systemd_waits_for_running_answers() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy/roundhouse.service")
    service = unit["Service"]
    assert service["RestartPreventExitStatus"] == "2"
    assert float(service["TimeoutStopSec"]) > ServerConfig().shutdown_grace
    command = service["ExecStart"].split()
    assert parser().parse_args(command[1:]).command == "serve"


def test_the_containers_variables_are_options() -> None:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    variables = compose["services"]["roundhouse"]["environment"]
    (image,) = (rest for name, rest in instructions() if name == "ENV")
    found = dict(pair.split("=", 1) for pair in image.split())
    found = {name: value for name, value in found.items() if name.startswith("ROUNDHOUSE_")}
    state = "/var/lib/roundhouse"
    config = load_config(None, {**found, **variables})
    assert config.server.allow_open
    assert config.server.hosts == ("roundhouse",)
    assert config.server.host == "0.0.0.0"
    assert config.model_dirs == ("/models", f"{state}/models")
    assert (config.hub.folder, config.store.path) == (f"{state}/models", f"{state}/store.sqlite")
