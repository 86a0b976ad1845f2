"""`roundhouse import PROGRAM FILE`: another program's configuration as ours, and what of it has no
equal. Each program has its file here.
"""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path

from backends.contract.samplers import Sampling
from config.loader import load_config
from gateway.cli import CommandFailed, check
from gateway.cli.importing import llama_swap, ollama, tabby
from gateway.cli.importing.imported import Imported, written

HEAD = "# Written by `roundhouse import {}`. All options: `roundhouse config`.\n"
PROGRAMS: Mapping[str, Callable[[Path, Namespace], Imported]] = {
    "llama-swap": lambda path, arguments: llama_swap.imported(path, commands=arguments.commands),
    "tabbyapi": lambda path, _: tabby.imported(path.absolute()),
    "ollama": lambda path, _: ollama.imported(path.absolute()),
}


def run(arguments: Namespace) -> int:
    """Writes the configuration to stdout or a new file; to stderr the notes, and what `check` says
    of it. Raises ConfigError, CommandFailed.
    """
    try:
        imported = PROGRAMS[arguments.program](arguments.file, arguments)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{arguments.file} is not as {arguments.program} writes it: {error}"
        raise CommandFailed(problem) from error
    text = HEAD.format(arguments.program) + written(imported.config)
    variables = dict.fromkeys(re.findall(r"\benv:(\w+)", text), "set when it is served")
    file = arguments.output or Path("roundhouse.yaml")  # it is written here
    config = load_config(file, {**variables, **os.environ}, text=text, sampling=Sampling)
    for note in imported.notes:
        print(f"roundhouse: {note}", file=sys.stderr)
    if arguments.output is None:
        print(text, end="", flush=True)
    else:
        _write(arguments.output, text)
    with redirect_stdout(sys.stderr):
        check.checked(config)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandFailed(f"{path} is there already") from None
