"""The configuration with its secrets masked: the structs, and the file's text.

What only names a secret's place (`env:NAME`, `${NAME}`, `file:PATH`) stays.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from config.secrets import PLACES
from config.settings import Config
from config.upstreams import UpstreamConfig

MASK = "••••"
_SECRET = re.compile(r"\$\.keys\[\]\.key|\$\.upstreams\[\]\.(?:key|headers\..*|set\..*)")
_USER = re.compile(r"(?<=://)[^/@\s]*@")  # of a URL: it may hold a password
_IN_COMMENT = re.compile(
    r"(?i)((?:key|token|secret|password|authorization)[\w-]*['\"]?\s*[:=]\s*)\S.*"
)


def masked(config: Config) -> Config:
    """`config` without its secrets, wherever they came from."""
    keys = tuple(msgspec.structs.replace(key, key=MASK) for key in config.keys)
    upstreams = tuple(_upstream(one) for one in config.upstreams)
    endpoint = None if config.hub.endpoint is None else _without_user(config.hub.endpoint)
    hub = msgspec.structs.replace(config.hub, endpoint=endpoint)
    return msgspec.structs.replace(config, keys=keys, upstreams=upstreams, hub=hub)


def _upstream(upstream: UpstreamConfig) -> UpstreamConfig:
    return msgspec.structs.replace(
        upstream,
        key=None if upstream.key is None else MASK,
        headers=dict.fromkeys(upstream.headers, MASK),
        set=dict.fromkeys(upstream.set, MASK),
        urls=tuple(map(_without_user, upstream.urls)),
        proxy=None if upstream.proxy is None else _without_user(upstream.proxy),
    )


def _without_user(url: str) -> str:
    return _USER.sub(f"{MASK}@", url)


def masked_text(text: str) -> str | None:
    """The file's text without its secrets; None for a text that is no YAML, where secrets can't be
    found.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        secrets = sorted(set(_secrets(node, "$"))) if node is not None else []
    except (yaml.YAMLError, RecursionError):
        return None
    parts, end = [], 0
    for first, last in secrets:
        if first >= end:
            parts += [text[end:first], MASK]
            end = last
    lines = _without_user("".join((*parts, text[end:]))).splitlines(keepends=True)
    return "".join(map(_line, lines))


def _line(line: str) -> str:
    """A value that is commented out may still be a secret."""
    head, mark, comment = line.partition("#")
    if not mark:
        return line
    return head + mark + _IN_COMMENT.sub(rf"\g<1>{MASK}", comment)


def _secrets(node: yaml.Node, path: str) -> Iterator[tuple[int, int]]:
    """Where the secrets in `node` begin and end, in characters."""
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                yield from _secrets(value, f"{path}.{key.value}")
        case yaml.SequenceNode():
            for value in node.value:
                yield from _secrets(value, f"{path}[]")
        case yaml.ScalarNode() if _SECRET.fullmatch(path) and not _is_place(node.value):
            yield node.start_mark.index, node.end_mark.index


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(PLACES)
