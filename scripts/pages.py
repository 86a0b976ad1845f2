"""The site of the pages: what mkdocs doesn't do by itself (`hooks` in mkdocs.yml).

The README is its first page and the changelog its last. A link out of docs/ leads to the repository
where `repo_url` says where that is; else it is text. `llms.txt` lists the pages for programs.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BROUGHT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#]*)((?:#[^)]*)?)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that don't lie in docs/."""
    for name, page in BROUGHT.items():
        text = ROOT.joinpath(name).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(text: str, *, page: Any, config: Any, files: Files) -> str:
    """Mend the links out of the pages."""
    above = "" if page.file.src_uri in BROUGHT.values() else "docs"

    def mended(link: re.Match[str]) -> str:
        shown, target, anchor = link.groups()
        path = Path(ROOT, above, target).resolve().relative_to(ROOT).as_posix()
        if (known := BROUGHT.get(path)) is not None:
            return f"[{shown}]({known}{anchor})"
        if files.get_file_from_path(target) is not None:
            return link[0]
        assert ROOT.joinpath(path).exists(), f"{page.file.src_uri}: no {path}"
        repository = config.repo_url
        return (
            f"[{shown}]({repository.rstrip('/')}/blob/main/{path}{anchor})" if repository else shown
        )

    return LINK.sub(mended, text)


def on_post_build(*, config: Any) -> None:
    """Write llms.txt (llmstxt.org)."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in config.nav:
        ((title, pages),) = section.items()
        lines += ["", f"## {title}", ""]
        for page in [pages] if isinstance(pages, str) else pages:
            name = next((file for file, known in BROUGHT.items() if known == page), f"docs/{page}")
            heading = ROOT.joinpath(name).read_text("utf-8").partition("\n")[0].removeprefix("# ")
            lines.append(f"- [{heading}]({config.site_url or ''}{page.removesuffix('.md')}.html)")
    Path(config.site_dir, "llms.txt").write_text("\n".join([*lines, ""]), "utf-8")
