"""The libraries in the console's folder are those that its manifest names."""

import json
import re
import subprocess
from pathlib import Path

from tests.browser.standin import CONSOLE

ROOT = Path(__file__).parents[2]
VENDOR = CONSOLE / "vendor"


def run_check(folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "scripts" / "vendor-console"
    return subprocess.run([script, "--check"], capture_output=True, text=True, check=False)


def copied(folder: Path) -> Path:
    """The script and the libraries, to be spoilt."""
    (folder / "scripts").mkdir()
    script = folder / "scripts" / "vendor-console"
    script.write_text((ROOT / "scripts" / "vendor-console").read_text())
    script.chmod(0o755)
    vendor = folder / "gateway" / "console" / "vendor"
    vendor.mkdir(parents=True)
    for path in VENDOR.iterdir():
        (vendor / path.name).write_bytes(path.read_bytes())
    return vendor


def test_the_libraries_are_those_of_the_manifest() -> None:
    checked = run_check(ROOT)
    assert checked.returncode == 0, checked.stdout


def test_a_library_that_was_touched_is_found(tmp_path: Path) -> None:
    vendor = copied(tmp_path)
    (vendor / "preact.js").write_text("evil()")
    (vendor / "more.js").write_text("")
    (vendor / "marked.js").unlink()
    checked = run_check(tmp_path)
    assert checked.returncode == 1
    assert re.findall(r"^[\w.]+", checked.stdout, re.MULTILINE) == [
        "more.js",
        "marked.js",
        "preact.js",
    ]


def test_each_library_has_its_licence_beside_it() -> None:
    for package in json.loads((VENDOR / "manifest.json").read_text())["packages"].values():
        assert package["licence"]
        assert any(name.endswith(".LICENSE") for name in package["files"])


def test_no_module_asks_another_host() -> None:
    for path in CONSOLE.rglob("*.js"):
        if path.parent == VENDOR:
            continue
        text = path.read_text()
        assert not re.search(r"""(?:from|import\()\s*["'](?!\.\.?/)""", text), path
        assert "innerHTML" not in text, path
        assert "eval(" not in text, path


def test_modules_are_short() -> None:
    for path in CONSOLE.rglob("*"):
        if path.suffix in {".js", ".css", ".html"} and path.parent != VENDOR:
            assert len(path.read_text().splitlines()) < 700, path
