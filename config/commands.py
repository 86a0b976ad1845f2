"""The words of a command line, for models that are commands; what is inconsistent in their options.

Such a model is served by an OpenAI-compatible server that is started when the model is loaded
(`backends/places/command/`).
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from shutil import which

from config.engines import CommandOptions, EngineOptions
from config.errors import Problem
from config.upstreams import problems_of_changes
from config.values import command_fault

COMMAND = "command"  # the engine's name
SHELL = ("/bin/sh", "-c")
# What a command line may hold; `${PORT}` as in llama-swap's. All other braces stay as they are:
# JSON is a common argument.
PLACEHOLDER = re.compile(r"\$\{PORT\}|\{(?P<name>path|port|host|key|name)\}")
_PORT = re.compile(r"\$\{PORT\}|\{port\}|\$PORT\b")
_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)


def missing_program(options: EngineOptions) -> str | None:
    """The program of a command that isn't there, "" where it is; None: they are no command's."""
    if not isinstance(options, CommandOptions):
        return None
    program = words(options, {})[0]
    is_there = "{" in program or which(program, path=options.env.get("PATH"))
    return "" if is_there else program


def words(options: CommandOptions, values: Mapping[str, str]) -> tuple[str, ...]:
    """The command line, as it is executed. `values`: of the placeholders by name, each of which
    stays one word, whatever is in it. Lines that begin with `#` are comments. Raises ValueError
    for quotes without an end.
    """
    text = _COMMENT.sub("", _CONTINUED.sub(" ", options.command))
    if options.shell:
        quoted = {name: shlex.quote(value) for name, value in values.items()}
        return (*SHELL, filled(text, quoted)) if text.strip() else ()
    return tuple(filled(word, values) for word in shlex.split(text))


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with the placeholders' `values`; one without a value stays."""
    return PLACEHOLDER.sub(lambda it: values.get(it["name"] or "port", it[0]), text)


def problems(options: CommandOptions, *, has_path: bool) -> Iterator[Problem]:
    """What is inconsistent, and at which option."""
    if problem := command_fault(lambda: words(options, {})):
        yield "command", problem
    texts = (options.command, *options.env.values())
    if "{path}" in "".join(texts) and not has_path:
        yield "command", "`{path}` needs the model's `path`"
    if not options.port and not any(map(_PORT.search, texts)):
        yield "command", "the server must listen on the port that it is given: write `{port}`"
    if (options.sleep is None) != (options.wake is None):
        missing = "wake" if options.wake is None else "sleep"
        yield missing, "`sleep` and `wake` are needed together"
    yield from problems_of_changes(rename=options.rename, drop=options.drop, set=options.set)
