"""The configuration of a run: a file, under the environment, under what the caller sets; and the
check of what an option's type can't say: names of devices, hosts and origins.

`ROUNDHOUSE_SERVER_PORT=9000` is `server.port`: the names of variables are those of all options,
joined by underscores. Lists are separated by commas or written as JSON, mappings are JSON.

Reads that one file and nothing else: the environment is handed in. Whether files, folders and
models are there is not asked here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from config.check import convert
from config.document import parse
from config.errors import COMMAND_LINE, Problem, Source, suggestion, whole
from config.mcp import check_servers
from config.models import check_names, check_options, engines_of, option_kinds
from config.nodes import check_nodes
from config.secrets import Secrets, variable_of
from config.settings import Config, KeyConfig
from config.shape import (
    Kind,
    Option,
    is_path,
    leaves,
    list_item,
    mapped,
    mapping_in,
    mapping_item,
    marked,
    takes_none,
    with_option,
)
from config.upstreams import completed
from config.values import UNIX, fault, requested

# A device, another machine's, or what only makes models take turns: `one at a time`.
DEVICE = re.compile(r"(?P<node>[A-Za-z0-9._-]+/)?(?:cpu|[a-z]+:[0-9]+)|one [^/]+")
# Host of RFC 9110, section 7.2: a name or an address, and perhaps a port.
HOST = re.compile(r"(?P<name>[a-z0-9._-]+?|\[[0-9a-f:.]+\])\.?(?::[0-9]*)?", re.IGNORECASE)
# A name of RFC 1123, whose last part is no number: else it would be an address.
NAME = re.compile(r"(?:[a-z0-9_-]+\.)*(?![0-9]+\.?$)[a-z0-9_-]+\.?", re.IGNORECASE)
# Origin of the Fetch standard: a scheme and a host. Extensions of browsers have schemes of theirs.
ORIGIN = re.compile(rf"\*|null|[a-z][a-z0-9+.-]*://{HOST.pattern}", re.IGNORECASE)


def check_consistency(config: Config, sources: dict[str, Source]) -> None:
    """`sources`: of the sections that have another one than the file. Raises ConfigError."""
    for option, problem in _problems(config):
        section = option.partition(".")[0]
        raise sources[section].error(f"$.{option}", problem)


def _problems(config: Config) -> Iterator[Problem]:
    for device in config.swap.memory:
        known = DEVICE.fullmatch(device)
        if known is None:
            yield f"swap.memory.{device}", "unknown device; expected cpu or cuda:0"
        elif known["node"] and config.cluster is None:
            yield f"swap.memory.{device}", "other machines' devices need a `cluster`"
    for option in ("join.url", "join.advertise", "hub.endpoint", "tracing.endpoint"):
        url = attrgetter(option)(config)
        if url is not None and (problem := fault(requested, url)) is not None:
            yield option, problem
    if not _is_address(config.server.host):
        problem = "not an address; expected one like 127.0.0.1, ::1, *, a name, or unix:/run/x.sock"
        yield "server.host", f"{config.server.host!r} is {problem}"
    for name, (is_right, expected) in _LISTED.items():
        for index, text in enumerate(getattr(config.server, name)):
            if not is_right(text):
                yield f"server.{name}[{index}]", f"expected {expected}, got {text!r}"


# Of `server`, what each text in a list is.
_LISTED: Mapping[str, tuple[Callable[[str], object], str]] = {
    "hosts": (HOST.fullmatch, "a name without scheme or path"),
    "trusted_proxies": (
        lambda text: text == "*" or fault(ip_network, text) is None,
        "an address, a network like 10.0.0.0/8, or '*'",
    ),
    "cors_origins": (ORIGIN.fullmatch, "an origin like https://chat.example"),
}


def _is_address(host: str) -> bool:
    """Whether it can be listened on: `server.port` has the port."""
    if host == "*" or host.startswith(f"{UNIX}/"):
        return True
    return fault(ip_address, host) is None or NAME.fullmatch(host) is not None


FILE = Path("roundhouse.yaml")
PREFIX = "ROUNDHOUSE_"
# What Kubernetes (and Docker's links) set of a service that is called as this program.
SERVICE = re.compile(
    r"\w+_SERVICE_(?:HOST|PORT\w*)=.*|\w+_PORT_\d+_(?:TCP|UDP|SCTP)\w*=.*|\w+_PORT=\w+://.*"
)
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
    environment: Mapping[str, str],
    overrides: Mapping[str, str],
    others: frozenset[str],
    config: type[Config],
) -> Iterator[Setting]:
    """What `environment` sets, and over that `overrides`. `others` are variables with our prefix
    that mean something else.

    Raises ConfigError for an unknown variable with our prefix and for a value of the wrong type.
    """
    known = variables(config)
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in others | CLIENTS:
            continue
        if SERVICE.fullmatch(f"{name}={environment[name]}"):
            continue
        if name not in known:
            raise Source(name).error("$", f"unknown variable; {suggestion(name, known)}")
        yield _setting(*known[name], environment[name], Source(name))
    options = {".".join(option): (option, kind) for option, kind in known.values()}
    for name, text in overrides.items():
        yield _setting(*options[name], text, COMMAND_LINE)


def _setting(option: Option, kind: Kind, text: str, source: Source) -> Setting:
    """`text` as the option's kind; an empty one is None where the option may be None."""
    path = ".".join(("$", *option))
    data: object = text
    may_be_json = mapping_in(kind) is not None and text.lstrip().startswith("{")
    if list_item(kind) is not None and not text.lstrip().startswith("["):
        data = [part.strip() for part in text.split(",") if part.strip()]
    elif list_item(kind) is not None or mapping_item(kind) is not None or may_be_json:
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise source.error(path, f"not JSON: {error}") from None
    elif not text and takes_none(kind):
        data = None
    return Setting(option, convert(data, kind, source, path=path, strict=False), source)


