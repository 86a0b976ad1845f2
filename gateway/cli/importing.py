"""`roundhouse import llama-swap FILE`: another program's configuration as ours, and what of it has
no equal.

The facts are those of llama-swap's config.example.yaml: macros are replaced from the last to the
first, a model's before the global ones, `${env.NAME}` before all; a value that is nothing but one
macro keeps that macro's type. `${PORT}` stays: our commands know it too.
"""

import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
import yaml

from backends.contract.samplers import Sampling
from config.commands import COMMAND  # the engine, and the setting of a model of it
from config.document import parse
from config.errors import Source
from config.loader import load_text, read_text
from config.upstreams import OWN_FIELDS
from gateway.cli import CommandFailed

Data: TypeAlias = dict[str, Any]  # YAML's own shape

HEAD = """# Written by `roundhouse import llama-swap`. All options: `roundhouse config`.
"""
LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - compared, not listened on
DEFAULT_PROXY = "http://localhost:${PORT}"
UNKNOWN_PORT = 8080  # of a command that says none, llama-server's default
SHORTEST_LOAD, USUAL_LOAD, USUAL_STOP = 15, 120, 10  # seconds, llama-swap's
LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
_ENVIRONMENT = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
_COMMENT = re.compile(r"^\s*#.*\n?", re.MULTILINE)

# What is not read here although it is a setting of llama-swap's, and what is there instead.
WITHOUT_EQUAL: Mapping[str, str] = {
    "captureBuffer": "requests are not recorded",
    "includeAliasesInList": "lists have aliases in a model's `aliases`",
    "logRequests": "requests are always logged",
    "logTimeFormat": "the log has ISO times",
    "logToStdout": "the log goes to stderr, commands' output included (`log_output`)",
    "metricsMaxInMemory": "`/metrics` and the console need no such limit",
    "performance": "the console and `/metrics` show memory",
    "profiles": "names are fixed; use `aliases` and a reload",
    "selectors": "names stand for one model; an upstream's `fallbacks` replace it where it fails",
    "store": "activity is not kept over restarts",
    "ui": "the console needs no such setting",
    "upstream": "other routes of a model's server are not passed on",
}
OF_MODELS: Mapping[str, str] = {
    "compat": "websockets are not passed on",
    "description": "lists have no descriptions",
    "metadata": "lists have no data of your own",
    "name": "lists show the model's name and aliases",
    "sendLoadingState": "`loading_text` is set for the server, a key or a request, not for a model",
    "unlisted": "every model is listed; `keys[].models` hides models from a key",
}
KNOWN_OF_MODELS = {
    *("aliases", "capabilities", "checkEndpoint", "cmd", "cmdStop", "concurrencyLimit", "env"),
    *("filters", "macros", "proxy", "timeouts", "ttl", "unloadTimeout", "useModelName"),
}
KNOWN = {
    *("apiKeys", "globalTTL", "groups", "healthCheckTimeout", "hooks", "logLevel", "macros"),
    *("matrix", "models", "peers", "routing", "sendLoadingState", "startPort", "unloadTimeout"),
}


class Imported(msgspec.Struct, frozen=True):
    """Our configuration, and what of the other one it doesn't say."""

    config: Data
    notes: tuple[str, ...]


def run(arguments: Namespace) -> int:
    """Writes the configuration to stdout or a new file, the notes to stderr. Raises ConfigError,
    CommandFailed.
    """
    path: Path = arguments.file
    imported = translated(read_text(path), str(path), os.environ)
    text = HEAD + written(imported.config)
    load_text(text, path.with_name("roundhouse.yaml"), os.environ, sampling=Sampling)
    for note in imported.notes:
        print(f"roundhouse: {note}", file=sys.stderr)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        with arguments.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandFailed(f"{arguments.output} is there already") from None
    return 0


