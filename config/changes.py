"""Options that differ at a reload, and which of them need a restart. Pure."""

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from config.settings import Config
from config.shape import Option, leaves, value_of, with_option

# live: from the next request on. models: each model it touches is reported. restart: the running
# server keeps what it has.
Effect: TypeAlias = Literal["live", "models", "restart"]

# Every option, or the section it stands in.
EFFECTS: Mapping[str, Effect] = {
    "server.host": "restart",
    "server.port": "restart",
    "server.allow_open": "live",
    "server.cors_origins": "restart",
    "server.hosts": "live",
    "server.trusted_proxies": "restart",
    "server.max_body": "restart",
    "server.max_held_bytes": "restart",
    "server.shutdown_grace": "restart",
    "server.max_choices": "live",
    "server.strict_sampling": "live",
    "server.allow_control_tokens": "live",
    "server.comment_after": "live",
    "server.loading_text": "live",
    "server.send_timeout": "restart",
    "server.watch_config": "live",
    "keys": "live",
    "models": "models",
    "model_dirs": "models",
    "upstreams": "models",
    "default_model": "live",
    "unknown_models": "live",
    "template_dir": "live",
    "preset_dir": "live",
    "preset": "live",
    "engines": "models",
    "swap.memory": "live",
    "swap.max_waiting": "live",
    "swap.max_wait": "live",
    "swap.min_stay": "live",
    "swap.ttl": "models",
    "swap.backoff": "live",
    "hub.endpoint": "live",
    "hub.folder": "live",
    "hub.cache": "models",
    "hub.cached_models": "models",
    "hub.deletion": "live",
    "images": "live",
    "apis": "restart",
    "llamaserver": "live",
    "store": "restart",
    "console": "restart",
    "log.level": "restart",
    "log.format": "restart",
    "log.prompts": "live",
}


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """The options that differ between two configurations, by what a change of them does."""

    live: tuple[str, ...]
    models: tuple[str, ...]
    restart: tuple[str, ...]


def effect_of(option: Option) -> Effect:
    """The entry of the option, or of the nearest section above it that has one."""
    for length in range(len(option), 0, -1):
        if (found := EFFECTS.get(".".join(option[:length]))) is not None:
            return found
    raise KeyError(".".join(option))


def differences(old: Config, new: Config) -> Differences:
    """Which options differ, by their dotted names in the order of the file."""
    changed = list(_changed(old, new))

    def having(effect: Effect) -> tuple[str, ...]:
        return tuple(".".join(option) for option in changed if effect_of(option) == effect)

    return Differences(live=having("live"), models=having("models"), restart=having("restart"))


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
