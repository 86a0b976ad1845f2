"""How large the house is, and how much of it a newcomer meets: files, lines, rooms, and what one
warm streamed chat enters.

    python -m benchmarks.house [--list]

A room is a folder with Python files, the files in the roots of `config`, `backends` and `gateway`
aside: they stand on floors of their own. An arrow goes from a room to one that it imports, when
a module is imported or later; what only type checkers read doesn't count. In circles of modules, of
which there must be none, it does. Those of the console count, too.

The chat is not the first to `roundhouse serve` in this process, over a socket, on the scripted
engine: every function of ours that it enters, in any thread, by `sys.setprofile`, and how often. A
comprehension is part of its function, and a call of its own.
"""

import argparse
import ast
import asyncio
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import httpx
import msgspec

from config.settings import Config, ModelConfig, ServerConfig
from gateway.http.metrics import Metrics
from gateway.reconfiguring.reloading import Reloader
from gateway.registry import History, ModelLibrary, Registry
from gateway.serving.app import build
from gateway.serving.server import Server

ROOT = Path(__file__).parents[1]
PACKAGES = ("config", "backends", "gateway")
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
CONSOLE = ROOT / "gateway" / "console"
IMPORTED = re.compile(r'\b(?:from|import) *\(? *"(\.[^"]+\.js)"')
HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)  # what an import can stand in
PATIENCE = 60.0  # seconds
WARM = 3  # chats
SCRIPT = {"lines": [{"say": "Hello there, how are you today"}], "context_length": 4096}


def modules() -> Mapping[str, Path]:
    """All product modules, by name."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {_name(path): path for path in files}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, known: Mapping[str, Path], *, types: bool) -> Iterator[str]:
    """The modules of ours that a module imports, in its functions too; `types`: and what only type
    checkers read.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known or node.module in known:
                    yield full if full in known else node.module
        elif isinstance(node, HOLDERS):
            yield from imports(node, known, types=types)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def arrows(known: Mapping[str, Path], *, types: bool) -> Mapping[str, set[str]]:
    """What each module imports of the others."""
    return {
        name: {*imports(_tree(path), known, types=types)} - {name} for name, path in known.items()
    }


def console_arrows() -> Mapping[str, set[str]]:
    """What each module of the console imports of the others, at once or later."""
    files = [path for path in CONSOLE.rglob("*.js") if "vendor" not in path.parts]
    return {
        str(path): {
            str((path.parent / name).resolve()) for name in IMPORTED.findall(path.read_text())
        }
        for path in files
    }


def room(module: str, known: Mapping[str, Path]) -> str:
    """The folder of a module; the module itself, in a package's root."""
    path = known[module]
    folder = path.parent.relative_to(ROOT).as_posix()
    return module if folder in PACKAGES and folder != "config" else folder


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one, by Kosaraju's two walks."""
    order: list[str] = []
    seen: set[str] = set()

    def walk(start: str, graph: Mapping[str, set[str]], found: list[str]) -> None:
        stack = [(start, iter(sorted(graph.get(start, ()))))]
        seen.add(start)
        while stack:
            name, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                found.append(name)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(sorted(graph.get(following, ())))))

    for name in arrows:
        if name not in seen:
            walk(name, arrows, order)
    back: dict[str, set[str]] = {}
    for name, others in arrows.items():
        for other in others:
            back.setdefault(other, set()).add(name)
    seen.clear()
    parts: list[list[str]] = []
    for name in reversed(order):
        if name not in seen:
            part: list[str] = []
            walk(name, back, part)
            parts.append(part)
    return [part for part in parts if len(part) > 1]


class Entered:
    """The functions of ours that were entered while it was on, the time when they were fewest:
    what runs by the clock may come in between.
    """

    def __init__(self) -> None:
        self.codes: Counter[CodeType] = Counter()
        self._now: Counter[CodeType] = Counter()
        self._on = False
        self._folders = tuple(f"{ROOT / package}/" for package in PACKAGES)

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `setprofile`."""
        if self._on and event == "call" and frame.f_code.co_filename.startswith(self._folders):
            self._now[frame.f_code] += 1

    def switch(self, *, on: bool) -> None:
        """From now on calls are noted, or not."""
        self._on = on
        if not on and (not self.codes or self._now.total() < self.codes.total()):
            self.codes = self._now
        self._now = Counter()

    def functions(self) -> Mapping[str, list[str]]:
        """By file, those that have a name."""
        by_file: dict[str, list[str]] = {}
        for code in self.codes:
            if not code.co_name.startswith("<") or code.co_name == "<lambda>":
                path = Path(code.co_filename).relative_to(ROOT).as_posix()
                by_file.setdefault(path, []).append(f"{code.co_firstlineno} {code.co_qualname}")
        return {path: sorted(names) for path, names in sorted(by_file.items())}


async def chat(folder: Path) -> Entered:
    """What a chat enters that isn't the first."""
    entered = Entered()
    threading.setprofile(entered.note)
    script = folder / "scripted.script.json"
    script.write_bytes(msgspec.json.encode(SCRIPT))
    settings = Config(
        server=ServerConfig(port=0), models=(ModelConfig(name="scripted", path=str(script)),)
    )
    metrics = Metrics()
    registry = Registry(
        ModelLibrary(settings), settings, history=History(None), watch=metrics.on_model_event
    )
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = build(settings, registry, metrics, reloader=Reloader(settings, None), page=folder)
    server = Server(app, settings.server, registry, address.set_result)
    running = asyncio.ensure_future(server.serve())
    async with httpx.AsyncClient(base_url=await address, timeout=PATIENCE) as client:
        (await client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
        sys.setprofile(entered.note)
        for _ in range(WARM):
            entered.switch(on=True)
            (await client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
            entered.switch(on=False)
        sys.setprofile(None)
    server.should_exit = True
    await running
    return entered


def main() -> None:
    """Print the figures, and with `--list` what the chat enters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="the functions that the chat enters")
    arguments = parser.parse_args()
    known = modules()
    rooms: dict[str, set[str]] = {room(name, known): set() for name in known}
    for name, others in arrows(known, types=False).items():
        here = room(name, known)
        rooms[here] |= {room(other, known) for other in others} - {here}
    folders = sorted(name for name in rooms if "/" in name or name == "config")
    lines = sum(len(path.read_text().splitlines()) for path in known.values())
    with tempfile.TemporaryDirectory() as folder:
        entered = asyncio.run(chat(Path(folder)))
    functions = entered.functions()
    if arguments.list:
        for file, names in functions.items():
            print(f"{file} ({len(names)})", *names, sep="\n    ")
    print(f"files       {len(known)}")
    print(f"lines       {lines}")
    print(f"rooms       {len(folders)}, and {len(rooms) - len(folders)} files in the roots")
    between = sum(other in folders for name in folders for other in rooms[name])
    print(f"arrows      {between} between rooms")
    print(f"circles     {circles(arrows(known, types=True)) or 'none'} of modules")
    print(f"            {circles(console_arrows()) or 'none'} of the console's")
    print(f"            {circles(rooms) or 'none'} of rooms")
    count = sum(map(len, functions.values()))
    print(f"warm chat   {len(functions)} files, {count} functions, {entered.codes.total()} calls")


if __name__ == "__main__":
    main()