def written(config: Data) -> str:
    """As YAML, in which a command of several lines is read easily."""
    return yaml.dump(config, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines in blocks."""


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)


def translated(text: str, name: str, environment: Mapping[str, str]) -> Imported:
    """`text`: of a llama-swap configuration; `name`: for errors. Raises ConfigError."""
    data, source = parse(text, name)
    if not isinstance(data, dict) or not isinstance(data.get("models", {}), dict):
        raise source.error("$", "not a configuration of llama-swap: `models` by name are expected")
    translation = _Translation(data, source, environment)
    return Imported(translation.config(), tuple(dict.fromkeys(translation.notes)))


class _Translation:
    """Of one file."""

    def __init__(self, data: Data, source: Source, environment: Mapping[str, str]) -> None:
        self.notes: list[str] = []
        self._source = source
        self._environment = environment
        self._macros: Data = data.get("macros") or {}
        # Where keys may stand, references stay what they are: they become ours.
        self._keys: list[Any] = [data.get("apiKeys") or [], data.get("peers") or {}]
        apart = ("models", "macros", "apiKeys", "peers")
        plain = {key: value for key, value in data.items() if key not in apart}
        self._data: Data = self._filled(plain, self._macros)
        self._models: Data = data.get("models") or {}

    def config(self) -> Data:
        """In the order of default.yaml, what is at its default left out."""
        data = self._data
        for option, instead in WITHOUT_EQUAL.items():
            if option in data:
                self._note(option, instead)
        for option in sorted(data.keys() - KNOWN - WITHOUT_EQUAL.keys()):
            self._note(option, "it is not known")
        models = [self._model(name, model or {}) for name, model in self._models.items()]
        budgets = self._grouped({model["name"]: model for model in models})
        ttl = data.get("globalTTL") or 0
        level = LEVELS.get(str(data.get("logLevel", "info")), "info")
        found = {
            "server": {"loading_text": True} if data.get("sendLoadingState") else {},
            "keys": [{"key": self._secret(key)} for key in self._keys[0]],
            "models": models,
            "upstreams": [*self._peers()],
            "engines": {COMMAND: self._defaults()},
            "swap": {
                **({"memory": budgets} if budgets else {}),
                **({"ttl": ttl} if ttl else {}),
            },
            "log": {} if level == "info" else {"level": level},
        }
        if found["keys"]:
            self._note("apiKeys", "each is a user's key; `role: admin` also loads and unloads")
        return {section: value for section, value in found.items() if value}

    def _defaults(self) -> Data:
        data = self._data
        load = max(SHORTEST_LOAD, data.get("healthCheckTimeout") or USUAL_LOAD)
        stop = data.get("unloadTimeout") or USUAL_STOP
        return {"load_timeout": load, **({} if stop == USUAL_STOP else {"stop_timeout": stop})}

    def _model(self, name: str, data: Data) -> Data:
        where = f"models.{name}"
        macros = {"MODEL_ID": name, **self._macros, **(data.get("macros") or {})}
        if isinstance(data.get("cmd"), str):  # a macro in a comment would be a command
            data = {**data, "cmd": _COMMENT.sub("", data["cmd"])}
        data = self._filled({k: v for k, v in data.items() if k != "macros"}, macros)
        for option in sorted(data.keys() - KNOWN_OF_MODELS):
            self._note(f"{where}.{option}", OF_MODELS.get(option, "it is not known"))
        lines = map(str.strip, str(data.get("cmd") or "").splitlines())
        command = "\n".join(filter(None, lines))
        if not command:
            raise self._source.error(f"$.{where}", "`cmd` is missing")
        options = {**self._address(where, command, data), **self._options(where, data)}
        preloaded = ((self._data.get("hooks") or {}).get("on_startup") or {}).get("preload") or ()
        aliases = [*dict.fromkeys(data.get("aliases") or ())]
        ttl = data.get("ttl", -1)
        found = {
            "name": name,
            COMMAND: command,
            "options": options,
            "aliases": aliases,
            "preload": bool({name, *aliases} & {str(one).strip() for one in preloaded}),
            # Theirs: 0 is never, -1 the global one.
            "ttl": {-1: None, 0: -1}.get(ttl, ttl),
        }
        if data.get("cmdStop"):
            self._note(f"{where}.cmdStop", _stopped(command))
        needed = ("name", COMMAND)
        return {key: value for key, value in found.items() if value or key in needed}

    def _address(self, where: str, command: str, data: Data) -> Data:
        """Where its server listens, if that isn't the port that it is given."""
        proxy = str(data.get("proxy") or DEFAULT_PROXY)
        parts = urlsplit(proxy.replace("${PORT}", "1"))
        found: Data = {}
        if parts.hostname not in LOCAL or parts.path not in ("", "/"):
            self._note(f"{where}.proxy", f"{proxy}: only this machine's own address is asked")
        if "${PORT}" not in command:
            found["port"] = UNKNOWN_PORT if "${PORT}" in proxy else parts.port or 80
        if found.get("port") == UNKNOWN_PORT:
            self._note(f"{where}.cmd", f"without ${{PORT}} it is asked at port {UNKNOWN_PORT}")
        return found

    def _options(self, where: str, data: Data) -> Data:
        found: Data = {}
        if env := dict(str(one).partition("=")[::2] for one in data.get("env") or ()):
            found["env"] = env
        if (health := data.get("checkEndpoint")) not in (None, "", "/health"):
            found["health"] = health
        if limit := data.get("concurrencyLimit"):
            found["max_concurrent"] = limit
        if stop := data.get("unloadTimeout"):
            found["stop_timeout"] = stop
        if served := data.get("useModelName"):
            found["served_name"] = served
        timeouts = data.get("timeouts") or {}
        if first := timeouts.get("responseHeader"):
            found["first_byte_timeout"] = first
        for option in sorted(timeouts.keys() - {"responseHeader"}):
            self._note(f"{where}.timeouts.{option}", "connections on this machine need none")
        filters = self._filters(f"{where}.filters", data.get("filters") or {})
        return found | filters | self._capabilities(where, data.get("capabilities") or {})

    def _filters(self, where: str, filters: Data) -> Data:
        stripped = str(filters.get("stripParams") or filters.get("strip_params") or "").split(",")
        names = [*dict.fromkeys(name.strip() for name in stripped)]
        drop = [name for name in names if name and self._may_change(where, name)]
        given = filters.get("setParams") or {}
        values = {name: one for name, one in given.items() if self._may_change(where, name)}
        if filters.get("setParamsByID"):
            text = "an alias has no parameters of its own; clients can send them"
            self._note(f"{where}.setParamsByID", text)
        return {**({"drop": drop} if drop else {}), **({"set": values} if values else {})}

    def _may_change(self, where: str, name: str) -> bool:
        if name in OWN_FIELDS and name != "model":
            self._note(where, f"{name} belongs to the request itself")
        return name not in OWN_FIELDS

    def _capabilities(self, where: str, data: Data) -> Data:
        taken = data.get("in") or []
        found: Data = {}
        can = [*(["tools"] if data.get("tools") else []), *(["vision"] if "image" in taken else [])]
        if can:
            found["capabilities"] = can
        if context := data.get("context"):
            found["context_length"] = context
        if "audio" in (*taken, *(data.get("out") or ())) or data.get("reranker"):
            self._note(f"{where}.capabilities", "audio and reranker are not listed")
        return found

    def _grouped(self, models: Mapping[str, Data]) -> Data:
        """Budgets under which the models take turns as they did. A group that runs one model at a
        time is a device of its own, of which each of its models takes all.
        """
        router = (self._data.get("routing") or {}).get("router") or {}
        settings = router.get("settings") or {}
        priority = (self._data.get("routing") or {}).get("scheduler") or {}
        if (priority.get("settings") or {}).get("fifo"):
            self._note("routing.scheduler", "models take turns by their waiting requests")
        if router.get("use") == "matrix" or self._data.get("matrix"):
            text = "models run together where their memory fits: give each its `memory`"
            self._note("matrix", text)
            return {}
        groups: Data = self._data.get("groups") or settings.get("groups") or {}
        members = {name for group in groups.values() for name in group.get("members") or ()}
        rest = [name for name in models if name not in members]
        if rest and (len(rest) > 1 or not groups):
            groups = {**groups, "(default)": {"members": rest}}
        budgets: Data = {}
        for number, (name, group) in enumerate(groups.items()):
            known = [models[one] for one in group.get("members") or () if one in models]
            self._note_group(name, group, alone=len(groups) == 1)
            for model in known if group.get("persistent") else ():
                model["pinned"] = True
            if group.get("swap", True) and len(known) > 1:
                budgets[f"group:{number}"] = 1
                for model in known:
                    model.setdefault("options", {})["memory"] = {f"group:{number}": 1}
        if budgets:
            text = "give models `memory` and they also run together wherever it suffices"
            self._note("groups", text)
        return budgets

    def _note_group(self, name: str, group: Data, *, alone: bool) -> None:
        if group.get("exclusive", True) and not alone:
            text = "other groups leave only where their memory is needed: give models `memory`"
            self._note(f"groups.{name}.exclusive", text)
        if group.get("persistent") and group.get("swap", True):
            self._note(f"groups.{name}.persistent", "pinned models don't make room for each other")

    def _peers(self) -> Iterator[Data]:
        peers: Data = self._keys[1]
        for name, data in peers.items():
            key, plain = data.get("apiKey"), {k: v for k, v in data.items() if k != "apiKey"}
            peer: Data = self._filled(plain, self._macros)
            models = {f"{name}/{model}": model for model in peer.get("models") or ()}
            first = (peer.get("timeouts") or {}).get("responseHeader")
            url = str(peer.get("proxy") or "").rstrip("/")
            filters = self._filters(f"peers.{name}.filters", peer.get("filters") or {})
            self._note(f"peers.{name}", f"its models are called {name}/… only")
            yield {
                "name": name,
                "urls": [url if url.endswith("/v1") else f"{url}/v1"],
                **({"key": self._secret(key)} if key else {}),
                "models": models,
                **filters,
                **({"first_byte_timeout": first} if first else {}),
            }

    def _filled(self, value: Any, macros: Data) -> Any:
        """`value` with its macros replaced, wherever they stand in it."""
        match value:
            case str():
                return self._text(value, macros)
            case dict():
                return {self._key(k, macros): self._filled(v, macros) for k, v in value.items()}
            case list():
                return [self._filled(one, macros) for one in value]
        return value

    def _key(self, key: Any, macros: Data) -> Any:
        return str(self._text(key, macros)) if isinstance(key, str) else key

    def _text(self, text: str, macros: Data) -> Any:
        for name in reversed(macros):
            whole = f"${{{name}}}"
            if text == whole:
                one = macros[name]
                if not isinstance(one, str):
                    return one
                text = one
            text = text.replace(whole, str(macros[name]))
        return _ENVIRONMENT.sub(self._variable, text)

    def _variable(self, found: re.Match[str]) -> str:
        name = found[1]
        if name not in self._environment:
            raise self._source.error("$", f"the variable {name} is not set, which it names")
        self._note(found[0], "replaced by its value, as it is now")
        return self._environment[name]

    def _secret(self, key: Any) -> str:
        """A variable that holds a key stays out of the file."""
        text = str(key)
        if (found := _ENVIRONMENT.fullmatch(text)) is not None:
            return f"env:{found[1]}"
        return str(self._text(text, self._macros))

    def _note(self, what: str, instead: str) -> None:
        self.notes.append(f"{what}: {instead}")


def _stopped(command: str) -> str:
    """What becomes of a command that was stopped by another one."""
    words: Sequence[str] = []
    with suppress(ValueError):
        words = shlex.split(command)
    if words[:2] in (["docker", "run"], ["podman", "run"]):
        return "SIGTERM goes to `docker run`, which passes it on to its container (not with `-d`)"
    return "commands are stopped by SIGTERM, then SIGKILL (`stop_timeout`)"
