"""Builds wheels in which everything stands below one name, `roundhouse`.

In the checkout the packages are `gateway`, `backends`, `config` and `bundled`, names that others
have in their site-packages, too. In a wheel they are `roundhouse.gateway` and so on: their imports,
and the few names of modules in texts, are rewritten here. What is left over fails the build.

The README of the metadata is the checkout's, but for links to its files, which would lead nowhere
on an index page. A build on GitHub knows its repository: they lead there, and so do the project's
URLs. Elsewhere the links are text, and there are no URLs.

Where scripts/bindings has put llama-cpp-python's bindings into `build`, a wheel brings them along.
What it brings of others is listed in it (CycloneDX, by PEP 770).
"""

import ast
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NAME = "roundhouse"
PACKAGES = ("gateway", "backends", "config", "bundled")
BINDINGS = "build/bindings"
LEFT_OUT = ("__pycache__", "roundhouse-tiny")  # the second: the model as no default uses it
_ANY = "|".join(PACKAGES)
IMPORTS = (
    (re.compile(rf"^(\s*)from ({_ANY})(?=[. ])", re.MULTILINE), rf"\1from {NAME}.\2"),
    (re.compile(rf"^(\s*)import ({_ANY})$", re.MULTILINE), rf"\1from {NAME} import \2"),
)
# A whole text that may be a module's name; and where one is made of parts, or a package's files
# are asked for.
TEXT = re.compile(rf"""(?<=["'])(?:{_ANY})\.[\w.]+(?=["'])""")
MADE = re.compile(rf"""(?<=f["'])(?:{_ANY})(?=\.[\w.]*{{)|(?<=files\(")(?:{_ANY})(?="\))""")


def rewritten(source: str, root: Path) -> str:
    """A module's text as it stands below `roundhouse`."""
    for pattern, instead in IMPORTS:
        source = pattern.sub(instead, source)
    source = MADE.sub(rf"{NAME}.\g<0>", source)
    return TEXT.sub(lambda it: f"{NAME}.{it[0]}" if _is_ours(it[0], root) else it[0], source)


def left_over(source: str, root: Path) -> Iterator[str]:
    """What still names a module by its name in the checkout."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if "." in node.value else []
        yield from (name for name in names if _is_ours(name, root))


def _is_ours(name: str, root: Path) -> bool:
    if not re.fullmatch(rf"({_ANY})(\.\w*)*", name):
        return False
    path = root.joinpath(*name.strip(".").split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def build(root: Path, target: Path) -> None:
    """The package at `target`. Raises ValueError where a module's old name is left."""
    target.mkdir(parents=True)
    modules = [(root / f"{NAME}.py", target / "__init__.py")]
    for package in PACKAGES:
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(root / package, target / package, ignore=ignored)
        modules += [(path, path) for path in (target / package).rglob("*.py")]
    for source, path in modules:
        text = rewritten(source.read_text("utf-8"), root)
        if names := list(left_over(text, root)):
            raise ValueError(f"{path}: {', '.join(names)} would not be found in a wheel")
        path.write_text(text, "utf-8")
    main = f'"""`python -m {NAME}`."""\n\nfrom {NAME} import main\n\nraise SystemExit(main())\n'
    (target / "__main__.py").write_text(main, "utf-8")
    (target / "py.typed").touch()  # PEP 561: type checkers read its annotations
    if (root / BINDINGS).is_dir():
        shutil.copytree(root / BINDINGS, target / "bindings", ignore=ignored)


def materials(root: Path, name: str, version: str) -> dict[str, Any]:
    """What of others is in a wheel."""
    vendored = json.loads((root / "gateway/console/vendor/manifest.json").read_text("utf-8"))
    parts = [
        ("npm", name.replace("@", "%40"), package["version"], package["licence"])
        for name, package in vendored["packages"].items()
    ]
    for path in root.glob(f"{BINDINGS}/*.dist-info"):
        package, _, number = path.stem.replace("_", "-").rpartition("-")
        parts.append(("pypi", package, number, "MIT"))
    whole = {"type": "application", "purl": f"pkg:pypi/{name}@{version}"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**whole, "name": name, "version": version}},
        "components": [
            {
                "type": "library",
                "name": package.replace("%40", "@"),
                "version": number,
                "purl": f"pkg:{index}/{package}@{number}",
                "licenses": [{"expression": licence}],
            }
            for index, package, number, licence in parts
        ],
    }


LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


def indexed(readme: str, repository: str | None) -> str:
    """The README as an index page can show it."""
    if repository is None:
        return LINK.sub(r"\1", readme)
    return LINK.sub(rf"[\1]({repository.rstrip('/')}/blob/main/\2)", readme)


def urls(environment: Mapping[str, str]) -> dict[str, str]:
    """The project's, where the build runs on GitHub (its "default environment variables")."""
    server, name = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    if not server or not name:
        return {}
    repository = f"{server}/{name}"
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class Metadata(MetadataHookInterface):
    """Hatch's hook for metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README and the URLs to it."""
        text = Path(self.root, "README.md").read_text("utf-8")
        found = metadata["urls"] = urls(os.environ)
        shown = indexed(text, found.get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}


class OnePackage(BuildHookInterface):
    """Hatch's hook for wheels; an editable installation takes the checkout as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the package to the wheel."""
        if version == "editable":
            return
        self._folder = tempfile.mkdtemp()
        target = Path(self._folder, NAME)
        root, metadata = Path(self.root), self.metadata
        build(root, target)
        build_data["force_include"][str(target)] = NAME
        listed = Path(self._folder, f"{metadata.name}.cdx.json")
        listed.write_text(json.dumps(materials(root, metadata.name, metadata.version), indent=1))
        build_data["sbom_files"].append(str(listed))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel has it now."""
        if version != "editable":
            shutil.rmtree(self._folder)
