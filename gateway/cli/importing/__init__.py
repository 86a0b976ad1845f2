"""`roundhouse import PROGRAM FILE`: another program's configuration as ours, and what of it has no
equal. Each program has its file here.
"""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from backends.contract.samplers import Sampling
from config.loader import load_text
from gateway.cli import CommandFailed
from gateway.cli.importing import llama_swap, ollama, tabby
from gateway.cli.importing.imported import Imported, written

HEAD = "# Written by `roundhouse import {}`. All options: `roundhouse config`.\n"
PROGRAMS: Mapping[str, Callable[[Path, Namespace], Imported]] = {
    "llama-swap": lambda path, arguments: llama_swap.imported(path, commands=arguments.commands),
    "tabbyapi": lambda path, _: tabby.imported(path),
    "ollama": lambda path, _: ollama.imported(path),
}


def run(arguments: Namespace) -> int:
    """Writes the configuration to stdout or a new file, the notes to stderr. Raises ConfigError,
    CommandFailed.
    """
    try:
        imported = PROGRAMS[arguments.program](arguments.file, arguments)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{arguments.file} is not as {arguments.program} writes it: {error}"
        raise CommandFailed(problem) from error
    text = HEAD.format(arguments.program) + written(imported.config)
    variables = dict.fromkeys(re.findall(r"\benv:(\w+)", text), "set when it is served")
    beside = arguments.file.absolute().parent / "roundhouse.yaml"
    load_text(text, beside, {**variables, **os.environ}, sampling=Sampling)
    for note in imported.notes:
        print(f"roundhouse: {note}", file=sys.stderr)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        with arguments.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandFailed(f"{arguments.output} is there already") from None
    print(f"roundhouse check --config {arguments.output}: what each model needs", file=sys.stderr)
    return 0
