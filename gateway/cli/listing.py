"""`roundhouse models` and `roundhouse ps`."""

import json
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

GB, MB = 10**9, 10**6


def run(arguments: Namespace) -> int:
    """The command that `arguments.command` names."""
    if arguments.command == "models" and not _listens(arguments.url):
        print(f"no server answers at {arguments.url}; one here would have:", file=sys.stderr)
        return _models(_configured(arguments), as_json=arguments.json)
    from gateway.cli.remote import Remote  # noqa: PLC0415 - not needed without a server

    with Remote(arguments.url, arguments.key) as server:
        if arguments.command == "ps":
            return _residents(server.get("/status", "models"), as_json=arguments.json)
        return _models(server.get("/v1/models", "data")["data"], as_json=arguments.json)


def _listens(url: str) -> bool:
    """Whether a server accepts connections at `url`."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=2):
            return True
    except OSError:
        return False


def _configured(arguments: Namespace) -> list[dict[str, Any]]:
    """What a server started here would list, in the same form."""
    from config.loader import load_config  # noqa: PLC0415 - not needed beside a server
    from gateway.cli.configured import with_downloads, with_models  # noqa: PLC0415
    from gateway.registry.library import ModelLibrary  # noqa: PLC0415

    config = with_models(load_config(arguments.config, os.environ), ())
    library = ModelLibrary(with_downloads(config))
    return [
        {
            "id": entry.name,
            "state": "no server",
            "backend": entry.files.backend,
            "format": entry.files.format,
            "context_length": entry.files.context_length,
            "size_bytes": entry.files.size_bytes,
        }
        for entry in library.entries()
    ]


def _models(cards: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(cards, indent=2))
        return 0
    rows = [
        (
            str(card["id"]),
            str(card.get("state") or ""),
            size(card.get("size_bytes")),
            str(card.get("context_length") or ""),
            str(card.get("backend") or ""),
            _fits(card),
            str(card.get("why_failed") or card.get("memory") or ""),
        )
        for card in cards
    ]
    table(("MODEL", "STATE", "SIZE", "CONTEXT", "ENGINE", "FITS", "MEMORY"), rows)
    return 0


def _fits(card: Mapping[str, Any]) -> str:
    """Whether there is room for it now."""
    missing = card.get("missing_bytes")
    if missing is None:
        return ""
    return f"evicts {size(missing)}" if missing else "yes"


def _residents(status: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(status, indent=2))
        return 0
    rows = [
        (
            str(one["model"]),
            str(one["state"]),
            str(one["in_use"]),
            str(one["waiting"]),
            _seconds(one.get("idle_seconds")),
            _seconds(one.get("remaining_time_seconds")),
        )
        for one in status["models"]
    ]
    table(("MODEL", "STATE", "IN USE", "WAITING", "IDLE", "UNLOADED IN"), rows)
    for one in status.get("failed", ()):
        Console().print(f"{one['model']}: {one['reason']}", style="red", markup=False)
    return 0


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns without lines, which other programs can read too."""
    shown = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*(_plain(cell) for cell in row))
    console = Console()
    if not console.is_terminal:  # cells fold at a terminal's edge, and never in a pipe
        console.width = 1_000
    console.print(shown)


def _plain(cell: str) -> str:
    """A name may hold control characters, or markup of rich's."""
    return "".join(c if c.isprintable() else "?" for c in cell).replace("[", r"\[")


def size(count: int | None) -> str:
    """Bytes for a reader: `4.7 GB`."""
    if not count:
        return ""
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.1f} MB"


def _seconds(count: float | None) -> str:
    return "" if count is None else f"{count:.0f} s"