def load_config(
    path: Path | None,
    environment: Mapping[str, str],
    *,
    text: str | None = None,
    overrides: Mapping[str, str] = {},
    sampling: type[msgspec.Struct] | None = None,
    kind: type[Config] = Config,
) -> Config:
    """The configuration in `path`, or the defaults. `text`: what the file would hold.

    Variables of `environment` go over the file, and `overrides` (`{"server.port": "9000"}`) over
    both. `sampling` is the struct that the models' sampling defaults must fit; this floor doesn't
    know it. `kind`: a configuration with further engines, say. Relative paths in the file start at
    its folder. Raises ConfigError.
    """
    if text is None and path is not None:
        text = read_text(path)
    named = "the configuration" if text is None else str(path or FILE)
    document, source = parse(text or "", named)

    def read(data: object, source: Source) -> Config:
        config = _understood(data, source, path or FILE, kind)
        sources = dict.fromkeys(kind.__struct_fields__, source)
        others = _secret_variables(config)
        for setting in settings(environment, overrides, others, kind):
            config = with_option(config, setting.option, setting.value)
            sources[setting.option[0]] = setting.source
        check_options(config, sources["models"], sampling)
        check_names(config, sources["models"])
        check_consistency(config, sources)
        secrets = Secrets(environment, path.resolve().parent if path else Path.cwd())
        return _completed(config, secrets, sources)

    return whole(read, document, source)


def _completed(config: Config, secrets: Secrets, sources: Mapping[str, Source]) -> Config:
    """With its secrets in place, and what depends on them checked."""

    def found(value: Any, kind: Kind, path: str) -> Any:
        section = path.split(".")[1].partition("[")[0]
        return secrets.find(value, sources[section], path) if _is_secret(value, kind) else value

    config = mapped(config, type(config), found)
    _check_keys(config.keys, sources["keys"])
    check_nodes(config.nodes, sources["nodes"])
    labels = [key.label or f"key {number}" for number, key in enumerate(config.keys, 1)]
    check_servers(config.mcp, labels, sources["mcp"])
    upstreams = completed(config.upstreams, sources["upstreams"])
    return msgspec.structs.replace(config, upstreams=upstreams)


