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
from config.errors import ConfigError, Problem, Source, suggestion
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
    source = Source(f"model {model.name!r} ({backend})")
    own = convert(model.options, type(defaults), source, path="$.options")
    given = {
        name: over(getattr(defaults, name), getattr(own, name), value)
        for name, value in model.options.items()
    }
    if model.command is not None:
        given["command"] = model.command
    merged = msgspec.structs.replace(defaults, **given)
    return msgspec.structs.replace(merged, host=merged.host or config.engines.host)


def over(default: Any, own: Any, given: Any) -> Any:
    """What is in force of an option: `own`, as it was read from `given`; of a section only the
    parts that are given, over those of `default`.
    """
    if not isinstance(own, msgspec.Struct) or not isinstance(given, Mapping):
        return own
    return msgspec.structs.replace(default, **{name: getattr(own, name) for name in given})


def sampling_for(model: ModelConfig, sampling: type[S]) -> S:
    """The model's sampling defaults as a `sampling`. Which were named: `model.sampling.keys()`.

    Raises ConfigError for a parameter that `sampling` doesn't have.
    """
    return convert(model.sampling, sampling, Source(f"model {model.name!r}"), path="$.sampling")


def check_names(config: Config, source: Source) -> None:
    """Raises ConfigError where two models share a name, or the default model is none of them."""
    seen: dict[str, str] = {}
    for path, name in written_names(config):
        if name in seen:
            raise source.error(path, f"{name!r} is taken already, by {source.path(seen[name])}")
        seen[name] = path
    discovered = any(upstream.models == "all" for upstream in config.upstreams)
    if seen and not config.model_dirs and not discovered:  # those bring names of their own
        source.refuse("$", _problems_of_names(config, seen))


def _problems_of_names(config: Config, known: Collection[str]) -> Iterator[Problem]:
    if config.default_model:
        yield from _unless_known("default_model", config.default_model, known, "model")
    for index, upstream in enumerate(config.upstreams):
        for k, name in enumerate(upstream.fallbacks):
            yield from _unless_known(f"upstreams[{index}].fallbacks[{k}]", name, known, "model")


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
    source.refuse("$.engines", _problems_of_hosts(config, known))
    for index, model in enumerate(config.models):
        path = f"$.models[{index}]"
        source.refuse(path, _problems_of_preset(config, model))
        source.refuse(path, _problems_of_backend(model, known))
        if model.engine is None:
            _fits_any(model, known, source, f"{path}.options")
        else:
            convert(model.options, known[model.engine], source, path=f"{path}.options")
        source.refuse(path, _problems(config, model, config.models[:index]))
        if sampling is not None:
            convert(model.sampling, sampling, source, path=f"{path}.sampling")


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


def _problems_of_hosts(config: Config, known: Engines) -> Iterator[Problem]:
    """Of engines whose models would all lie on another machine."""
    hosts = {f"{name}.host": getattr(config.engines, name).host for name in known}
    for option, host in {"host": config.engines.host, **hosts}.items():
        if host not in (None, *HERE):
            yield option, f"{host!r}: expected {', '.join(HERE)}; a node is set for each model"


def _problems_of_preset(config: Config, model: ModelConfig) -> Iterator[Problem]:
    """What only the entry that is loaded can say."""
    if model.of is None:
        return
    for field in msgspec.structs.fields(ModelConfig):
        value = getattr(model, field.name)
        if field.name not in PRESET_OPTIONS and value not in (field.default, {}):
            yield field.name, f"a model with `of` is loaded as {model.of!r}; set this option there"
    of_presets = {name for one in config.models if one.of for name in (one.name, *one.aliases)}
    if model.of in of_presets:
        yield "of", f"{model.of!r} has an `of` itself; name the model it names"


def _problems_of_backend(model: ModelConfig, engines: Engines) -> Iterator[Problem]:
    if model.engine is not None:
        yield from _unless_known("backend", model.engine, engines, "backend")
        return
    known = {name: engine for engine in engines.values() for name in options(engine)}
    for name in model.options.keys() - known.keys():
        yield f"options.{name}", f"no backend has this option; {suggestion(name, known)}"


def _problems(
    config: Config, model: ModelConfig, before: Sequence[ModelConfig]
) -> Iterator[Problem]:
    """What is inconsistent, and where; `before`: the models that stand above it."""
    if model.engine == COMMAND:
        yield from _problems_of_command(config, model)
    elif not model.path and model.of is None:
        yield "", "the option 'path' is missing"
    if model.replicas != 1 and model.one_of is not None:
        yield "one_of", "`replicas` are in memory together"
    if isinstance(model.replicas, tuple) and "host" in model.options:
        yield "options.host", "`replicas` has the host of each already"
    turns = [one.name for one in before if one.pinned and one.one_of == model.one_of is not None]
    if model.pinned and turns:
        only = f"only one of {model.one_of!r} is in memory at a time"
        yield "pinned", f"{turns[0]} is pinned, and {only}"
    for one in model.each:
        yield from _problems_of_host(config, one)
    known_tools = [server.name for server in config.mcp if not server.is_open]
    for k, name in enumerate(model.mcp):
        yield from _unless_known(f"mcp[{k}]", name, known_tools, "MCP server")


def _problems_of_command(config: Config, model: ModelConfig) -> Iterator[Problem]:
    if model.backend not in (None, COMMAND):
        yield "backend", f"a model with `command` is not {model.backend}'s"
    own = options_for(config, model, COMMAND)
    assert isinstance(own, CommandOptions)
    for option, problem in problems(own, has_path=bool(model.path)):
        yield option if option == "command" else f"options.{option}", problem


def _problems_of_host(config: Config, model: ModelConfig) -> Iterator[Problem]:
    """Of a node that isn't there, or that can't have this model."""
    host = model.options.get("host")
    if host is None or host in HERE:
        return
    known = (*HERE, *(node.name for node in config.nodes))
    yield from _unless_known("options.host", host, known, "host")
    if model.engine == COMMAND:
        yield "options.host", "commands run on this machine"
    if not model.path.startswith("/"):
        yield "path", "a model on another machine has its whole path there, which begins with /"


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
        kinds = {**options(engine), **kinds}
    return {name: kinds[name] for name in model.options}


def _unless_known(option: str, word: str, known: Collection[str], what: str) -> Iterator[Problem]:
    if word not in known:
        yield option, f"unknown {what} {word!r}; {suggestion(word, known)}"


def written(model: ModelConfig) -> str:
    """The lines of `models` that say the same: YAML, without options at their defaults."""
    data, usual = msgspec.to_builtins(model), msgspec.to_builtins(ModelConfig(name=""))
    said = {name: value for name, value in data.items() if value != usual[name]}
    return yaml.safe_dump([said], sort_keys=False, allow_unicode=True)
