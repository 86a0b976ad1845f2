"""The commands and their arguments. Imports nothing heavy: `--help` and completions are made of
this.
"""

import argparse
import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from config.product import VERSION

DEFAULT_URL = "http://127.0.0.1:8000"
# Coding agents that `launch` knows, by their program, and what installs each.
AGENTS = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "opencode": "npm install -g opencode-ai",
    "aider": "python -m pip install aider-install && aider-install",
    "qwen": "npm install -g @qwen-code/qwen-code",
    "goose": "brew install block-goose-cli",
    "llm": "python -m pip install llm",
}


def parser() -> argparse.ArgumentParser:
    """All of it. `module` of the result is the command's module in `gateway.cli`."""
    root = _Parser(
        prog="roundhouse", description="One OpenAI-style endpoint in front of local models."
    )
    root.add_argument(
        "--version",
        action="version",
        version=f"roundhouse {VERSION}",
        help="print the version and exit",
    )
    commands = root.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)
    _serve(commands)
    _listing(commands)
    _usage(commands)
    _loading(commands)
    _chat(commands)
    _launch(commands)
    _worker(commands)
    _local(commands)
    return root


_UNKNOWN = re.compile(r"(?:invalid choice|unrecognized arguments): '?([^\s']+)")


class _Parser(argparse.ArgumentParser):
    """Says what an unknown word was probably meant to be."""

    def error(self, message: str) -> NoReturn:
        word = _UNKNOWN.search(message)
        near = get_close_matches(word[1], {*self.words()}, n=1) if word else []
        near = [one for one in near if word and one != word[1]]  # another command has that one
        super().error(f"{message}; did you mean {near[0]!r}?" if near else message)

    def words(self) -> Iterator[str]:
        """All commands and options, those of commands as well."""
        for action in self._actions:
            yield from action.option_strings
            yield from map(str, action.choices or ())
            commands = action.choices.values() if isinstance(action.choices, dict) else ()
            for command in commands:
                yield from command.words() if isinstance(command, _Parser) else ()


