"""A wheel holds one package, `roundhouse`, which serves without the checkout's names."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from litestar.routes import HTTPRoute

from config.settings import Config
from gateway.http.metrics import Metrics
from gateway.registry import ModelLibrary, Registry
from gateway.serving.app import build
from tests.hang import HANG
from tests.served import Printed

ROOT = Path(__file__).parent.parent
NO_HUB = "http://127.0.0.1:9"  # nobody listens there: no test asks a stranger's server
# A model of a kind that isn't bundled, and a hub: 503 without.
NEEDS_MORE = {"/v1/model/embedding", "/v1/admin/hub/search"}


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """hatch_build.py, with a stand-in for the builder that runs it."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    vars(interface)["BuildHookInterface"] = object
    metadata = ModuleType("hatchling.metadata.plugin.interface")
    vars(metadata)["MetadataHookInterface"] = object
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, interface.__name__, interface)
        patch.setitem(sys.modules, metadata.__name__, metadata)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(hook: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed."""
    folder = tmp_path_factory.mktemp("site")
    hook.build(ROOT, folder / "roundhouse")
    return folder


@pytest.fixture
def start(site: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    with outside(site, tmp_path) as start_one:
        yield start_one


@contextmanager
def outside(site: Path, folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Python outside of the checkout: without `site`, so that no .pth file leads back to it."""
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    path = ":".join([str(site), *sorted(libraries)])
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(Path(sys.executable).absolute()), "-S", *arguments],
            cwd=folder,
            env={
                "PYTHONPATH": path,
                "HOME": str(folder),
                "PATH": "/usr/bin:/bin",
                "HF_ENDPOINT": NO_HUB,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        with process:
            process.kill()


@pytest.mark.slow
def test_it_serves_and_answers(start: Callable[..., subprocess.Popen[str]]) -> None:
    serves_and_answers(start)


def serves_and_answers(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("-m", "roundhouse", "serve", "--port", "0")
    assert process.stdout is not None
    assert process.stderr is not None
    log = Printed(process.stderr)
    url = next((line.split()[-1] for line in process.stdout if "listens on" in line), "")
    assert url, log.to_end()
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG)
    assert answer.status_code == 200, answer.text
    page = httpx.get(f"{url}/ui/", timeout=HANG)
    assert page.headers["content-type"].startswith("text/html"), page.text
    for path in plain_routes():
        with httpx.stream("GET", url + path, timeout=HANG) as answer:  # some are endless streams
            sound = answer.status_code < 500 or path in NEEDS_MORE
            assert sound, (path, answer.status_code, answer.read())
    process.terminate()
    assert process.wait(HANG) == 0
    log.to_end()
    log.assert_sound()


def plain_routes() -> list[str]:
    """The paths that can be read without knowing the name of anything."""
    config = Config()
    app = build(config, Registry(ModelLibrary(config), config), Metrics())
    return [
        route.path_format
        for route in app.routes
        if isinstance(route, HTTPRoute)
        and "GET" in route.route_handler_map
        and "{" not in route.path_format
    ]


def test_no_other_name_is_taken(start: Callable[..., subprocess.Popen[str]], site: Path) -> None:
    assert [path.name for path in site.iterdir()] == ["roundhouse"]
    code = (
        "import json, pkgutil, sys; from importlib import import_module as load\n"
        "for name in ('gateway.serving.app', 'gateway.cli.serve', 'config.schema', 'bundled',"
        " 'backends.engines.llamacpp.container', 'backends.places.upstream.fleet'):\n"
        "    load('roundhouse.' + name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    said, errors = start("-c", code).communicate(timeout=HANG)
    assert errors == ""
    assert not {"gateway", "backends", "config", "bundled"} & set(json.loads(said))


def test_the_model_that_no_default_uses_stays_out(site: Path) -> None:
    bundled = site / "roundhouse" / "bundled"
    held = {path.name for path in bundled.iterdir()} - {"__pycache__"}
    assert held == {"__init__.py", "roundhouse-tiny.gguf"}


def test_type_checkers_are_told_that_it_is_typed(site: Path) -> None:
    assert (site / "roundhouse" / "py.typed").is_file()


def test_a_name_that_would_not_be_found_fails_the_build(hook: ModuleType) -> None:
    made = 'name = "backends" + ".catalog"\nimport gateway.serving.app as app\n'
    assert list(hook.left_over(hook.rewritten(made, ROOT), ROOT)) == ["gateway.serving.app"]
    good = 'from backends import catalog\nimport bundled\nload("gateway.cli.serve")\n'
    assert list(hook.left_over(hook.rewritten(good, ROOT), ROOT)) == []


def test_no_link_of_the_index_page_leads_nowhere(hook: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    links = r"\]\(([^)]*)\)"
    shown = hook.indexed(readme, None)
    assert all(link.startswith(("https://", "#")) for link in re.findall(links, shown))
    assert "LICENSE" in shown
    for link in re.findall(links, hook.indexed(readme, "https://example.org/x/roundhouse/")):
        assert link.startswith(("https://", "#"))
    linked = hook.indexed("[a](docs/a.md#b) [c](#d)", "https://example.org/r")
    assert linked == "[a](https://example.org/r/blob/main/docs/a.md#b) [c](#d)"


def run(*command: str, folder: Path, tools: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_is_published_is_installed_from_an_index_s_files_and_serves(tmp_path: Path) -> None:
    """The source distribution is built, a wheel of it, and that one runs elsewhere."""
    tools, dist, site = tmp_path / "tools", tmp_path / "dist", tmp_path / "site"
    run("pip", "install", "-q", "--target", str(tools), "hatchling", folder=tmp_path, tools=tools)
    run("hatchling", "build", "-t", "sdist", "-d", str(dist), folder=ROOT, tools=tools)
    (archive,) = dist.iterdir()
    with tarfile.open(archive) as packed:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in packed.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "scripts/install"} <= names
    assert not any(name.startswith((".git/", ".venv", ".ci", ".gpu")) for name in names)
    plain = ("-q", "--no-deps", "--no-build-isolation")
    run("pip", "wheel", *plain, "-w", str(dist), str(archive), folder=tmp_path, tools=tools)
    (wheel,) = dist.glob("*.whl")
    run("pip", "install", *plain, "--target", str(site), str(wheel), folder=tmp_path, tools=tools)
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {
        "roundhouse",
        "roundhouse_llm",
        "bin",
    }
    (metadata,) = site.glob("roundhouse_llm-*.dist-info/METADATA")
    described = metadata.read_text("utf-8").partition("\n\n")[2]
    assert described.startswith("# Roundhouse")
    assert "](docs/" not in described
    with outside(site, tmp_path) as start:
        said, errors = start("-m", "roundhouse", "--version").communicate(timeout=HANG)
        assert said.startswith("roundhouse "), errors
        serves_and_answers(start)
