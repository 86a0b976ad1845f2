"""The configuration of a run: a file, under the environment, under what the caller sets.

Reads that one file and nothing else: the environment is handed in.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from config.check import convert
from config.consistency import check_consistency
from config.document import parse
from config.environment import Setting, from_text, settings
from config.errors import Source, suggestion
from config.models import Engines, check_names, check_options, engines_of, option_kinds
from config.secrets import secret, variable_of
from config.settings import Config, KeyConfig, ModelConfig
from config.shape import (
    Kind,
    Option,
    is_path,
    is_section,
    leaves,
    list_item,
    mapping_item,
    options,
    with_option,
)
from config.upstreams import completed


def load_config(
    path: Path | None,
    environment: Mapping[str, str],
    *,
    overrides: Mapping[str, object] = {},
    sampling: type[msgspec.Struct] | None = None,
    kind: type[Config] = Config,
) -> Config:
    """The configuration in `path`, or where `locate` finds one, or the defaults.

    Variables of `environment` go over the file, and `overrides` (`{"server.port": 9000}`) over
    both; a text in `overrides` is read like a variable's. `sampling` is the struct that the models'
    sampling defaults must fit; this floor doesn't know it. `kind`: a configuration with further
    engines, say. Relative paths in the file start at its folder. Raises ConfigError.
    """
    path = path or locate(environment, Path.cwd())
    text = read_text(path) if path else None
    return load_text(text, path, environment, overrides=overrides, sampling=sampling, kind=kind)


def load_text(
    text: str | None,
    path: Path | None,
    environment: Mapping[str, str],
    *,
    overrides: Mapping[str, object] = {},
    sampling: type[msgspec.Struct] | None = None,
    kind: type[Config] = Config,
) -> Config:
    """As `load_config`, where the file at `path` would hold `text`; None: there is no file."""
    if text is None:
        config, source = kind(), Source("the configuration")
    else:
        config, source = _understood(text, path or Path("roundhouse.yaml"), kind)
    sources = dict.fromkeys(kind.__struct_fields__, source)
    secrets = frozenset(_secret_variables(config))
    for setting in (*settings(environment, secrets, kind), *_overridden(overrides, kind)):
        config = with_option(config, setting.option, setting.value)
        sources[setting.option[0]] = setting.source
    check_options(config, sources["models"], sampling)
    check_names(config, sources["models"])
    check_consistency(config, sources)
    root = path.resolve().parent if path else Path.cwd()
    upstreams = completed(config.upstreams, environment, root, sources["upstreams"])
    config = with_option(config, ("upstreams",), upstreams)
    keys = _keys(config.keys, environment, root, sources["keys"])
    return with_option(config, ("keys",), keys)


def locate(environment: Mapping[str, str], here: Path) -> Path | None:
    """`./roundhouse.yaml`, else `$XDG_CONFIG_HOME/roundhouse/config.yaml`, where there is one."""
    home = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '~')}/.config"
    candidates = (here / "roundhouse.yaml", Path(home) / "roundhouse" / "config.yaml")
    return next((path for path in candidates if path.is_file()), None)


def read_text(path: Path) -> str:
    """The file's text. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise Source(str(path)).error("$", f"can't be read: {reason}") from None


def _understood(text: str, path: Path, kind: type[Config]) -> tuple[Config, Source]:
    data, source = parse(text, str(path))
    config = convert(data, kind, source)
    check_options(config, source, None)  # before their paths are made absolute
    return rooted(config, path.resolve().parent), source


# -- where values come from ------------------------------------------------------------------------


class OptionOrigin(msgspec.Struct, frozen=True):
    """Where an option's value comes from: `where` is a file and line, or a variable's name."""

    source: Literal["default", "file", "variable", "command line"]
    where: str | None = None


DEFAULT = OptionOrigin("default")


def origins(
    text: str | None,
    path: Path | None,
    environment: Mapping[str, str],
    *,
    overrides: Mapping[str, object] = {},
    kind: type[Config] = Config,
) -> Mapping[Option, OptionOrigin]:
    """Of every option that isn't at its default, as `load_text` reads them. Raises
    ConfigError.
    """
    found: dict[Option, OptionOrigin] = {}
    config = kind()
    if text is not None:
        config, source = _understood(text, path or Path("roundhouse.yaml"), kind)
        for option, _ in leaves(kind):
            if (line := source.lines.get(".".join(("$", *option)))) is not None:
                found[option] = OptionOrigin("file", f"{source.name}:{line}")
    secrets = frozenset(_secret_variables(config))
    for setting in settings(environment, secrets, kind):
        found[setting.option] = OptionOrigin("variable", setting.source.name)
    for setting in _overridden(overrides, kind):
        found[setting.option] = OptionOrigin("command line")
    return found


def _overridden(overrides: Mapping[str, object], config: type[Config]) -> Iterator[Setting]:
    known = {".".join(option): (option, kind) for option, kind in leaves(config)}
    source = Source("the command line")
    for name, value in overrides.items():
        if name not in known:
            raise source.error(f"$.{name}", f"unknown option; {suggestion(name, known)}")
        option, kind = known[name]
        typed = (
            from_text(value, kind, source, option)
            if isinstance(value, str)
            else convert(value, kind, source, path=f"$.{name}")
        )
        yield Setting(option, typed, source)


def _secret_variables(config: Config) -> Iterator[str]:
    """Variables that hold keys, whatever they are called."""
    written = (*(one.key for one in config.keys), *(one.key for one in config.upstreams))
    return filter(None, map(variable_of, written))


def _keys(
    keys: tuple[KeyConfig, ...], environment: Mapping[str, str], root: Path, source: Source
) -> tuple[KeyConfig, ...]:
    """The keys with their secrets in place."""
    found: dict[str, KeyConfig] = {}
    for index, key in enumerate(keys):
        path = f"$.keys[{index}].key"
        text = secret(key.key, environment, root, source, path)
        if text in found:
            raise source.error(path, "the same key is listed twice")
        found[text] = msgspec.structs.replace(key, key=text)
    return tuple(found.values())


# -------------------------------------------------------------------------------------------- paths
# The relative paths of a configuration file, made absolute. Whether they exist is not asked.


def rooted(config: Config, root: Path) -> Config:
    """`config` with its relative paths made absolute, from `root`.

    The models' options must have been checked.
    """
    whole: Config = _rooted(config, type(config), root)
    known = engines_of(type(config))
    models = tuple(_rooted_options(model, known, root) for model in whole.models)
    return msgspec.structs.replace(whole, models=models)


def _rooted_options(model: ModelConfig, known: Engines, root: Path) -> ModelConfig:
    """The same for a model's options, which aren't typed yet."""
    kinds = option_kinds(model, known)
    placed = {name: _rooted(value, kinds[name], root) for name, value in model.options.items()}
    return msgspec.structs.replace(model, options=placed)


def _rooted(value: Kind, kind: Kind, root: Path) -> Kind:
    if is_section(kind):
        below = options(kind).items()
        return msgspec.structs.replace(
            value, **{name: _rooted(getattr(value, name), inner, root) for name, inner in below}
        )
    if (item := list_item(kind)) is not None:
        return tuple(_rooted(part, item, root) for part in value)
    if (item := mapping_item(kind)) is not None:
        return {name: _rooted(part, item, root) for name, part in value.items()}
    return _rooted_text(value, root) if isinstance(value, str) and is_path(kind) else value


def _rooted_text(text: str, root: Path) -> str:
    scheme, colon, _ = text.partition(":")
    if colon and len(scheme) > 1 and scheme.isalpha():  # https://…, hf:owner/name
        return text
    return str(root / Path(text).expanduser())
