"""`roundhouse chat` and `roundhouse run`: an answer as it comes, reasoning dimmed in a terminal."""

import json
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from rich.console import Console

from gateway.cli import CommandFailed
from gateway.cli.blocks import Blocks
from gateway.cli.remote import Remote

CHAT = "/v1/chat/completions"
TOOLS, CALL = "/v1/admin/mcp/tools?server=", "/v1/admin/mcp/call"
MOST_ROUNDS = 16  # of calls after one message
REFUSED = "The user did not allow this call."
BLOCK = '"""'
HELP = """/clear          forget the conversation
/model NAME     talk with another model
/models         the server's models
/set NAME VALUE a parameter of requests, such as temperature; without VALUE its default
/system TEXT    another system message; without TEXT none
/tools NAME …   tools of these MCP servers, each call once you allow it; without NAME none
/retry          the last answer once more
/help           this list
/quit           leave; so does Ctrl-D. Ctrl-C ends an answer
\"\"\"             begins and ends a message of several lines"""


def run(arguments: Namespace) -> int:
    """The command that `arguments.command` names."""
    with Remote(arguments.url, arguments.key) as server:
        if arguments.command == "run":
            _run(server, arguments)
        else:
            Chat(server, arguments.model, arguments.system).talk()
    return 0


def _run(server: Remote, arguments: Namespace) -> None:
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
    else:
        Display().show(server, body)


def _schema(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"--schema {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise CommandFailed(f"--schema {path}: {error}") from None


def _system(text: str | None) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}] if text else []


