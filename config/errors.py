"""The one error of a configuration: where it is, what is wrong and what was probably meant."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Problem: TypeAlias = tuple[str, str]  # the option below a path, "" for all of it; what is wrong


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


class Source(msgspec.Struct, frozen=True):
    """Where settings came from. `lines` gives the line of an option by its path, where known;
    `moved`: paths that list items have in the text, by those that they have as they are read.
    """

    name: str
    lines: Mapping[str, int] = {}
    moved: Mapping[str, str] = {}

    def path(self, path: str) -> str:
        """As it is in the text."""
        item = max((one for one in self.moved if path.startswith(one)), key=len, default="")
        return self.moved.get(item, "") + path[len(item) :]

    def error(self, path: str, problem: str) -> ConfigError:
        path = self.path(path)
        line = self.lines.get(path)
        return ConfigError(f"{self.name}:{line}" if line else self.name, path, problem)

    def text(self, file: Path, path: str = "$", named: str = "") -> str:
        """The text of `file`, which is `named` at `path`. Raises ConfigError."""
        try:
            return file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise self.error(path, f"{named}can't be read: {reason}") from None

    def refuse(self, path: str, problems: Iterable[Problem]) -> None:
        """Raises ConfigError for the first of the problems of what stands at `path`."""
        for option, problem in problems:
            raise self.error(f"{path}.{option}" if option else path, problem)

    def refuse_twins(self, section: str, names: Iterable[str], taken: Iterable[str] = ()) -> None:
        """Raises ConfigError for an entry of `section` that is called like one before it."""
        seen = {*taken}
        for index, name in enumerate(names):
            if name in seen:
                raise self.error(f"$.{section}[{index}].name", f"{name!r} is taken already")
            seen.add(name)


COMMAND_LINE = Source("the command line")
MOST = 20  # mistakes that are told together: to find what each was meant to be takes time


def whole(read: Callable[[object, Source], T], document: object, source: Source) -> T:
    """What `read` makes of `document`. It may stop at the first mistake: that is left out and the
    rest read again. Raises ConfigError, which has the first `MOST`.
    """
    out: set[str] = set()
    wrong: list[ConfigError] = []
    while len(wrong) < MOST:
        rest = _Rest(document, source.lines, out)
        try:
            found = read(rest.data, msgspec.structs.replace(source, moved=rest.moved))
        except ConfigError as error:
            if error.path in out:
                break
            wrong += [] if rest.explains(error) else [error]
            out.add(error.path)
        else:
            if not wrong:
                return found
            break
    first, *others = sorted(wrong, key=lambda error: source.lines.get(error.path, 0))
    raise ConfigError(first.source, first.path, first.problem, others)


class _Rest:
    """`data`, whose paths are those of `lines`, without `out`. `moved`: see `Source`."""

    def __init__(self, data: object, lines: Mapping[str, int], out: Collection[str]) -> None:
        self.moved: dict[str, str] = {}
        self._lines = lines
        self._out = out
        self._names: list[object] = []  # of what was left out
        self.data = self._without(data, "$", "$")

    def explains(self, error: ConfigError) -> bool:
        """Whether it only tells of what was left out: an option that is missing now, a name."""
        place = error.path if error.path in self._lines else error.path.rpartition(".")[0]
        lacks = any(one.startswith((f"{place}.", f"{place}[")) for one in self._out)
        return lacks or any(repr(name) in error.problem for name in self._names)

    def _without(self, data: object, path: str, before: str) -> object:
        match data:
            case dict():
                return {
                    name: self._without(one, f"{path}.{name}", was)
                    for name, one in data.items()
                    if (was := self._staying(f"{before}.{name}", one))
                }
            case list():
                found = [(self._staying(f"{before}[{i}]", one), one) for i, one in enumerate(data)]
                kept = [(was, one) for was, one in found if was]
                self.moved |= {f"{path}[{i}]": was for i, (was, _) in enumerate(kept)}
                return [
                    self._without(one, f"{path}[{i}]", was) for i, (was, one) in enumerate(kept)
                ]
        return data

    def _staying(self, path: str, value: object) -> str:
        if path not in self._out:
            return path
        self._names += [value["name"]] if isinstance(value, dict) and "name" in value else []
        return ""


LONGEST = 100  # characters of a word that is compared with others, since that takes time


def suggestion(word: object, options: Iterable[str], elsewhere: Mapping[str, str] = {}) -> str:
    """The end of a message: the nearest of `options`, or all of them where none is near.
    `elsewhere`: where names stand that are looked at after those.
    """
    named, text = list(options), str(word)
    known, near = sorted(named), [name for name in named if name.startswith(f"{text}_")]
    if not near and len(text) <= LONGEST:
        near = get_close_matches(text, known, n=1)
    if not near and len(text) <= LONGEST:
        begun = [name for name in elsewhere if name.startswith(text)]
        close = begun or get_close_matches(text, elsewhere, n=1)
        near = [elsewhere[name] for name in close[:1]]
    return f"did you mean {near[0]!r}?" if near else f"available: {', '.join(known) or 'nothing'}"