class _CommandParser(_Parser):
    """Takes options anywhere among the others: argparse alone gives up on what follows an option
    (`run MODEL --json "prompt"`) where an argument may be left out.
    """

    _is_within = False

    def value(self, name: str, metavar: str, text: str, **how: Any) -> None:
        """An argument, or an option that has a value."""
        self.add_argument(name, metavar=metavar, help=text, **how)

    def flag(self, *names: str, text: str) -> None:
        """An option without a value."""
        self.add_argument(*names, action="store_true", help=text)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which calls itself for it."""
        if self._is_within:
            return super().parse_known_args(args, namespace)
        self._is_within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False


Commands: TypeAlias = "argparse._SubParsersAction[_CommandParser]"  # noqa: SLF001 - its only name


def _command(commands: Commands, name: str, module: str, text: str) -> _CommandParser:
    command: _CommandParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(module=module, command=name)
    return command


def _remote(commands: Commands, name: str, module: str, text: str) -> _CommandParser:
    """A command that talks to a running server."""
    command = _command(commands, name, module, text)
    command.add_argument(
        "--url",
        type=address,
        default=os.environ.get("ROUNDHOUSE_URL", DEFAULT_URL),
        help=f"the server; $ROUNDHOUSE_URL, else {DEFAULT_URL}",
    )
    command.add_argument(
        "--key",
        default=os.environ.get("ROUNDHOUSE_KEY"),
        help="an API key, if the server requires one (default: $ROUNDHOUSE_KEY)",
    )
    return command


def address(text: str) -> str:
    """A URL as it is asked, without a slash at its end; `localhost:9000` is enough, and so is the
    address that OpenAI's clients take.
    """
    url = (text if "://" in text else f"http://{text}").rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
    except ValueError:  # a port that is no number
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a valid URL; example: {DEFAULT_URL}")


def _config(command: _CommandParser) -> None:
    command.value("--config", "FILE", "YAML; see config/default.yaml", type=Path)


def _model_dirs(
    command: _CommandParser,
    text: str = "a folder to search for models, besides `model_dirs`. May be repeated",
) -> None:
    command.value("--model-dir", "DIR", text, action="append", default=[])


def _serve(commands: Commands) -> None:
    command = _command(commands, "serve", "serve", "serve models on an OpenAI-style endpoint")
    text = "a .gguf file, a model folder, a folder of models, or hf:owner/name, which is downloaded"
    command.value("models", "MODEL", f"{text} first", nargs="*")
    _model_dirs(command)
    _config(command)
    command.add_argument("--host", help="address to listen on")
    command.add_argument("--port", help="port to listen on; 0 takes a free one")
    text = "an administrator's key besides the configured ones; env:NAME and file:PATH keep it out"
    text += " of lists of processes. May be repeated"
    command.value("--api-key", "KEY", text, action="append", default=[])
    command.flag("--new-key", text="make an administrator's key for this run, and show it")
    command.flag("-v", "--verbose", text="log all details (log.level: debug)")
    text = "offer the models at the Roundhouse at URL as well, as long as this server runs"
    command.value("--join", "URL", text, type=address)
    text = "an administrator's key of that server, or env:NAME, file:PATH"
    command.value("--join-key", "KEY", f"{text} (default: $ROUNDHOUSE_JOIN_KEY)")
    text = "the address that it is to call this server at (default: as it sees this machine)"
    command.value("--advertise", "URL", text, type=address)


def _listing(commands: Commands) -> None:
    command = _remote(
        commands, "models", "listing", "list the models; without a server, the configured ones"
    )
    _config(command)
    command.flag("--json", text="the server's list as it is")
    command.flag("--names", text="print only the names, one per line")
    command = _remote(commands, "ps", "listing", "list the models in memory, and queued requests")
    command.flag("--json", text="the server's answer as it is")


def _usage(commands: Commands) -> None:
    command = _remote(
        commands, "usage", "listing", "show requests and tokens by key, model and day"
    )
    command.value("--from", "DAY", "2026-01-31; 30 days by default", dest="since")
    command.value("--to", "DAY", "the last day; today by default", dest="until")
    text = "what sums are made by: key, model, day, or several with commas (default: all)"
    command.value("--group", "NAMES", text, default="key,model,day")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="as CSV, for spreadsheets")
    form.add_argument("--json", action="store_true", help="the server's answer as it is")


def _loading(commands: Commands) -> None:
    command = _remote(commands, "load", "loading", "load a model, with its progress")
    command.add_argument("model", metavar="MODEL")
    command = _remote(commands, "unload", "loading", "unload a model, or all of them")
    command.add_argument("model", metavar="MODEL", nargs="?")
    command = _remote(commands, "drain", "loading", "have models leave a machine of the cluster")
    command.add_argument("node", metavar="NODE")
    command.flag("--undo", text="let models be loaded there again")
    command = _remote(commands, "pull", "loading", "download a model to the server's machine")
    command.add_argument("model", metavar="hf:OWNER/NAME[:QUANT]")
    command = _remote(commands, "rm", "loading", "delete a model's files")
    command.add_argument("model", metavar="MODEL")
    command.flag("--yes", text="don't ask")


def _chat(commands: Commands) -> None:
    command = _remote(commands, "chat", "chat", "chat with a model; /help lists the commands")
    command.add_argument("model", metavar="MODEL", nargs="?", default="")
    command.value("--system", "TEXT", "the system message")
    command = _remote(commands, "run", "chat", "one answer to one prompt")
    command.value("model", "MODEL", 'its name; "" is the default')
    command.value("prompt", "PROMPT", "default: read from stdin", nargs="?")
    command.value("--system", "TEXT", "the system message")
    command.flag("--json", text="the whole answer as JSON")
    command.value("--schema", "FILE", "a JSON schema to answer in", type=Path)
    command.value("--max-tokens", "N", "at most N tokens", type=int)
    command = _remote(commands, "bench", "bench", "TTFT, tokens per second and prefill of a model")
    command.add_argument("model", metavar="MODEL", nargs="?", default="")
    command.value("--streams", "N,N", "numbers of concurrent requests", default="1,4,16")
    command.value("--tokens", "N", "length of each answer in tokens", type=int, default=128)


def _launch(commands: Commands) -> None:
    command = _remote(commands, "launch", "launch", "run a coding agent on a model of the server")
    command.add_argument("agent", choices=AGENTS, metavar="AGENT", help=", ".join(AGENTS))
    command.value("arguments", "ARGUMENT", "the agent's own, behind --", nargs="*")
    command.value("--model", "MODEL", "its name; default: the one in use, else the default")
    command.flag("--print", text="print the variables and the command, run nothing")


def _worker(commands: Commands) -> None:
    command = _command(
        commands, "worker", "worker", "run models of this machine for a server on another one"
    )
    command.value("--listen", "HOST:PORT", "port 0 takes a free one", required=True)
    text = "holds the secret that the server's `nodes` have, too; made where it isn't there"
    text += " (default: $ROUNDHOUSE_WORKER_TOKEN)"
    command.value("--token-file", "FILE", text, type=Path)
    command.flag("--tls", text="encrypt connections, with a certificate made for it")
    command.value("--certificate", "FILE", "another one, in PEM", type=Path)
    command.value("--key", "FILE", "of the certificate, in PEM", type=Path)
    _model_dirs(command, "load no models but those in DIR. May be repeated")


def _local(commands: Commands) -> None:
    command = _command(
        commands, "check", "check", "show what would be served, its memory, and problems"
    )
    _config(command)
    command.value("models", "MODEL", "same as for serve", nargs="*")
    _model_dirs(command)
    _command(
        commands, "doctor", "doctor", "show engines, devices and compilers, and what is missing"
    )
    command = _command(
        commands, "import", "importing", "write another program's configuration as ours"
    )
    programs = ["llama-swap", "tabbyapi", "ollama"]
    command.add_argument("program", choices=programs, help="whose configuration it is")
    command.value("file", "FILE", "its configuration; of Ollama its folder (~/.ollama)", type=Path)
    command.flag("--commands", text="llama-swap: models that llama-server serves stay commands")
    command.value("--output", "FILE", "a new file; default: print it", type=Path)
    _command(commands, "config", "configured", "print every option with its default (default.yaml)")
    command = _command(
        commands, "completion", "completion", "print a completion script for a shell"
    )
    command.add_argument("shell", choices=["bash", "zsh", "fish"])