class Chat:
    """One conversation at a terminal, or with lines from a file."""

    def __init__(self, server: Remote, model: str, system: str | None) -> None:
        """Raises CommandFailed where there is no server, or no such model."""
        self._server = server
        self._model = self._known(model)
        self._system = system
        self._settings: dict[str, Any] = {}
        self._messages: list[dict[str, Any]] = []
        self._tools: dict[str, dict[str, Any]] = {}
        self._allowed: set[str] = set()
        self._is_terminal = sys.stdin.isatty()

    def talk(self) -> None:
        """Until `/quit`, Ctrl-D or the end of the input."""
        if self._is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - `input` edits lines with it
            print(f"{self._model or 'the default model'}; /help lists the commands")
        while (line := self._line()) is not None:
            if line in ("/quit", "/exit", "/bye"):
                return
            if line:
                self._guarded(line)

    def _line(self) -> str | None:
        """A line, or a block of them; None: there are no more. Ctrl-C forgets what was typed."""
        try:
            line = input("> " if self._is_terminal else "").strip()
            while line.startswith(BLOCK) and not (line.endswith(BLOCK) and line != BLOCK):
                line += "\n" + input(". " if self._is_terminal else "")
        except EOFError:
            if self._is_terminal:
                print()
            return None
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            print("\n(/quit or Ctrl-D leaves)")
            return ""
        return line.removeprefix(BLOCK).removesuffix(BLOCK).strip()

    def _guarded(self, line: str) -> None:
        """A refusal doesn't end the conversation; the messages are then as they were."""
        known = list(self._messages)
        try:
            self._take(line)
        except (CommandFailed, KeyboardInterrupt, EOFError) as error:
            self._messages = known
            print(f"({str(error) or 'stopped'})", file=sys.stderr)

    def _take(self, line: str) -> None:
        match line.split(maxsplit=1):
            case ["/clear"]:
                self._messages, self._allowed = [], set()
            case ["/model", name]:
                self._model = self._known(name)
            case ["/models"]:
                self._list()
            case ["/set", setting]:
                self._set(*setting.split(maxsplit=1))
            case ["/system", *text]:
                self._system = text[0] if text else None
            case ["/tools", *names]:
                self._tools = dict(self._offered(" ".join(names).split()))
            case ["/retry"]:
                self._messages = self._messages[:-1]
                self._answer()
            case ["/help"]:
                print(HELP)
            case [command, *_] if command.startswith("/"):
                raise CommandFailed(f"{command} is not a command; /help lists all commands")
            case _:
                self._messages.append({"role": "user", "content": line})
                self._answer()

    def _answer(self) -> None:
        for _ in range(MOST_ROUNDS):
            if not (calls := self._said()):
                break
            self._messages += [self._ran(call) for call in calls]

    def _said(self) -> list[dict[str, Any]]:
        """Its calls of tools. What was said before Ctrl-C stays in the conversation."""
        if not self._messages:
            raise CommandFailed("no answer yet")
        messages = [*_system(self._system), *self._messages]
        body = {**self._settings, "model": self._model, "messages": messages}
        if self._tools:
            tools = ({**tool, "name": name} for name, tool in self._tools.items())
            body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        display = Display()
        try:
            display.show(self._server, body)
        except KeyboardInterrupt:
            if not display.content:
                raise
            print("(stopped)", file=sys.stderr)
            display.calls.clear()
        else:
            if self._is_terminal and display.speed:
                print(f"({display.speed})", file=sys.stderr)
        message = {"role": "assistant", "content": display.content}
        calls = [*display.calls.values()] if self._tools else []
        self._messages.append({**message, "tool_calls": calls} if calls else message)
        return calls

    def _ran(self, call: dict[str, Any]) -> dict[str, Any]:
        """The message with its result."""
        name, given = call["function"]["name"], call["function"]["arguments"]
        try:
            tool = self._tools[name]
            order = {"server": tool["server"], "tool": tool["name"]}
            order["arguments"] = json.loads(given or "{}")
            text = self._server.post(CALL, order)["text"] if self._allows(tool) else REFUSED
        except (CommandFailed, KeyError, ValueError, RecursionError) as error:
            text = f"Error: {error}"
        print(inert(text))
        return {"role": "tool", "tool_call_id": call["id"], "content": text}

    def _allows(self, tool: dict[str, Any]) -> bool:
        """Nobody can be asked in a pipe."""
        if tool["function"] in self._allowed or not self._is_terminal:
            return self._is_terminal
        always = "" if tool["asks"] else "[a]lways in this conversation, "
        said = input(f"Run {inert(tool['name'])}? [y]es, {always}[n]o: ").strip()[:1]
        if said == "a" and always:
            self._allowed.add(tool["function"])
        return said in ("y", "a")

    def _list(self) -> None:
        for card in self._server.get("/v1/models", "data")["data"]:
            print(inert(f"{card['id']}  {card.get('state') or ''}"))

    def _set(self, name: str, value: str | None = None) -> None:
        """A value is JSON, or else a text."""
        self._settings.pop(name, None)
        if value is not None:
            with suppress(ValueError):
                value = json.loads(value)
            self._settings[name] = value

    def _offered(self, servers: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Their tools, by what a model calls them."""
        for server in servers:
            for tool in self._server.get(f"{TOOLS}{quote(server)}", "tools")["tools"]:
                print(inert(f"{tool['name']}  {tool['description']}"))
                yield tool["function"], {**tool, "server": server}

    def _known(self, model: str) -> str:
        """`model`, where the server has it; "" is its default. Raises CommandFailed."""
        self._server.get(f"/v1/models/{quote(model, safe='/')}" if model else "/v1/models")
        return model


class Display:
    """Shows one answer. `content`: what was said so far, without its reasoning; `calls`: of tools,
    by their places in it.
    """

    def __init__(self) -> None:
        self.content = ""
        self.calls: dict[int, dict[str, Any]] = {}
        self.speed = ""  # of a finished answer
        console = Console(highlight=False)
        self._blocks = Blocks(console) if console.is_terminal else None

    def show(self, server: Remote, body: dict[str, Any]) -> None:
        """To its end; Ctrl-C leaves what has come in `content`. Raises CommandFailed."""
        choice: dict[str, Any] = {}
        try:
            for choice in self._choices(server, body):
                self._take(choice["delta"])
        finally:
            if self._blocks:
                self._blocks.end()
            elif self.content or self.calls:
                print()
        _note(choice)

    def _choices(self, server: Remote, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A spinner turns until the first: a model may be loaded before it."""
        chunks = server.events(
            CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        with Console(stderr=True).status("…"):
            first = next(chunks, None)
        began = time.perf_counter()
        for chunk in chain(() if first is None else (first,), chunks):
            yield from chunk["choices"]
            if (usage := chunk.get("usage")) and (taken := time.perf_counter() - began):
                tokens = usage["completion_tokens"]
                self.speed = f"{tokens} tokens, {tokens / taken:.1f} a second"

    def _take(self, delta: dict[str, Any]) -> None:
        self._say(delta.get("reasoning_content"), "dim")
        self._say(delta.get("content"))
        self.content += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            new = {"id": part.get("id"), "type": "function", "function": defaultdict(str)}
            function = self.calls.setdefault(part["index"], new)["function"]
            for name, more in part.get("function", {}).items():
                self._say(f"\n[{more}] " if name == "name" else more, "cyan")
                function[name] += more

    def _say(self, text: str | None, style: str = "") -> None:
        # In a pipe or a file reasoning can't be distinguished from the answer, so it is left out
        # there.
        if self._blocks and text:
            self._blocks.add(inert(text), style)
        elif text and style != "dim":
            print(inert(text), end="", flush=True)


def _note(choice: dict[str, Any]) -> None:
    """What is wrong with an answer, by its last part."""
    if choice.get("finish_reason") == "length":
        print("(cut at the limit of tokens)", file=sys.stderr)
    if fault := choice.get("schema_fault"):
        print(f"(it misses its schema: {fault})", file=sys.stderr)


def inert(text: str) -> str:
    """`text` without control characters, so that a model can't move a terminal's cursor or set its
    title.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
