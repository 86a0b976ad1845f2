"""`roundhouse models`, `roundhouse ps` and `roundhouse usage`."""

import json
import os
import shutil
import socket
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from config.values import UNITS, gibibytes

if TYPE_CHECKING:
    from gateway.cli.remote import Remote

UNFOLDED = 10**6  # cells of a line in a pipe or a file
NARROWEST = 12  # cells of a column that is folded


def run(arguments: Namespace) -> int:
    """The command that `arguments.command` names."""
    if arguments.command == "models" and not _listens(arguments.url):
        if not arguments.names:
            print(f"no server answers at {arguments.url}; the configuration has:", file=sys.stderr)
        return _models(_configured(arguments), arguments)
    from gateway.cli.remote import Remote  # noqa: PLC0415 - not needed without a server

    with Remote(arguments.url, arguments.key) as server:
        if arguments.command == "usage":
            return _usage(server, arguments)
        if arguments.command == "ps":
            kept = server.get("/v1/kept", "data")
            return _residents(server.get("/status", "models"), kept, as_json=arguments.json)
        return _models(server.get("/v1/models", "data")["data"], arguments)


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
    from backends.contract.catalog import BACKENDS  # noqa: PLC0415 - not needed beside a server
    from config.loader import load_config, locate  # noqa: PLC0415
    from gateway.cli.configured import with_downloads, with_models  # noqa: PLC0415
    from gateway.registry.library import ModelLibrary  # noqa: PLC0415

    file = arguments.config or locate(os.environ, Path.cwd())
    config = with_models(load_config(file, os.environ), ())
    library = ModelLibrary(with_downloads(config))
    facts, found = ("backend", "format", "context_length", "size_bytes"), []
    for entry in library.entries():
        if not entry.replica_of:
            known = {name: getattr(entry.files, name) for name in facts}
            used = BACKENDS[entry.files.backend].library(entry.files, entry.options)
            known["library"] = str(used) if used else None
            found.append({"id": entry.name, "state": "no server", **known})
    return found


def _models(cards: Sequence[Mapping[str, Any]], arguments: Namespace) -> int:
    if arguments.json:
        print(json.dumps(cards, indent=2))
        return 0
    if arguments.names:
        names = (name for card in cards for name in (card["id"], *card.get("aliases", ())))
        print("\n".join(map(_plain, names)))
        return 0
    heads = ("MODEL", "STATE", "FILES", "MEMORY", "DEVICE", "ENGINE", "CONTEXT", "UNTIL", "FITS")
    choice = ("COMPUTED BY",) if any(card.get("library") for card in cards) else ()
    shown = (*heads, "PROBLEM", *choice)
    table(shown, [_model(card)[: len(shown)] for card in cards])
    return 0


def _model(card: Mapping[str, Any]) -> tuple[Any, ...]:
    """Its row."""
    get, files = card.get, size(card.get("size_bytes"))
    known = (get("id"), _state(card), files, *_memory(card), get("backend"), get("context_length"))
    return (*known, _until(card, get("state")), _fits(card), get("why_failed"), get("library"))


def _state(card: Mapping[str, Any]) -> str | None:
    return f"same as {parent}" if (parent := card.get("parent")) else card.get("state")


def _memory(card: Mapping[str, Any]) -> tuple[str, str]:
    """What a model takes, or would: the sum, and the devices, with shares where there are more;
    nothing of a preset, for which its model is loaded.
    """
    devices: Mapping[str, int] = {} if card.get("parent") else card.get("devices") or {}
    names = of_devices(devices) if len(devices) > 1 else "".join(devices)
    return size(sum(devices.values())), names


def of_devices(devices: Mapping[str, int]) -> str:
    """`cuda:0 20.0 GiB, cpu 512.0 MiB`."""
    return ", ".join(f"{name} {size(share)}".rstrip() for name, share in devices.items())


def _until(card: Mapping[str, Any], state: str | None) -> str:
    """When a model in memory is unloaded, as things are."""
    if state not in ("loaded", "loading", "draining"):
        return ""
    left = card.get("remaining_time_seconds")
    if state == "draining":
        return "answers end"
    return "in use" if card.get("in_use") else "forever" if left is None else _duration(left)


def _fits(card: Mapping[str, Any]) -> str:
    """Whether there is enough memory now."""
    missing = card.get("missing_bytes")
    if missing is None:
        return ""
    return f"evicts {size(missing)}" if missing else "yes"


def _residents(status: Mapping[str, Any], kept: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({**status, "kept": kept}, indent=2))
        return 0
    heads = ("MODEL", "STATE", "MEMORY", "DEVICE", "ENGINE", "CONTEXT", "IN USE", "QUEUED", "UNTIL")
    table(heads, [*map(_resident, status["models"])])
    for one in status.get("failed", ()):
        print(f"{_plain(one['model'])}: {_plain(str(one['reason']))}")
    if kept["data"]:
        heads_of_kept = ("KEPT", "MODEL", "TOKENS", "SIZE", "WHERE", "USED", "UNUSED FOR", "NAME")
        print()
        table(heads_of_kept, [_kept(one) for one in kept["data"]])
    return 0


def _resident(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """Its row."""
    known = (one["model"], _state(one), *_memory(one), one.get("engine"), one.get("context_length"))
    return (*known, one["in_use"], one["waiting"], _until(one, one["state"]))


def _kept(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """A kept conversation's row."""
    name = f"{one['conversation'] or ''}{' (pinned)' if one['pinned'] else ''}"
    known = (one["id"], one["model"], one["tokens"], size(one["size"]), ", ".join(one["tiers"]))
    return (*known, one["uses"], _duration(one["idle"]), name)


def _usage(server: "Remote", arguments: Namespace) -> int:
    wanted = {"from": arguments.since, "to": arguments.until, "group": arguments.group}
    query = urlencode({name: value for name, value in wanted.items() if value is not None})
    if arguments.csv:
        print(server.text(f"/v1/usage?{query}&format=csv"), end="")
        return 0
    found = server.get(f"/v1/usage?{query}", "group", "data")
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    groups = [str(name) for name in found["group"]]
    numbers = ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")
    rows = [[*map(row.get, (*groups, *numbers))] for row in found["data"]]
    heads = ("REQUESTS", "FAILED", "PROMPT", "CACHED", "ANSWER")
    table((*(name.upper() for name in groups), *heads), rows)
    return 0


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns without lines, which other programs can read too. Nothing is cut: in a terminal the
    widest columns are folded, so that all have room.
    """
    cells = [[_plain(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    least = sum(min(width, NARROWEST) + 2 for width in widths)
    grid = Table.grid(*(Column(overflow="fold") for _ in heads), padding=(0, 2, 0, 0))
    for row in cells:
        grid.add_row(*map(Text, row))
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNFOLDED
    for line in Console(width=max(edge, least)).render_lines(grid, pad=False):
        print("".join(part.text for part in line).rstrip())


def _plain(cell: Any) -> str:
    """A name may hold control characters; None is nothing."""
    return "".join(c if c.isprintable() else "?" for c in str("" if cell is None else cell))


def size(count: int | None) -> str:
    """Bytes for a reader, in the units of the server's own sentences: `4.7 GiB`; nothing for the
    few units of what makes models take turns.
    """
    return gibibytes(count) if count and count > UNITS else ""


def _duration(seconds: float) -> str:
    """`45 s`, `4 min`, `2 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
