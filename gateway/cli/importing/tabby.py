"""TabbyAPI's folder as a configuration of this program: its config.yml, and the keys beside it.

The facts are those of its config_sample.yml and api_tokens_sample.yml. Its options of a load mean
the same as in a load request, so they go through the same tables (`FilesModule.LOAD_OPTIONS`).
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from backends.contract.catalog import BACKENDS, Translation
from backends.contract.errors import BackendError
from config.document import parse
from config.errors import ConfigError, Source
from config.loader import read_text
from gateway.cli.importing.imported import Data, Imported, NotAModel, given
from gateway.dialects.tabby import DraftWire, LoadWire, engine_options, joined
from gateway.terms.errors import InvalidRequest

SECTIONS = ("network", "model", "draft_model", "lora", "embeddings", "sampling", "memory")
# Of a flag, by its beginning; else it is the model's.
_SECTION = re.compile(
    "(?P<draft_model>draft_|ngram_|dynamic_)|(?P<network>host|port|disable_|api_|send_|log_)|"
    "(?P<memory>sysmem_|cuda_)|(?P<lora>lora)|(?P<embeddings>embedding)|(?P<sampling>override_)"
)
OF_ENTRY = ("name", "preload")  # which the one who runs the command says
PASSED_OVER = ("logging", "developer", "prompt_logging")
# What is so here anyway, or has its place elsewhere in the configuration.
OF_MODEL = {
    *("model_dir", "model_name", "inline_model_loading", "use_dummy_models", "dummy_model_names"),
    *("use_as_default", "backend", "prompt_template", "vision", "template_vars_default"),
    *("reasoning", "reasoning_start_token", "reasoning_end_token", "start_in_reasoning"),
    *("tool_calls_in_reasoning", "tool_format", "harmony", "muse_glimmer"),
    *("reasoning_budget_message",),
}
HERE_ANYWAY = ("draft_model_dir", "draft_model_name", "cuda_malloc_async")
LOADED = {*LoadWire.__struct_fields__, *DraftWire.__struct_fields__} - OF_MODEL


def imported(path: Path) -> Imported:
    """The config.yml at `path`, or in that folder. Raises ConfigError."""
    file = path / "config.yml" if path.is_dir() else path
    folder, source = _folder(read_text(file), file)
    return Imported(folder.config(source), tuple(folder.notes))


def is_one(command: str) -> bool:
    """Whether `command` may start a TabbyAPI itself: `python main.py`."""
    with suppress(ValueError):
        program, script = (PurePath(word).name for word in shlex.split(command)[:2])
        return program.startswith("python") and script == "main.py"
    return False


def native(command: str) -> Imported:
    """The model that `command` serves, as an entry of `models`, by its config.yml and the flags
    over that; what of it has no equal. Raises NotAModel.
    """
    _, script, *words = shlex.split(command)
    flags: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            flags.append(list(filter(None, word[2:].partition("=")[::2])))
        elif flags:
            flags[-1].append(word)
    options = {name.replace("-", "_"): values for name, *values in flags}
    (named,) = options.pop("config", None) or [""]
    file = Path(named or PurePath(script).parent / "config.yml").absolute()
    try:
        text = read_text(file) if named or file.is_file() else "model: {}"
        folder, _ = _folder(text, file)
        entry = next(folder.with_flags(options), {"path": "none is named"})
    except (ConfigError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotAModel(f"{file}: {error}") from error
    if not Path(entry["path"]).exists():
        raise NotAModel(f"its model isn't there: {entry['path']}")
    return Imported({k: v for k, v in entry.items() if k not in OF_ENTRY}, tuple(folder.notes))


def _folder(text: str, file: Path) -> tuple["_Folder", Source]:
    data, source = parse(text, str(file))
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise source.error("$", "not TabbyAPI's configuration: a section `model` is expected")
    for name in SECTIONS:
        if not isinstance(data.get(name) or {}, dict):
            raise source.error(f"$.{name}", "a section is expected")
    folder = _Folder(file.parent, {name: data.get(name) or {} for name in SECTIONS})
    for name in sorted(data.keys() - {*SECTIONS, *PASSED_OVER}):
        folder.notes.append(f"{name}: it is not known")
    return folder, source


class _Folder:
    """TabbyAPI's folder: `sections` of its configuration."""

    def __init__(self, root: Path, sections: Mapping[str, Data]) -> None:
        self.notes: list[str] = []
        self._root = root
        self._sections = sections

    def config(self, source: Source) -> Data:
        """In the order of default.yaml."""
        network, model = self._sections["network"], self._sections["model"]
        preset = self._sections["sampling"].get("override_preset")
        presets, templates = self._root / "sampler_overrides", self._root / "templates"
        return given(
            server=given(host=network.get("host"), port=network.get("port")),
            keys=[] if network.get("disable_auth") else self._keys(source),
            models=[*self._model(model), *self._encoder()],
            model_dirs=[str(self._root / (model.get("model_dir") or "models"))],
            template_dir=str(templates) if templates.is_dir() else "",
            preset_dir=str(presets) if presets.is_dir() else "",
            preset=preset if (presets / f"{preset}.yml").is_file() else "",
        )

    def _keys(self, source: Source) -> list[Data]:
        file = self._root / "api_tokens.yml"
        if not file.is_file():
            self.notes.append("api_tokens.yml: not there; `serve --new-key` makes a key")
            return []
        data, _ = parse(read_text(file), str(file))
        given = data if isinstance(data, dict) else {}
        users = given.get("api_key") or []
        keys = [{"key": str(key)} for key in (users if isinstance(users, list) else [users])]
        admin = given.get("admin_key")
        return [*keys, *([{"key": str(admin), "role": "admin"}] if admin else [])]

    def with_flags(self, flags: Mapping[str, Sequence[str]]) -> Iterator[Data]:
        """The model, where these go over the file's options."""
        for name, values in flags.items():
            read = [parse(value, name)[0] for value in values]
            section = (found := _SECTION.match(name)) and found.lastgroup
            self._sections[section or "model"][name] = read[0] if len(read) == 1 else read
        return self._model(self._sections["model"])

    def _model(self, model: Data) -> Iterator[Data]:
        name = model.get("model_name")
        if not name:
            return
        path = self._root / (model.get("model_dir") or "models") / str(name)
        backend = str(model.get("backend") or _recognised(path))
        options, own = self._options(model, backend)
        if model.get("vision") is False and "vision" in own:
            options |= own["vision"](model["vision"])
        template = model.get("prompt_template")
        file = self._root / "templates" / f"{template}.jinja"
        if template and not file.is_file():
            self.notes.append(f"model.prompt_template: {template} has no file in templates/")
        yield given(
            name=str(name),
            path=str(path),
            backend=backend,
            preload=True,
            template_kwargs=model.get("template_vars_default"),
            template=str(file) if template and file.is_file() else "",
            options=options,
        )

    def _options(self, model: Data, backend: str) -> tuple[Data, Mapping[str, Translation]]:
        """Of the engine, and what the engine has."""
        if backend not in BACKENDS:
            self.notes.append("model: its options need `backend`, or its files in their place")
            return {}, {}
        own = BACKENDS[backend].files.LOAD_OPTIONS
        draft = self._sections["draft_model"]
        asked = {
            **{f"model.{name}": value for name, value in model.items() if name not in OF_MODEL},
            **{f"draft_model.{name}": value for name, value in draft.items()},
            **{f"memory.{name}": value for name, value in self._sections["memory"].items()},
        }
        options: Data = {}
        for place, value in asked.items():
            name = place.partition(".")[2]
            if value in (None, {}, [], False) or name in HERE_ANYWAY:
                continue
            if name not in LOADED:
                self.notes.append(f"{place}: it has no equal")
                continue
            try:
                options = joined(options, engine_options({name: value}, backend, own, ()))
            except InvalidRequest as error:
                self.notes.append(f"{place}: {error}")
        if (drafting := draft.get("draft_model_name")) and "draft_model" in own:
            path = self._root / (draft.get("draft_model_dir") or "models") / str(drafting)
            options = joined(options, own["draft_model"](str(path)))
        return joined(options, self._adapters()), own

    def _adapters(self) -> Data:
        section = self._sections["lora"]
        folder = self._root / (section.get("lora_dir") or "loras")
        loras = [one for one in section.get("loras") or () if isinstance(one, dict)]
        if not loras:
            return {}
        return {
            "adapters": {str(one["name"]): str(folder / str(one["name"])) for one in loras},
            "adapter_scaling": {str(one["name"]): one.get("scaling", 1.0) for one in loras},
        }

    def _encoder(self) -> Iterator[Data]:
        section = self._sections["embeddings"]
        if name := section.get("embedding_model_name"):
            path = self._root / (section.get("embedding_model_dir") or "models") / str(name)
            yield {"name": str(name), "path": str(path)}


def _recognised(path: Path) -> str:
    with suppress(BackendError):
        return BACKENDS.recognise(path).backend
    return ""
