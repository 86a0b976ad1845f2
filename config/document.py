"""YAML text to plain data, by YAML 1.2's core schema. Knows no option.

PyYAML reads YAML 1.1, where `off` is false, `12:30` is 750 and the second of two equal keys wins
unseen. Here the scalars are those of YAML 1.2's core schema
(https://yaml.org/spec/1.2.2/#103-core-schema) and a key given twice is an error.
"""

import re
from collections.abc import Iterator
from typing import TypeAlias

import yaml

from config.errors import Source

# Each scalar's tag, its whole form, and the characters it may begin with.
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)


MOST_NODES = 1_000_000  # values of a text; a few aliases could make it endless


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema's scalars."""


_Loader.yaml_implicit_resolvers = {}  # without YAML 1.1's
for _tag, _pattern, _starts in _SCALARS:
    _whole = re.compile(f"^(?:{_pattern})$")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, _starts)


def parse(text: str, name: str) -> tuple[object, Source]:
    """The data in `text`, and the source that knows each option's line. An empty text is `{}`.

    Raises ConfigError for broken YAML and for a key given twice.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, Source(name)
        if _size(node, {}) > MOST_NODES:
            raise Source(name).error("$", "its aliases make it too large")
        lines: dict[Steps, int] = {(): 1}
        for steps, start, _ in entries(node):
            line = start.start_mark.line + 1
            if steps in lines:
                path, problem = path_of(steps), f"given twice; first in line {lines[steps]}"
                raise Source(name, {path: line}).error(path, problem)
            lines[steps] = line
        source = Source(name, {path_of(steps): line for steps, line in lines.items()})
        return loader.construct_document(node), source
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = f"not YAML: {error.problem}"
        if "\\t" in (error.problem or ""):
            problem = "not YAML: indented with a tab; indent with spaces"
        raise Source(name, {"$": line}).error("$", problem) from None
    except yaml.reader.ReaderError as error:
        raise Source(name).error("$", f"not YAML: {error.reason}") from None
    except RecursionError:
        raise Source(name).error("$", "a part of it contains itself") from None


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """The nodes it would have if each alias were written out. Raises RecursionError for one that
    contains itself.
    """
    here = id(node)
    if known.get(here) == 0:
        raise RecursionError
    if here not in known:
        known[here] = 0  # until it is counted
        known[here] = 1 + sum(_size(one, known) for one in _below(node))
    return known[here]


def _below(node: yaml.Node) -> Iterator[yaml.Node]:
    match node:
        case yaml.MappingNode():
            yield from (one for pair in node.value for one in pair)
        case yaml.SequenceNode():
            yield from node.value


Steps: TypeAlias = tuple[str | int, ...]  # the names and the places in lists on the way to a value


def entries(
    node: yaml.Node | None, above: Steps = ()
) -> Iterator[tuple[Steps, yaml.Node, yaml.Node]]:
    """All that stands below `node`: the way there, where it begins (its key), and itself."""
    below: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    match node:
        case yaml.MappingNode():
            below = [(str(key.value), key, value) for key, value in node.value]
        case yaml.SequenceNode():
            below = [(index, value, value) for index, value in enumerate(node.value)]
    for step, start, value in below:
        yield (*above, step), start, value
        yield from entries(value, (*above, step))


def path_of(steps: Steps, item: str = "[{}]") -> str:
    """`$.models[0].name`; `item`: how a place in a list is written."""
    return "$" + "".join(f".{one}" if isinstance(one, str) else item.format(one) for one in steps)
