"""`roundhouse chat` and `roundhouse run`."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from gateway.cli.errors import CommandFailed
from gateway.cli.remote import Remote

CHAT = "/v1/chat/completions"
HELP = """/clear          forget the conversation
/model NAME     talk with another model
/system TEXT    another system message
/retry          the last answer once more
/help           this list
/quit           leave; so does Ctrl-D. Ctrl-C ends an answer"""


def run(arguments: Namespace) -> int:
    """The command that `arguments.command` names."""
    with Remote(arguments.url, arguments.key) as server:
        if arguments.command == "run":
            return _run(server, arguments)
        Chat(server, arguments.model, arguments.system).talk()
    return 0


# ---------------------------------------------------------------------------------------------- run


def _run(server: Remote, arguments: Namespace) -> int:
    prompt = sys.stdin.read() if arguments.prompt in (None, "-") else arguments.prompt
    body: dict[str, Any] = {
        "model": arguments.model,
        "messages": [*_system(arguments.system), {"role": "user", "content": prompt}],
        "max_tokens": arguments.max_tokens,
    }
    if arguments.schema is not None:
        schema = {"name": arguments.schema.stem, "schema": _schema(arguments.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if arguments.json:
        print(json.dumps(server.post(CHAT, body), indent=2, ensure_ascii=False))
        return 0
    show(server, body)
    return 0


def _schema(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise CommandFailed(f"--schema {path}: {error}") from None


def _system(text: str | None) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}] if text else []


# ------------------------------------------------------------------------------------------ answers


def show(server: Remote, body: dict[str, Any]) -> str:
    """Stream an answer to the terminal: reasoning dimmed, calls as JSON lines; its content."""
    console, content, dimmed = Console(highlight=False), "", False
    for delta in _deltas(server, body):
        if reasoning := delta.get("reasoning_content"):
            console.print(_inert(reasoning), style="dim", end="", markup=False)
            dimmed = True
        if text := delta.get("content"):
            console.print("\n\n" * dimmed + _inert(text), end="", markup=False, soft_wrap=True)
            content, dimmed = content + text, False
        for call in delta.get("tool_calls") or ():
            function = call.get("function", {})
            text = f"\n[{function['name']}] " if "name" in function else ""
            console.print(text + function.get("arguments", ""), end="", markup=False)
    console.print()
    return content


def _deltas(server: Remote, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for chunk in server.events(CHAT, {**body, "stream": True}):
        for choice in chunk["choices"]:
            yield choice["delta"]


def _inert(text: str) -> str:
    """A model's text can't move a terminal's cursor or change its title."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


# --------------------------------------------------------------------------------------------- chat


class Chat:
    """One conversation at a terminal."""

    def __init__(self, server: Remote, model: str, system: str | None) -> None:
        self._server = server
        self._model = model
        self._system = system
        self._messages: list[dict[str, Any]] = []

    def talk(self) -> None:
        """Until `/quit`, Ctrl-D or the end of the input."""
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            if line in ("/quit", "/exit"):
                return
            if line:
                self._guarded(line)

    def _guarded(self, line: str) -> None:
        """A refusal, or Ctrl-C in an answer, doesn't end the conversation."""
        known = len(self._messages)
        try:
            self._take(line)
        except (CommandFailed, KeyboardInterrupt) as error:
            del self._messages[known:]
            print(f"\n({str(error) or 'stopped'})", file=sys.stderr)

    def _take(self, line: str) -> None:
        match line.split(maxsplit=1):
            case ["/clear"]:
                self._messages.clear()
            case ["/model", name]:
                self._model = name
            case ["/system", text]:
                self._system = text
            case ["/retry"] if self._messages:
                self._messages = self._messages[:-1]
                self._answer()
            case [command, *_] if command.startswith("/"):
                print(HELP)
            case _:
                self._messages.append({"role": "user", "content": line})
                self._answer()

    def _answer(self) -> None:
        messages = [*_system(self._system), *self._messages]
        content = show(self._server, {"model": self._model, "messages": messages})
        self._messages.append({"role": "assistant", "content": content})
