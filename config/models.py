"""Validation across a configuration's models, and a model's own options merged over its engine's.

Which sampling parameters there are is known one floor up (`backends.contract.samplers`): the caller
that loads the configuration or builds a model passes that struct in.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import yaml

from config.check import convert
from config.commands import COMMAND, problems
from config.engines import CommandOptions, EngineOptions
from config.errors import ConfigError, Source, suggestion
from config.nodes import HERE
from config.settings import Config, ModelConfig
from config.shape import Kind, is_configured_only, is_section, options

S = TypeVar("S", bound=msgspec.Struct)

Engines: TypeAlias = Mapping[str, type[EngineOptions]]  # by name, in the order of recognition


def engines_of(config: type[Config]) -> Engines:
    """The engines that a configuration of this type knows."""
    found = options(options(config)["engines"])
    return {name: kind for name, kind in found.items() if is_section(kind)}


def configured_only(known: Engines) -> frozenset[str]:
    """Options of any engine that no request may set: they run code or name files of this
    machine.
    """
    return frozenset(
        name
        for engine in known.values()
        for name, kind in options(engine).items()
        if is_configured_only(kind)
    )


ENGINES = engines_of(Config)


def options_for(config: Config, model: ModelConfig, backend: str) -> EngineOptions:
    """The options to load `model` with: its own over those of `engines.<backend>`.

    `backend` is the one the files asked for, where the model names none.
    Raises ConfigError where the model has options that this backend doesn't know.
    """
    defaults: EngineOptions = getattr(config.engines, backend)
    merged = _merged(defaults, model, Source(f"model {model.name!r} ({backend})"), "$.options")
    return msgspec.structs.replace(merged, host=merged.host or config.engines.host)


def over(default: Any, own: Any, given: Any) -> Any:
    """What is in force of an option: `own`, as it was read from `given`; of a section only the
    parts that are given, over those of `default`.
    """
    if not isinstance(own, msgspec.Struct) or not isinstance(given, Mapping):
        return own
    return msgspec.structs.replace(default, **{name: getattr(own, name) for name in given})


def _merged(
    defaults: EngineOptions, model: ModelConfig, source: Source, path: str
) -> EngineOptions:
    own = convert(model.options, type(defaults), source, path=path)
    given = {
        name: over(getattr(defaults, name), getattr(own, name), value)
        for name, value in model.options.items()
    }
    if model.command is not None:
        given["command"] = model.command
    return msgspec.structs.replace(defaults, **given)


def sampling_for(model: ModelConfig, sampling: type[S]) -> S:
    """The model's sampling defaults as a `sampling`. Which were named: `model.sampling.keys()`.

    Raises ConfigError for a parameter that `sampling` doesn't have.
    """
    return convert(model.sampling, sampling, Source(f"model {model.name!r}"), path="$.sampling")


def check_names(config: Config, source: Source) -> None:
    """Raises ConfigError where two models share a name, or the default model is none of them."""
    names = _unique_names(config, source)
    discovered = any(upstream.models == "all" for upstream in config.upstreams)
    if not names or config.model_dirs or discovered:  # those bring names of their own
        return
    if config.default_model:
        _one_of(config.default_model, names, source, "$.default_model", "model")
    for index, upstream in enumerate(config.upstreams):
        for k, name in enumerate(upstream.fallbacks):
            _one_of(name, names, source, f"$.upstreams[{index}].fallbacks[{k}]", "model")


# What an entry may say of a model that is loaded by another entry.
PRESET_OPTIONS = (
    "name",
    "of",
    "aliases",
    "sampling",
    "system",
    "template_kwargs",
    "mcp",
    "lora",
    "keep_reasoning",
)


def check_options(config: Config, source: Source, sampling: type[msgspec.Struct] | None) -> None:
    """Raises ConfigError for a backend, an option or a sampling default that doesn't exist."""
    known = engines_of(type(config))
    _check_hosts(config, known, source)
    for index, model in enumerate(config.models):
        path = f"$.models[{index}]"
        if model.of is not None:
            _check_preset(config, model, source, path)
        _check_options(model, known, source, path)
        _check_command(config, model, source, path)
        _check_replicas(model, source, path)
        _check_pin(config.models[:index], model, source, path)
        for one in model.each:
            _check_host(config, one, source, path)
        for k, name in enumerate(model.mcp):
            known_tools = [server.name for server in config.mcp if not server.is_open]
            _one_of(name, known_tools, source, f"{path}.mcp[{k}]", "MCP server")
        if sampling is not None:
            convert(model.sampling, sampling, source, path=f"{path}.sampling")


def _unique_names(config: Config, source: Source) -> Mapping[str, str]:
    """Every name and alias with the path it is written at."""
    seen: dict[str, str] = {}
    for path, name in written_names(config):
        if name in seen:
            raise source.error(path, f"{name!r} is taken already, by {source.path(seen[name])}")
        seen[name] = path
    return seen


def written_names(config: Config) -> Iterator[tuple[str, str]]:
    """Where each name is written that a model is called by, and the name."""
    for index, model in enumerate(config.models):
        yield f"$.models[{index}].name", model.name
        for k, name in enumerate(model.aliases):
            yield f"$.models[{index}].aliases[{k}]", name
        for one in model.each if model.replicas != 1 else ():
            yield f"$.models[{index}].replicas", one.name
    for index, upstream in enumerate(config.upstreams):
        for name in upstream.models if isinstance(upstream.models, dict) else ():
            yield f"$.upstreams[{index}].models.{name}", name


