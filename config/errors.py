"""The one error of a configuration: where it is, what is wrong and what was probably meant."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import msgspec


class ConfigError(Exception):
    """The configuration can't be used. The message is for the person who wrote it.

    `source` is the file or the environment variable, `path` the option in it (`$.server.port`).
    """

    def __init__(self, source: str, path: str, problem: str) -> None:
        super().__init__(f"{source}: {path}: {problem}")
        self.source = source
        self.path = path
        self.problem = problem


class Source(msgspec.Struct, frozen=True):
    """Where settings came from. `lines` gives the line of an option by its path, where known."""

    name: str
    lines: Mapping[str, int] = {}

    def error(self, path: str, problem: str) -> ConfigError:
        line = self.lines.get(path)
        return ConfigError(f"{self.name}:{line}" if line else self.name, path, problem)


LONGEST = 100  # characters of a word that is compared with others, since that takes time


def suggestion(word: object, options: Iterable[str]) -> str:
    """The end of a message: the nearest of `options`, or all of them where none is near."""
    known, text = sorted(options), str(word)
    near = get_close_matches(text, known, n=1) if len(text) <= LONGEST else []
    return f"did you mean {near[0]!r}?" if near else f"available: {', '.join(known) or 'nothing'}"
