"""The command line: `roundhouse serve` and the commands that talk to a running server.

A command's module is imported when it is called, so that `--help` answers at once.
"""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from config.errors import COMMAND_LINE, ConfigError
from gateway.cli.arguments import parser

INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT


class CommandFailed(Exception):
    """The message is for the user; exit status 1."""


def folder_of_models(text: str) -> str:
    """The whole path of an argument of `--model-dir`. Raises ConfigError."""
    path = Path(text).expanduser()
    if not path.is_dir():
        raise COMMAND_LINE.error("--model-dir", f"folder not found: {path}")
    return str(path.absolute())


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `roundhouse`. Returns the exit status: 1 where the server refused, 2 for a
    mistake in arguments or configuration.
    """
    arguments = parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names and answers have letters of any alphabet
    try:
        Path.home()
    except RuntimeError:  # neither HOME nor an entry of this user in the system's list
        return _failed("this user has no home folder: set HOME", 2)
    try:
        status: int = import_module(f"gateway.cli.{arguments.module}").run(arguments)
        print(end="", flush=True)  # nowhere, where there is no stdout
    except ConfigError as error:
        return _failed(str(error), 2)
    except CommandFailed as error:
        return _failed(str(error), 1)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's prompt doesn't follow the terminal's ^C
        return INTERRUPTED
    except BrokenPipeError:  # `roundhouse models | head`
        _drop_output()
        return 0
    except OSError as error:  # the disk is full, say
        _drop_output()
        return _failed(str(error), 1)
    return status


def _drop_output() -> None:
    """What is left of it can't be written either: Python would try once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(message: str, status: int) -> int:
    print(f"roundhouse: {message}", file=sys.stderr)
    return status
