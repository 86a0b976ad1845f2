"""A listener in a process of its own, as `roundhouse worker` is one. A tool of tests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from backends.contract.errors import LoadFailed
from backends.machine.processes import end_with
from backends.places.nodes.listening import (
    TOKEN_VARIABLE,
    ListenerSettings,
    Listening,
    new_token,
    serve,
)
from tests.backends.places.workers import CATALOG


@contextmanager
def listener(
    settings: ListenerSettings = ListenerSettings(),
    *,
    token: str | None = None,
) -> Iterator[Listening]:
    """Until the context ends, or this process does. Raises LoadFailed."""
    token = token or new_token()
    with subprocess.Popen(
        (
            *(sys.executable, "-m", __name__, str(os.getpid())),
            json.dumps(msgspec.to_builtins(settings)),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0,
        env={**os.environ, TOKEN_VARIABLE: token, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise LoadFailed(f"the listener ended with status {process.wait()}")
            yield replace(msgspec.json.decode(line, type=Listening), token=token)
        finally:
            process.terminate()


def main(parent: str, settings: str) -> None:
    """Of that process."""
    end_with(int(parent))
    token = os.environ.pop(TOKEN_VARIABLE)

    def tell(reached: Listening) -> None:
        print(msgspec.json.encode(reached).decode(), flush=True)  # noqa: T201 - `listener` reads it

    serve(msgspec.json.decode(settings, type=ListenerSettings), token, tell, CATALOG)


if __name__ == "__main__":
    main(*sys.argv[1:])