def locate(environment: Mapping[str, str], here: Path) -> Path | None:
    """`./roundhouse.yaml`, else `$XDG_CONFIG_HOME/roundhouse/config.yaml`, where there is one."""
    home = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '~')}/.config"
    candidates = (here / FILE, Path(home) / "roundhouse" / "config.yaml")
    return next((path for path in candidates if path.is_file()), None)


def read_text(path: Path) -> str:
    """The file's text. Raises ConfigError."""
    return Source(str(path)).text(path)


def _understood(data: object, source: Source, path: Path, kind: type[Config]) -> Config:
    config = convert(data, kind, source)
    check_options(config, source, None)  # before their paths are made absolute
    return rooted(config, path.resolve().parent)


class OptionOrigin(msgspec.Struct, frozen=True):
    """Where an option's value comes from: `where` is a file and line, or a variable's name."""

    source: Literal["default", "file", "variable", "command line"]
    where: str | None = None


DEFAULT, ON_COMMAND_LINE = OptionOrigin("default"), OptionOrigin("command line")


def origins(
    text: str | None,
    path: Path | None,
    environment: Mapping[str, str],
    *,
    overrides: Mapping[str, str] = {},
) -> Mapping[Option, OptionOrigin]:
    """Of every option that isn't at its default, as `load_config` reads them. Raises
    ConfigError.
    """
    found: dict[Option, OptionOrigin] = {}
    config = Config()
    if text is not None:
        data, source = parse(text, str(path or FILE))
        config = _understood(data, source, path or FILE, Config)
        for option, _ in leaves(Config):
            if (line := source.lines.get(".".join(("$", *option)))) is not None:
                found[option] = OptionOrigin("file", f"{source.name}:{line}")
    for setting in settings(environment, overrides, _secret_variables(config), Config):
        variable = OptionOrigin("variable", setting.source.name)
        found[setting.option] = ON_COMMAND_LINE if setting.source is COMMAND_LINE else variable
    return found


def _is_secret(value: object, kind: Kind) -> bool:
    return value is not None and bool(marked(kind, "secret"))


def _secret_variables(config: Config) -> frozenset[str]:
    """Variables that hold secrets, whatever they are called."""
    found: set[str] = set()

    def note(value: Any, kind: Kind, _path: str) -> Any:
        if _is_secret(value, kind):
            found.add(variable_of(value))
        return value

    mapped(config, type(config), note)
    return frozenset(found)


def _check_keys(keys: tuple[KeyConfig, ...], source: Source) -> None:
    known: set[str] = set()
    for index, key in enumerate(keys):
        if key.key in known:
            raise source.error(f"$.keys[{index}].key", "the same key is listed twice")
        known.add(key.key)


# The relative paths of a configuration file, made absolute. Whether they exist is not asked.


def rooted(config: Config, root: Path) -> Config:
    """`config` with its relative paths made absolute, from `root`.

    The models' options must have been checked.
    """

    def placed(value: Any, kind: Kind, _path: str) -> Any:
        is_text = isinstance(value, str) and value and is_path(kind)
        return _rooted_text(value, root) if is_text else value

    whole: Config = mapped(config, type(config), placed)
    known, models = engines_of(type(config)), []
    for model in whole.models:  # whose options aren't typed yet
        kinds = option_kinds(model, known)
        own = {name: mapped(one, kinds[name], placed) for name, one in model.options.items()}
        models.append(msgspec.structs.replace(model, options=own))
    return msgspec.structs.replace(whole, models=tuple(models))


def _rooted_text(text: str, root: Path) -> str:
    scheme, colon, _ = text.partition(":")
    if colon and len(scheme) > 1 and scheme.isalpha():  # https://…, hf:owner/name
        return text
    return str(root / Path(text).expanduser())
