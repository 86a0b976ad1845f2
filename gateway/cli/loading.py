"""`roundhouse load`, `unload`, `drain`, `pull` and `rm`: a bar in a terminal, lines elsewhere."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from config.values import hub_id
from gateway.cli import CommandFailed
from gateway.cli.listing import size
from gateway.cli.remote import Remote

Bar: TypeAlias = Callable[[int, int], None]  # how far something is: units that are done, and all


def run(arguments: Namespace) -> int:
    """The command that `arguments.command` names."""
    with Remote(arguments.url, arguments.key) as server:
        COMMANDS[arguments.command](server, arguments)
    return 0


def _load(server: Remote, arguments: Namespace) -> None:
    with _bar(f"loading {arguments.model}") as bar:
        for event in server.events("/v1/model/load", {"model_name": arguments.model}):
            bar(event["module"], event["modules"])
    print(f"{arguments.model} is loaded")


def _unload(server: Remote, arguments: Namespace) -> None:
    body = {"model": arguments.model} if arguments.model else {}
    print(server.post("/unload", body, "message")["message"])


def _drain(server: Remote, arguments: Namespace) -> None:
    """What still lies on the node leaves as its last answers end."""
    draining = not arguments.undo
    body = {"node": arguments.node, "draining": draining}
    nodes = server.post("/v1/nodes/drain", body, "nodes")["nodes"]
    models = next((node["models"] for node in nodes if node["name"] == arguments.node), ())
    print(f"{arguments.node} {'drains' if draining else 'takes models again'}")
    if draining and models:
        print(f"still there: {', '.join(models)}")


def _pull(server: Remote, arguments: Namespace) -> None:
    """The server chooses a quantization where none is named, and says which."""
    model: str = hub_id(arguments.model)
    name = model
    with _bar(f"downloading {model}", in_bytes=True) as bar:
        for event in server.events("/v1/download", {"repo_id": model, "stream": True}):
            if event["model"] != name:
                name = event["model"]
                print(f"{name} was chosen ({size(event['total'])})", file=sys.stderr)
            bar(event["done"], event["total"])
    print(f"downloaded {name}")


def _rm(server: Remote, arguments: Namespace) -> None:
    if not arguments.yes:
        question = f"Delete the files of {arguments.model}?"
        if not sys.stdin.isatty():
            raise CommandFailed(f"{question} Not a terminal; pass --yes")
        if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise CommandFailed("nothing was deleted")
    server.delete("/models", model=arguments.model)
    print(f"{arguments.model} is deleted")


@contextmanager
def _bar(title: str, *, in_bytes: bool = False) -> Iterator[Bar]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title)
        return
    last = DownloadColumn() if in_bytes else TextColumn("{task.percentage:.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), last, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(title: str) -> Bar:
    """A line for each tenth."""
    tenth = -1

    def note(done: int, total: int) -> None:
        nonlocal tenth
        reached = 10 * done // max(total, 1)
        if reached > tenth:
            tenth = reached
            print(f"{title}: {10 * tenth} %", file=sys.stderr, flush=True)

    return note


COMMANDS = {"load": _load, "unload": _unload, "drain": _drain, "pull": _pull, "rm": _rm}
