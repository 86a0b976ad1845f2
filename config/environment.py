"""Options from the environment: `ROUNDHOUSE_SERVER_PORT=9000` is `server.port`.

The names are those of all options, joined by underscores. Lists are separated by commas or written
as JSON, mappings are JSON. Nothing here reads `os.environ`.
"""

from collections.abc import Iterator, Mapping

import msgspec

from config.check import convert
from config.errors import Source, suggestion
from config.settings import Config
from config.shape import Kind, Option, leaves, list_item, mapping_item, takes_none

PREFIX = "ROUNDHOUSE_"
CLIENTS = frozenset({"ROUNDHOUSE_URL", "ROUNDHOUSE_KEY"})  # of commands that talk to a server


class Setting(msgspec.Struct, frozen=True):
    """One option with its value and where it came from."""

    option: Option
    value: object
    source: Source


def variables(config: type[Config]) -> Mapping[str, tuple[Option, Kind]]:
    """Every variable there is, with the option it sets."""
    return {PREFIX + "_".join(option).upper(): (option, kind) for option, kind in leaves(config)}


def settings(
    environment: Mapping[str, str], others: frozenset[str], config: type[Config]
) -> Iterator[Setting]:
    """What `environment` sets. `others` are variables with our prefix that mean something else.

    Raises ConfigError for an unknown variable with our prefix and for a value of the wrong type.
    """
    known = variables(config)
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in others | CLIENTS:
            continue
        if name not in known:
            raise Source(name).error("$", f"unknown variable; {suggestion(name, known)}")
        option, kind = known[name]
        source = Source(name)
        yield Setting(option, from_text(environment[name], kind, source, option), source)


def from_text(text: str, kind: Kind, source: Source, option: Option) -> object:
    """`text` as the option's kind; an empty one is None where the option may be None."""
    path = ".".join(("$", *option))
    data: object = text
    if list_item(kind) is not None and not text.lstrip().startswith("["):
        data = [part.strip() for part in text.split(",") if part.strip()]
    elif list_item(kind) is not None or mapping_item(kind) is not None:
        data = _from_json(text, source, path)
    elif not text and takes_none(kind):
        data = None
    return convert(data, kind, source, path=path, strict=False)


def _from_json(text: str, source: Source, path: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise source.error(path, f"not JSON: {error}") from None
