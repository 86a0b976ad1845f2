"""What the README shows is true."""

import re
from pathlib import Path

import pytest

from backends.protocol import Sampling
from config.errors import ConfigError
from config.loader import load_config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_configuration_shown_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.yaml"
    shown = blocks("yaml")
    assert shown
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


def test_every_target_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))

    assert set(re.findall(r"\bmake ([a-z-]+)\b", README)) <= targets


def test_every_file_linked_exists() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)

    assert [link for link in links if not (ROOT / link).exists()] == []


ROOMS = ("backends", "gateway")  # whose files and folders the tree names one by one


def test_the_tree_shown_is_the_checkout_s() -> None:
    shown = tree_shown()
    top = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    ignored = {"htmlcov", "build", "dist"} | {name for name in top if name.endswith(".egg-info")}
    assert {name for name in shown if "/" not in name} == top - ignored
    for room in ROOMS:
        inside = {f"{room}/{name}" for name in children(ROOT / room)}
        assert {name for name in shown if name.count("/") == 1 and name.startswith(room)} == inside
    assert all((ROOT / name).exists() for name in shown)


def tree_shown() -> set[str]:
    """Every path of the README's tree."""
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
