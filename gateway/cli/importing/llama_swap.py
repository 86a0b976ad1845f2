"""llama-swap's configuration as ours: models that llama-server serves there are served by llama.cpp
in this program, the others are commands.

The facts are those of llama-swap's config.example.yaml: macros are replaced from the last to the
first, a model's before the global ones, `${env.NAME}` before all; a value that is nothing but one
macro keeps that macro's type. `${PORT}` stays: our commands know it too.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from config.commands import COMMAND  # the engine, and the setting of a model of it
from config.document import parse
from config.errors import Source
from config.loader import read_text
from config.upstreams import OWN_FIELDS
from gateway.cli.importing import llama_server, tabby
from gateway.cli.importing.imported import SAMPLING, Data, Imported, NotAModel, given

LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - compared, not listened on
DEFAULT, UNGROUPED = "(default)", "ungrouped"  # models that are in no group, and their word
DEFAULT_PROXY = "http://localhost:${PORT}"
UNKNOWN_PORT = 8080  # of a command that says none, llama-server's default
SHORTEST_LOAD, USUAL_LOAD, USUAL_STOP = 15, 120, 10  # seconds, llama-swap's
LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
_ENVIRONMENT = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
_MACRO = re.compile(r"\$\{(?!PORT\}|PID\}|env\.)[A-Za-z0-9_-]+\}")
_FILE = re.compile(r"(?:^|\s)(?:-m|--model)[\s=]+(/\S+\.gguf)(?=\s|$)")
_COMMENT = re.compile(r"^\s*#.*\n?", re.MULTILINE)

READERS = ((llama_server.is_one, llama_server.native), (tabby.is_one, tabby.native))
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
    "upstream": "`/upstream/…` loads the model, whatever the path",
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


def imported(path: Path, *, commands: bool = False) -> Imported:
    """The file at `path`. `commands`: what llama-server serves stays a command.

    Raises ConfigError.
    """
    return translated(read_text(path), str(path), os.environ, commands=commands)


def translated(
    text: str, name: str, environment: Mapping[str, str], *, commands: bool = False
) -> Imported:
    """`text`: of a llama-swap configuration; `name`: for errors. Raises ConfigError."""
    data, source = parse(text, name)
    models = data.get("models") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not (isinstance(models, dict) or data.get("peers")):
        raise source.error("$", "not a configuration of llama-swap: `models` by name are expected")
    translation = _Translation(data, source, environment, commands=commands)
    return Imported(translation.config(), tuple(dict.fromkeys(translation.notes)))


class _Translation:
    """Of one file."""

    def __init__(
        self, data: Data, source: Source, environment: Mapping[str, str], *, commands: bool
    ) -> None:
        self.notes: list[str] = []
        self._commands = commands
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
        for option in sorted(data.keys() - KNOWN):
            self._note(option, WITHOUT_EQUAL.get(option, "it is not known"))
        self._check_names()
        entries = [[*self._model(name, model or {})] for name, model in self._models.items()]
        models = [one for several in entries for one in several]
        all_native = models and not any(COMMAND in one for one in models)
        self._group({model["name"]: model for model in models if "of" not in model})
        level = LEVELS.get(str(data.get("logLevel", "info")), "info")
        if self._keys[0]:
            self._note("apiKeys", "each is a user's key; `role: admin` also loads and unloads")
        engines = {} if all_native else {COMMAND: self._defaults()}
        return given(
            server=given(loading_text=bool(data.get("sendLoadingState"))),
            keys=[{"key": self._secret(key)} for key in self._keys[0]],
            models=models,
            upstreams=[*self._peers()],
            engines=engines,
            swap=given(ttl=data.get("globalTTL")),
            log={} if level == "info" else {"level": level},
        )

    def _defaults(self) -> Data:
        data = self._data
        load = max(SHORTEST_LOAD, data.get("healthCheckTimeout") or USUAL_LOAD)
        stop = data.get("unloadTimeout") or USUAL_STOP
        return given(load_timeout=load, stop_timeout=0 if stop == USUAL_STOP else stop)

    def _check_names(self) -> None:
        seen: dict[str, str] = {}
        for name, model in self._models.items():
            for one in (name, *((model or {}).get("aliases") or ())):
                if seen.setdefault(str(one), name) != name:
                    problem = f"{one!r} is a name of {seen[str(one)]!r}, too"
                    raise self._source.error(f"$.models.{name}", problem)

    def _model(self, name: str, data: Data) -> Iterator[Data]:
        """Its entry, and those of its parameter sets."""
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
        preloaded = ((self._data.get("hooks") or {}).get("on_startup") or {}).get("preload") or ()
        aliases = [*dict.fromkeys(data.get("aliases") or ())]
        ttl = data.get("ttl", -1)
        entry = self._native(where, command, data) or self._command(where, command, data)
        held = given(
            aliases=aliases,
            preload=bool({name, *aliases} & {str(one).strip() for one in preloaded}),
            ttl={-1: None, 0: -1}.get(ttl, ttl),  # theirs: 0 is never, -1 the global one
        )
        yield {"name": name, **entry, **held}
        filters = data.get("filters") or {}
        for preset, sent in (filters.get("setParamsByID") or {}).items():
            if preset != name:
                said = self._sampling(f"{where}.filters.setParamsByID", sent)
                yield {"name": preset, "of": name, **said}

    def _command(self, where: str, command: str, data: Data) -> Data:
        options = {**self._address(where, command, data), **self._options(where, data)}
        if data.get("cmdStop"):
            self._note(f"{where}.cmdStop", _stopped(command))
        file = _FILE.search(command)
        return given(path=file and file[1]) | {COMMAND: command} | given(options=options)

    def _native(self, where: str, command: str, data: Data) -> Data | None:
        """The same as a model of this program; None: it stays a command."""
        native = next((read for is_one, read in READERS if is_one(command)), None)
        if self._commands or native is None:
            return None
        line = self._source.lines.get(f"$.{where}.cmd")
        at = f"{where}.cmd" + (f" (line {line})" if line else "")
        try:
            found = native(command)
        except NotAModel as error:
            self._note(at, f"it stays a command: {error}")
            return None
        self.notes += [f"{at}: {note}" for note in found.notes]
        entry = found.config
        filters = data.get("filters") or {}
        said = self._sampling(f"{where}.filters.setParams", filters.get("setParams") or {})
        for name, values in said.items():
            entry[name] = {**entry.get(name, {}), **values}
        if filters.get("stripParams") or filters.get("strip_params"):
            self._note(f"{where}.filters.stripParams", "what clients send counts")
        if limit := data.get("concurrencyLimit"):
            entry.setdefault("options", {})["max_concurrent"] = limit
        if variables := ", ".join(map(str, data.get("env") or ())):
            self._note(f"{where}.env", f"{variables}: not set for a model here")
        return entry

    def _sampling(self, where: str, sent: Data) -> Data:
        """Parameters of requests as a model's defaults."""
        sampling, rest = {}, {}
        for name, value in sent.items():
            if (ours := SAMPLING.get(name)) is not None:
                sampling[ours] = value
            elif name == "chat_template_kwargs" and isinstance(value, dict):
                rest["template_kwargs"] = value
            else:
                self._note(where, f"{name} can be sent by clients only")
        return given(sampling=sampling) | rest

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
        timeouts, health = data.get("timeouts") or {}, data.get("checkEndpoint")
        for option in sorted(timeouts.keys() - {"responseHeader"}):
            self._note(f"{where}.timeouts.{option}", "connections on this machine need none")
        found = given(
            env=dict(str(one).partition("=")[::2] for one in data.get("env") or ()),
            health="" if health == "/health" else health,
            max_concurrent=data.get("concurrencyLimit"),
            stop_timeout=data.get("unloadTimeout"),
            served_name=data.get("useModelName"),
            first_byte_timeout=timeouts.get("responseHeader"),
        )
        filters = self._filters(f"{where}.filters", data.get("filters") or {})
        return found | filters | self._capabilities(where, data.get("capabilities") or {})

    def _filters(self, where: str, filters: Data) -> Data:
        stripped = str(filters.get("stripParams") or filters.get("strip_params") or "").split(",")
        names = [*dict.fromkeys(name.strip() for name in stripped)]
        drop = [name for name in names if name and self._may_change(where, name)]
        sent = filters.get("setParams") or {}
        values = {name: one for name, one in sent.items() if self._may_change(where, name)}
        return given(drop=drop, set=values)

    def _may_change(self, where: str, name: str) -> bool:
        if name in OWN_FIELDS and name != "model":
            self._note(where, f"{name} belongs to the request itself")
        return name not in OWN_FIELDS

    def _capabilities(self, where: str, data: Data) -> Data:
        taken = data.get("in") or []
        if "audio" in (*taken, *(data.get("out") or ())) or data.get("reranker"):
            self._note(f"{where}.capabilities", "audio and reranker are not listed")
        can = given(tools=data.get("tools"), vision="image" in taken)
        return given(capabilities=[*can], context_length=data.get("context"))

    def _group(self, models: Mapping[str, Data]) -> None:
        """Have the models of each group take turns as they did. Those in no group do it by their
        memory, if nothing has to tell it: a command has.
        """
        router = (self._data.get("routing") or {}).get("router") or {}
        settings = router.get("settings") or {}
        priority = (self._data.get("routing") or {}).get("scheduler") or {}
        if (priority.get("settings") or {}).get("fifo"):
            self._note("routing.scheduler", "models take turns by their waiting requests")
        if router.get("use") == "matrix" or self._data.get("matrix"):
            text = "models run together where their memory fits: give each command its `memory`"
            self._note("matrix", text)
            return
        groups: Data = self._data.get("groups") or settings.get("groups") or {}
        members = {name for group in groups.values() for name in group.get("members") or ()}
        rest = [name for name in models if name not in members]
        if len(rest) > 1 or not groups:
            groups = {**groups, DEFAULT: {"members": rest}}
        for name, group in groups.items():
            known = [models[one] for one in group.get("members") or () if one in models]
            turns = group.get("swap", True) and len(known) > 1
            if name == DEFAULT:
                turns = turns and any(COMMAND in model for model in known)
            self._note_group(name, group, turns=turns, alone=len(groups) == 1)
            said = given(
                one_of=(UNGROUPED if name == DEFAULT else str(name).replace("/", "-"))
                if turns
                else "",
                pinned=bool(group.get("persistent")) and not turns,
            )
            for model in known:
                model.update(said)

    def _note_group(self, name: str, group: Data, *, turns: bool, alone: bool) -> None:
        if turns:
            text = "without `one_of` its models also run together wherever their memory suffices"
            self._note(f"groups.{name}", text)
        if group.get("exclusive", True) and not alone:
            text = "other groups leave only where their memory is needed: give commands `memory`"
            self._note(f"groups.{name}.exclusive", text)
        if group.get("persistent") and turns:
            text = "its models make room for other groups, too: only what takes no turns is pinned"
            self._note(f"groups.{name}.persistent", text)

    def _peers(self) -> Iterator[Data]:
        peers: Data = self._keys[1]
        for name, data in peers.items():
            key, plain = data.get("apiKey"), {k: v for k, v in data.items() if k != "apiKey"}
            peer: Data = self._filled(plain, self._macros)
            models = {f"{name}/{model}": model for model in peer.get("models") or ()}
            url = str(peer.get("proxy") or "").rstrip("/")
            filters = self._filters(f"peers.{name}.filters", peer.get("filters") or {})
            self._note(f"peers.{name}", f"its models are called {name}/… only")
            yield {
                "name": name,
                "urls": [url if url.endswith("/v1") else f"{url}/v1"],
                **given(key=key and self._secret(key)),
                "models": models,
                **filters,
                **given(first_byte_timeout=(peer.get("timeouts") or {}).get("responseHeader")),
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
        if (unknown := _MACRO.search(text)) is not None:
            raise self._source.error("$", f"the macro {unknown[0]} is not defined")
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
