"""Secrets that a configuration names: the text itself, `env:NAME` or `${NAME}` for a variable's
value, `file:PATH` for a file's. No error quotes one.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from config.errors import Source

FROM_VARIABLE = "env:"
FROM_FILE = "file:"
PLACES = (FROM_VARIABLE, FROM_FILE, "${")  # what only says where a secret is begins with these
_BRACES = re.compile(r"\$\{(\w+)\}")


def variable_of(written: str | None) -> str:
    """The variable that holds the secret, or "" where it is elsewhere."""
    if written is None:
        return ""
    if (braces := _BRACES.fullmatch(written)) is not None:
        return braces[1]
    return written.removeprefix(FROM_VARIABLE) if written.startswith(FROM_VARIABLE) else ""


class Secrets(msgspec.Struct, frozen=True):
    """Where secrets are: `environment` has the variables, relative files start at `root`."""

    environment: Mapping[str, str]
    root: Path

    def find(self, written: str, source: Source, path: str) -> str:
        """The secret that is `written` at `path`. Raises ConfigError."""
        if name := variable_of(written):
            found = self.environment.get(name, "")
            missing = f"the environment variable {name} is not set"
        elif written.startswith(FROM_FILE):
            file = self.root / Path(written.removeprefix(FROM_FILE)).expanduser()
            # Editors end a file with a line feed.
            found, missing = source.text(file, path, f"{file} ").strip(), "the file is empty"
        else:
            found, missing = written, "the variable has no name"
        if not found or written == FROM_VARIABLE:
            raise source.error(path, missing)
        if found is written and found.startswith("$"):
            raise source.error(path, "write env:NAME or ${NAME} for a variable's value, in full")
        return found
