"""`roundhouse worker`: runs models of this machine for a server elsewhere (docs/workers.md)."""

import os
import sys
from argparse import Namespace
from pathlib import Path

import msgspec
import structlog

from backends.contract.errors import LoadFailed
from backends.machine.process_settings import prepare_process
from backends.places.nodes.listening import (
    TOKEN_VARIABLE,
    ListenerSettings,
    Listening,
    new_token,
    serve,
)
from config.errors import COMMAND_LINE
from config.nodes import SHORTEST_TOKEN, split
from gateway.cli import CommandFailed, folder_of_models


def run(arguments: Namespace) -> int:
    """Until a signal ends it. Prints one line of JSON: the address, and the certificate's
    fingerprint. Raises ConfigError, CommandFailed.
    """
    # What is logged goes to stderr: the line on stdout is for programs.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    prepare_process(os.environ)
    settings, token = _settings(arguments), _token(arguments.token_file)
    try:
        serve(settings, token, _tell)
    except (LoadFailed, OSError) as error:
        raise CommandFailed(f"can't listen at {arguments.listen}: {error}") from error
    return 0


def _settings(arguments: Namespace) -> ListenerSettings:
    try:
        host, port = split(arguments.listen)
    except ValueError as error:
        raise COMMAND_LINE.error("--listen", str(error)) from None
    certificate, key = arguments.certificate, arguments.key
    if key is not None and certificate is None:
        raise COMMAND_LINE.error("--key", "it needs --certificate")
    return ListenerSettings(
        host=host,
        port=port,
        tls=arguments.tls or certificate is not None,
        certificate=certificate and str(certificate),
        key=key and str(key),
        folders=tuple(map(folder_of_models, arguments.model_dir)),
    )


def _token(path: Path | None) -> str:
    """From the file, which is made where it isn't there, else from the environment. Raises
    ConfigError.
    """
    if path is None:
        place, token = TOKEN_VARIABLE, os.environ.pop(TOKEN_VARIABLE, "")
    else:
        place, token = str(path), _from_file(path)
    if len(token) < SHORTEST_TOKEN:
        problem = f"a token of {SHORTEST_TOKEN} characters or more is needed; see --token-file"
        raise COMMAND_LINE.error(place, problem)
    return token


def _from_file(path: Path) -> str:
    try:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return path.read_text("utf-8").strip()
        token = new_token()
        with os.fdopen(file, "w") as written:
            written.write(f"{token}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise COMMAND_LINE.error("--token-file", f"{path}: {error}") from None
    return token


def _tell(reached: Listening) -> None:
    print(msgspec.json.encode(reached).decode(), flush=True)
