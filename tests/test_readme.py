"""What the README and the pages under docs/ show is true: links, commands, files, figures."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bundled
from backends.contract.samplers import Sampling
from config.errors import ConfigError
from config.loader import load_config
from tests.hang import HANG
from tests.served import assert_sound, served

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(f"docs/{path.name}" for path in PAGES),
)
ALL = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)
USERS = "\n".join([README, *(path.read_text(encoding="utf-8") for path in PAGES)])
PROMETHEUS = "scrape_configs:"  # another program's configuration


def blocks(language: str, text: str = USERS) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_configuration_shown_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.yaml"
    shown = [text for text in blocks("yaml") if not text.startswith(PROMETHEUS)]
    assert len(shown) > 3
    for text in shown:
        path.write_text(text, encoding="utf-8")
        keys = dict.fromkeys(re.findall(r"env:(\w+)", text))
        environment = {name: f"the key in {name}" for name in keys}
        load_config(path, environment, sampling=Sampling)


def test_the_mistake_shown_is_answered_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("roundhouse.yaml").write_text("server:\n  prot: 9000\n", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        load_config(Path("roundhouse.yaml"), {})

    assert f"{caught.value}\n" in blocks("text")


def test_the_speeds_in_the_readme_and_the_comparison_are_those_of_the_benchmarks() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\d+) \| [\d,]+ \| ([\d,]+) \((\d+) %\) \| ([\d,]+) \|", table, re.MULTILINE
    )
    real = dict(zip(("one stream", "four", "sixteen"), rows, strict=False))
    said = README.replace("\n", " ")
    comparison = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    ahead = [words for words, (_, ours, _, theirs) in real.items() if int(ours) > int(theirs)]
    assert [streams for streams, *_ in real.values()] == ["1", "4", "16"]
    for words, (_, ours, _, llama_server) in real.items():
        assert f"{ours} and {llama_server} with {words}" in said
    assert f"| speed of one stream | {real['one stream'][2]} % of a bare loop" in comparison
    assert f"Roundhouse with {' and '.join(ahead)} ([figures]" in comparison


def test_every_target_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))

    shown = re.findall(r"`[^`\n]*\bmake ([a-z-]+)\b[^`\n]*`", ALL)
    for block in blocks("sh", ALL):
        shown += re.findall(r"^make ([a-z-]+)\b", block, flags=re.MULTILINE)
    assert {"run", "test", "check", "test-gpu"} <= set(shown) <= targets


LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    page = ROOT / document
    dead = [
        link + anchor
        for link, anchor in LINK.findall(page.read_text(encoding="utf-8"))
        if not leads(page.parent / link if link else page, anchor)
    ]
    assert dead == []


def leads(path: Path, anchor: str) -> bool:
    if not anchor or not path.exists():
        return path.exists()
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), flags=re.MULTILINE)
    return anchor[1:] in set(map(slug, headings))


def slug(heading: str) -> str:
    """The anchor that a heading gets on a page: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1_400


def test_every_page_is_found_from_the_readme() -> None:
    linked = {link for link, _ in LINK.findall(README)}
    assert {f"docs/{path.name}" for path in PAGES} <= linked | {"docs/comparison.md"}


def test_every_module_that_a_document_names_exists() -> None:
    """By its path, or by its name where the sentence says the folder."""
    paths = (*ROOT.glob("*.py"), *(path for top in TOPS for path in (ROOT / top).rglob("*.py")))
    modules = [str(path.relative_to(ROOT)) for path in paths]
    missing = [
        (document, name)
        for document in DOCUMENTS
        for name in re.findall(r"`([\w/]+\.py)`", (ROOT / document).read_text(encoding="utf-8"))
        if not any(f"/{module}".endswith(f"/{name}") for module in modules)
    ]
    assert missing == []


TOPS = ("backends", "benchmarks", "config", "gateway", "tests", "training")
ROOMS = ("backends", "gateway")  # whose files and folders the tree names one by one


def test_the_tree_shown_is_the_checkout_s() -> None:
    shown = tree_shown()
    top = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    ignored = {"__pycache__", "htmlcov", "build", "dist"} | {
        name for name in top if name.endswith(".egg-info")
    }
    assert {name for name in shown if "/" not in name} == top - ignored
    for room in ROOMS:
        inside = {f"{room}/{name}" for name in children(ROOT / room)}
        assert {name for name in shown if name.count("/") == 1 and name.startswith(room)} == inside
    assert all((ROOT / name).exists() for name in shown)


def tree_shown() -> set[str]:
    """Every path of the tree in docs/architecture.md."""
    (block,) = (text for text in blocks("text") if text.startswith("config/"))
    parents: list[str] = []
    found = set()
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [line.split()[0].rstrip("/")]
        found.add("/".join(parents))
    return found


def children(folder: Path) -> set[str]:
    return {
        path.name
        for path in folder.iterdir()
        if path.name not in ("__init__.py", "__pycache__")
        if path.suffix == ".py" or path.is_dir()
    }


# ---------------------------------------------------------------------------------- commands

KEY = "the-key-of-an-administrator"
COMMAND = f"{shlex.quote(sys.executable)} -m gateway.cli"
OWN_MODEL = "~/models/Qwen3-8B-Q4_K_M.gguf"


# What installs, which tests/test_package.py tries, and what is tried by `make` itself.
INSTALLATION = re.compile(r"make |docker |(uv tool|pip) install ")


def commands() -> Iterator[str]:
    """Every line of the shell blocks, but for what installs; each once."""
    lines = "".join(blocks("sh")).replace("\\\n", "").splitlines()
    yield from (line for line in dict.fromkeys(lines) if not INSTALLATION.match(line))


def written(line: str, url: str) -> str:
    """The line for this machine: its Python, its port, a model that is here."""
    line = line.replace(".venv/bin/roundhouse", COMMAND).replace("http://127.0.0.1:8000", url)
    line = line.replace("curl ", "curl -fsS ").replace(OWN_MODEL, str(bundled.GGUF))
    return line.replace(" serve ", " serve --port 0 ")


SERVERS = [pytest.param("", id="open"), pytest.param(KEY, id="with keys", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A server without keys, and one with; the environment that knows it."""
    folder = tmp_path_factory.mktemp("readme")
    keys = [{"key": request.param, "role": "admin"}] if request.param else []
    config = {"keys": keys, "models": [{"name": "tiny", "path": str(bundled.GGUF)}]}
    with served(folder, config) as running:
        yield {
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "URL": running.url,
            "KEY": request.param,
            "ROUNDHOUSE_URL": running.url,
            **({"ROUNDHOUSE_KEY": request.param} if request.param else {}),
        }


@pytest.mark.parametrize("line", list(commands()))
def test_every_command_shown_runs_as_it_is_written(
    line: str, server: dict[str, str], tmp_path: Path
) -> None:
    if server["KEY"] and line.startswith("curl") and "$KEY" not in line:
        pytest.skip("it is shown for a server without keys")
    with subprocess.Popen(
        ["sh", "-c", f"exec {written(line, server['URL'])}"],
        cwd=tmp_path,
        env=server,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        if " serve " in line:
            assert any("listens on" in output for output in process.stdout)
            process.terminate()
        said, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0, (said, errors)
    assert_sound(errors)


def test_the_program_shown_runs(server: dict[str, str], tmp_path: Path) -> None:
    (program,) = blocks("python")
    program = program.replace("http://127.0.0.1:8000", server["URL"])
    if server["KEY"]:
        program = program.replace("any, where none is configured", server["KEY"])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=server,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    assert done.stdout.strip()
