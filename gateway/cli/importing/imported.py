"""What an import found, and how it is written."""

from typing import Any, TypeAlias

import msgspec
import yaml

from backends.contract.samplers import ROWS

Data: TypeAlias = dict[str, Any]  # YAML's own shape

# Names of a request's parameters, and what they are called here.
SAMPLING = {name: field for field, row in ROWS.items() for name in (field, *row.names)}


class Imported(msgspec.Struct, frozen=True):
    """Our configuration, and what of the other one it doesn't say."""

    config: Data
    notes: tuple[str, ...]


class NotAModel(Exception):
    """A command line can't be a model here. The message is the reason."""


def given(**values: Any) -> Data:
    """Those that say something: an option's default is left out."""
    return {name: value for name, value in values.items() if value}


def written(config: Data) -> str:
    """As YAML, in which a command of several lines is read easily."""
    return yaml.dump(config, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines in blocks."""


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)
