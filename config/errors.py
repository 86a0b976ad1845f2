"""The one error of a configuration: where it is, what is wrong and what was probably meant."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

import msgspec

T = TypeVar("T")

MOST = 20  # mistakes that are told together: to find what each was meant to be takes time


class ConfigError(Exception):
    """The configuration can't be used. The message is for the person who wrote it.

    `source` is the file or the environment variable, `path` the option in it (`$.server.port`);
    `others`: mistakes beside that one.
    """

    def __init__(
        self, source: str, path: str, problem: str, others: Sequence["ConfigError"] = ()
    ) -> None:
        super().__init__("\n".join([f"{source}: {path}: {problem}", *map(str, others)]))
        self.source = source
        self.path = path
        self.problem = problem
        self.others = others


def every(reads: Iterable[Callable[[], T]]) -> list[T]:
    """What they return. Raises ConfigError, which has the first `MOST` mistakes or so."""
    found: list[T] = []
    wrong: list[ConfigError] = []
    for read in reads:
        try:
            found.append(read())
        except ConfigError as error:
            wrong += (ConfigError(error.source, error.path, error.problem), *error.others)
            if len(wrong) >= MOST:
                break
    if wrong:
        first, *others = wrong
        raise ConfigError(first.source, first.path, first.problem, others) from None
    return found


class Source(msgspec.Struct, frozen=True):
    """Where settings came from. `lines` gives the line of an option by its path, where known."""

    name: str
    lines: Mapping[str, int] = {}

    def error(self, path: str, problem: str) -> ConfigError:
        line = self.lines.get(path)
        return ConfigError(f"{self.name}:{line}" if line else self.name, path, problem)


LONGEST = 100  # characters of a word that is compared with others, since that takes time


def suggestion(word: object, options: Iterable[str], elsewhere: Mapping[str, str] = {}) -> str:
    """The end of a message: the nearest of `options`, or all of them where none is near.
    `elsewhere`: where names stand that are looked at after those.
    """
    known, text = sorted(options), str(word)
    near = get_close_matches(text, known, n=1) if len(text) <= LONGEST else []
    if not near and len(text) <= LONGEST:
        begun = [name for name in elsewhere if name.startswith(text)]
        close = begun or get_close_matches(text, elsewhere, n=1)
        near = [elsewhere[name] for name in close[:1]]
    return f"did you mean {near[0]!r}?" if near else f"available: {', '.join(known) or 'nothing'}"
