"""Two views of a configuration, both pure: which options differ from another one's, and which of
these need a restart; and the same configuration with its secrets masked.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias

import msgspec
import yaml

from config.document import entries, path_of
from config.secrets import PLACES
from config.settings import Config
from config.shape import Option, leaves, value_of, with_option

# live: from the next request on. models: each model it touches is reported. restart: the running
# server keeps what it has.
Effect: TypeAlias = Literal["live", "models", "restart"]

# Every option, or the section it stands in.
EFFECTS: Mapping[str, Effect] = {
    "cluster": "restart",
    "cluster_tls": "restart",
    "server": "restart",
    "server.allow_open": "live",
    "server.hosts": "live",
    "server.max_sockets": "live",
    "server.socket_idle": "live",
    "server.max_choices": "live",
    "server.max_tool_rounds": "live",
    "server.strict_sampling": "live",
    "server.allow_control_tokens": "live",
    "server.comment_after": "live",
    "server.loading_text": "live",
    "server.watch_config": "live",
    "keys": "live",
    "models": "models",
    "model_dirs": "models",
    "upstreams": "models",
    "nodes": "models",
    "mcp": "live",
    "default_model": "live",
    "unknown_models": "live",
    "template_dir": "live",
    "preset_dir": "live",
    "preset": "live",
    "engines": "models",
    "swap": "live",
    "swap.ttl": "models",
    "join": "restart",
    "hub": "live",
    "hub.cache": "models",
    "hub.cached_models": "models",
    "images": "live",
    "apis": "restart",
    "llamaserver": "live",
    "store": "restart",
    "kept": "restart",
    "kept.memory": "live",
    "kept.share": "live",
    "console": "restart",
    "inspector": "live",
    "tracing": "restart",
    "log": "restart",
    "log.prompts": "live",
}


def effect_of(option: Option) -> Effect:
    """The entry of the option, or of the nearest section above it that has one."""
    for length in range(len(option), 0, -1):
        if (found := EFFECTS.get(".".join(option[:length]))) is not None:
            return found
    raise KeyError(".".join(option))


def differences(old: Config, new: Config) -> Mapping[Effect, tuple[str, ...]]:
    """Which options differ, by what a change of them does: their dotted names in the order of the
    file.
    """
    found: dict[Effect, tuple[str, ...]] = {"live": (), "models": (), "restart": ()}
    for option in _changed(old, new):
        found[effect_of(option)] += (".".join(option),)
    return found


def in_force(old: Config, new: Config) -> Config:
    """`new` as a running server can have it: what needs a restart is as in `old`."""
    for option in _changed(old, new):
        if effect_of(option) == "restart":
            new = with_option(new, option, value_of(old, option))
    return new


def _changed(old: Config, new: Config) -> Iterator[Option]:
    for option, _ in leaves(type(old)):
        if value_of(old, option) != value_of(new, option):
            yield option


MASK = "••••"
_SECRET = re.compile(
    r"\$\.keys\[\]\.key|\$\.nodes\[\]\.token|\$\.kept\.encrypt|\$\.join\.key|\$\.tracing\.headers\..*"
    r"|\$\.mcp\[\]\.(?:headers|env)\..*"
    r"|\$\.upstreams\[\]\.(?:key|keys\[\]|headers\..*|set\..*)"
    r"|\$\.(?:models\[\]\.options|engines\.command)\.(?:env|set)\..*"
)
_USER = re.compile(r"(?<=://)[^/@\s]*@")  # of a URL: it may hold a password
_IN_COMMENT = re.compile(
    r"(?i)((?:key|token|secret|password|authorization)[\w-]*['\"]?\s*[:=]\s*)\S.*"
)


def masked(config: Config) -> Any:
    """`config` as plain data without its secrets, wherever they came from."""
    return _masked(msgspec.to_builtins(config), "$")


def _masked(value: Any, path: str) -> Any:
    if value is not None and _SECRET.fullmatch(path):
        return MASK
    match value:
        case list() | tuple():
            return [_masked(one, f"{path}[]") for one in value]
        case dict():
            return {name: _masked(one, f"{path}.{name}") for name, one in value.items()}
        case str():
            return _without_user(value)
    return value


def _without_user(url: str) -> str:
    return _USER.sub(f"{MASK}@", url)


def masked_text(text: str) -> str | None:
    """The file's text without its secrets; None for a text that is no YAML, where secrets can't be
    found. What only names a secret's place (`env:NAME`, `${NAME}`, `file:PATH`) stays.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        secrets = sorted(
            {
                (value.start_mark.index, value.end_mark.index)
                for steps, _, value in entries(node)
                if _is_secret(path_of(steps, "[]"), value)
            }
        )
    except (yaml.YAMLError, RecursionError):
        return None
    parts, end = [], 0
    for first, last in secrets:
        if first >= end:
            parts += [text[end:first], MASK]
            end = last
    lines = _without_user("".join((*parts, text[end:]))).splitlines(keepends=True)
    return "".join(map(_line, lines))


def unmasked(text: str, original: str) -> str:
    """Put the secrets of `original` back into `text`, which was made from `masked_text(original)`.
    Lines may be added and taken away. Raises ValueError with a line's number (from 1) where a mask
    stands in a line that wasn't shown so.
    """
    shown = (masked_text(original) or "").splitlines(keepends=True)
    hidden, lines = original.splitlines(keepends=True), text.splitlines(keepends=True)
    if len(shown) == len(hidden):  # else a secret has several lines
        for at, to, size in SequenceMatcher(None, shown, lines).get_matching_blocks():
            lines[to : to + size] = hidden[at : at + size]
    for number, line in enumerate(lines, 1):
        if MASK in line:
            raise ValueError(number)
    return "".join(lines)


def _line(line: str) -> str:
    """A value that is commented out may still be a secret."""
    head, mark, comment = line.partition("#")
    if not mark:
        return line
    return head + mark + _IN_COMMENT.sub(rf"\g<1>{MASK}", comment)


def _is_secret(path: str, node: yaml.Node) -> bool:
    is_text = isinstance(node, yaml.ScalarNode) and not node.value.startswith(PLACES)
    return is_text and _SECRET.fullmatch(path) is not None