def _check_options(model: ModelConfig, engines: Engines, source: Source, path: str) -> None:
    if model.engine is not None:
        _one_of(model.engine, engines, source, f"{path}.backend", "backend")
        convert(model.options, engines[model.engine], source, path=f"{path}.options")
        return
    known = {name: engine for engine in engines.values() for name in options(engine)}
    for name in model.options.keys() - known.keys():
        problem = f"no backend has this option; {suggestion(name, known)}"
        raise source.error(f"{path}.options.{name}", problem)
    _fits_any(model, engines, source, f"{path}.options")


def _check_preset(config: Config, model: ModelConfig, source: Source, path: str) -> None:
    """Raises ConfigError for what only the entry that is loaded can say."""
    for field in msgspec.structs.fields(ModelConfig):
        value = getattr(model, field.name)
        if field.name not in PRESET_OPTIONS and value not in (field.default, {}):
            problem = f"a model with `of` is loaded as {model.of!r}; set this option there"
            raise source.error(f"{path}.{field.name}", problem)
    of_presets = {name for one in config.models if one.of for name in (one.name, *one.aliases)}
    if model.of in of_presets:
        raise source.error(
            f"{path}.of", f"{model.of!r} has an `of` itself; name the model it names"
        )


def _check_command(config: Config, model: ModelConfig, source: Source, path: str) -> None:
    """A model has files, or a command serves it. Raises ConfigError."""
    if model.engine != COMMAND:
        if not model.path and model.of is None:
            raise source.error(path, "the option 'path' is missing")
        return
    if model.backend not in (None, COMMAND):
        raise source.error(f"{path}.backend", f"a model with `command` is not {model.backend}'s")
    options = _merged(config.engines.command, model, source, f"{path}.options")
    assert isinstance(options, CommandOptions)
    for option, problem in problems(options, has_path=bool(model.path)):
        place = path if option == "command" else f"{path}.options"
        raise source.error(f"{place}.{option}", problem)


def _check_hosts(config: Config, known: Engines, source: Source) -> None:
    """Raises ConfigError for an engine whose models would all lie on another machine."""
    hosts = {f"$.engines.{name}": getattr(config.engines, name).host for name in known}
    for path, host in {"$.engines": config.engines.host, **hosts}.items():
        if host not in (None, *HERE):
            problem = f"{host!r}: expected {', '.join(HERE)}; a node is set for each model"
            raise source.error(f"{path}.host", problem)


def _check_replicas(model: ModelConfig, source: Source, path: str) -> None:
    """Raises ConfigError where each replica's place is given, and another one for all; and where
    only one of them may be loaded.
    """
    if model.replicas != 1 and model.one_of is not None:
        raise source.error(f"{path}.one_of", "`replicas` are in memory together")
    if isinstance(model.replicas, tuple) and "host" in model.options:
        problem = "`replicas` has the host of each already"
        raise source.error(f"{path}.options.host", problem)


def _check_pin(
    before: Sequence[ModelConfig], model: ModelConfig, source: Source, path: str
) -> None:
    """Raises ConfigError for a pinned model that another one would keep from being loaded."""
    turns = [one.name for one in before if one.pinned and one.one_of == model.one_of is not None]
    if model.pinned and turns:
        problem = f"{turns[0]} is pinned, and only one of {model.one_of!r} is in memory at a time"
        raise source.error(f"{path}.pinned", problem)


def _check_host(config: Config, model: ModelConfig, source: Source, path: str) -> None:
    """Raises ConfigError for a node that isn't there, or that can't have this model."""
    host = model.options.get("host")
    if host is None or host in HERE:
        return
    _one_of(
        host, (*HERE, *(node.name for node in config.nodes)), source, f"{path}.options.host", "host"
    )
    if model.engine == COMMAND:
        raise source.error(f"{path}.options.host", "commands run on this machine")
    if not model.path.startswith("/"):
        problem = "a model on another machine has its whole path there, which begins with /"
        raise source.error(f"{path}.path", problem)


def _fits_any(model: ModelConfig, engines: Engines, source: Source, path: str) -> None:
    """One engine must take all the options together; which one is known once the files are read."""
    takers = [kind for kind in engines.values() if model.options.keys() <= options(kind).keys()]
    if not takers:
        raise source.error(path, "no backend has all of these options together")
    errors: list[ConfigError] = []
    for engine in takers:
        try:
            convert(model.options, engine, source, path=path)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == len(takers):
        raise errors[0]


def option_kinds(model: ModelConfig, engines: Engines) -> Mapping[str, Kind]:
    """The kind of each of the model's options, by its backend, else by the first that has it."""
    candidates = engines.values() if model.engine is None else (engines[model.engine],)
    kinds: dict[str, Kind] = {}
    for engine in candidates:
        kinds = options(engine) | kinds
    return {name: kinds[name] for name in model.options}


def _one_of(word: str, known: Collection[str], source: Source, path: str, what: str) -> None:
    if word not in known:
        raise source.error(path, f"unknown {what} {word!r}; {suggestion(word, known)}")


def written(model: ModelConfig) -> str:
    """The lines of `models` that say the same: YAML, without options at their defaults."""
    data = msgspec.to_builtins(model)
    values = {
        field.name: data[field.name]
        for field in msgspec.structs.fields(ModelConfig)
        if field.required or getattr(model, field.name) != field.default
    }
    empty = {name for name, value in values.items() if value in ({}, [])}
    kept = {name: value for name, value in values.items() if name not in empty}
    return yaml.safe_dump([kept], sort_keys=False, allow_unicode=True)
