"""The configuration of a command: the file's, with the models of its arguments and the user's
folders; its findings, what is wrong though a server can start with it (folders, devices and models
that aren't there); and `roundhouse config`, which prints every option with its default.
"""

from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import msgspec

import bundled
from backends.contract.catalog import BACKENDS, absent, command
from backends.contract.errors import LoadFailed, UnsupportedModel
from config.commands import missing_program
from config.errors import COMMAND_LINE
from config.secrets import Secrets
from config.settings import Config, KeyConfig, ModelConfig
from config.values import hub_id, is_on_hub, user_folder
from gateway.cli import folder_of_models
from gateway.registry.entry import ModelEntry
from gateway.registry.library import ModelLibrary

SCHEMA = "$schema="  # an editor's, in the first line; relative to the file


def run(_arguments: Namespace) -> int:
    """Prints default.yaml, whose schema an editor finds wherever the text is saved."""
    folder = files("config")
    text = folder.joinpath("default.yaml").read_text("utf-8")
    print(text.replace(SCHEMA, f"{SCHEMA}{folder.joinpath('')}/", 1), end="")
    return 0


def with_models(
    config: Config,
    models: Sequence[str],
    folders: Sequence[str] = (),
    *,
    file: Path | None = None,  # the configuration's, where it was named
) -> Config:
    """The models named on the command line: before those of a configuration that was named, too,
    and instead of those of one that was only found. With none at all, the bundled one. `folders`
    are searched for more, as is a named folder that is no model itself.

    Raises ConfigError.
    """
    if models and file is None:
        config = msgspec.structs.replace(config, models=(), model_dirs=(), default_model=None)
    if not (models or folders or config.models or config.model_dirs or config.upstreams):
        models = [str(bundled.GGUF)]
    searched = [*folders, *filter(_is_folder_of_models, models)]
    named = tuple(model_of(text) for text in models if text not in searched)
    taken = {model.name for model in config.models}
    if clash := [model.name for model in named if model.name in taken]:
        raise COMMAND_LINE.error("MODEL", f"{clash[0]} is also in the configuration")
    dirs = tuple(dict.fromkeys((*map(folder_of_models, searched), *config.model_dirs)))
    return msgspec.structs.replace(config, models=named + config.models, model_dirs=dirs)


def model_of(text: str) -> ModelConfig:
    """The model that `text` names, a path or a place on a hub. Raises ConfigError when there is
    nothing at the path.
    """
    if is_on_hub(text):
        return ModelConfig(name=hub_id(text), path=text)
    path = Path(text)
    if not path.exists():
        raise COMMAND_LINE.error("MODEL", f"file or folder not found: {path}")
    whole = path.absolute()  # links as they are: their owners may lead them elsewhere
    with suppress(LoadFailed):  # which is said elsewhere
        path = BACKENDS.recognise(whole).path  # a folder's only file
    return ModelConfig(name=BACKENDS.bare_name(path.name), path=str(whole))


def _is_folder_of_models(text: str) -> bool:
    """Whether it is a folder that no backend reads as one model."""
    if is_on_hub(text) or not Path(text).is_dir():
        return False
    try:
        BACKENDS.recognise(Path(text))
    except LoadFailed as error:  # of another kind: it is one model, which can't be used
        return isinstance(error, UnsupportedModel)
    return False


def refuse_unusable(models: Sequence[str]) -> None:
    """Raises ConfigError for a model of the command line that can't be used: a server without it is
    not what was meant.
    """
    for text in models:
        if not (is_on_hub(text) or _is_folder_of_models(text)):
            try:
                files = BACKENDS.recognise(Path(text))
            except (LoadFailed, OSError) as error:
                raise COMMAND_LINE.error("MODEL", str(error)) from error
            if problem := not_installed(files.backend):
                raise COMMAND_LINE.error("MODEL", f"{text}: {problem}")


def missing(engine: str) -> tuple[str, ...]:
    """The packages of an engine that aren't installed."""
    wanted = BACKENDS[engine].files.INSTALLATION if engine in BACKENDS else None
    return tuple(absent((wanted.package, *wanted.others))) if wanted else ()


def not_installed(engine: str) -> str:
    """What to do about a missing engine; "": it is there."""
    return f"{engine} is not installed: {command(engine)}" if missing(engine) else ""


def obstacle(entry: ModelEntry) -> str:
    """Why a model can't be loaded here, whatever memory there is; "" where nothing is seen."""
    program = missing_program(entry.options)
    if program is None:
        return not_installed(entry.files.backend)
    return f"command not found: {program}" if program else ""


def refuse_empty(library: ModelLibrary, models: Sequence[str]) -> None:
    """As `refuse_unusable`, for a folder of the command line in which `library` found no model."""
    for text in filter(_is_folder_of_models, models):
        folder = library.folders[folder_of_models(text)]
        if not folder.scanned():
            problem = f"no model found in the folder {text}"
            raise COMMAND_LINE.error("MODEL", problem)


def with_keys(
    config: Config, written: Sequence[str], made: str, environment: Mapping[str, str]
) -> Config:
    """Administrators' keys besides the configured ones: as they are `written` on the command line,
    and the one `made` for this run, or "". Raises ConfigError.
    """
    secrets = Secrets(environment, Path.cwd())
    keys = [secrets.find(text, COMMAND_LINE, "--api-key") for text in written]
    keys += [made] if made else []
    known = {key.key for key in config.keys}
    if any(key in known or keys.count(key) > 1 for key in keys):
        raise COMMAND_LINE.error("--api-key", "the same key is listed twice")
    added = tuple(KeyConfig(key=key, role="admin", label="command line") for key in keys)
    return msgspec.structs.replace(config, keys=config.keys + added)


def with_downloads(config: Config) -> Config:
    """Where no folder is configured, downloads go to the user's, and what lies there is offered."""
    if config.hub.folder or config.model_dirs:
        return config
    folder = str(user_folder() / "models")
    hub = msgspec.structs.replace(config.hub, folder=folder)
    return msgspec.structs.replace(config, hub=hub, model_dirs=(folder,))


class Finding(msgspec.Struct, frozen=True):
    """`path`: the option, as errors of the configuration name it."""

    path: str
    problem: str


def findings(config: Config, library: ModelLibrary, devices: Collection[str]) -> Iterator[Finding]:
    """`library`: the models of `config`; `devices`: this machine's."""
    yield from _folders(config)
    named = {name for model in config.models for name in model.options.get("memory", ())}
    for device in config.swap.memory:
        if device not in devices and device not in named:  # models may share what is no memory
            problem = f"this machine has no such device; available: {', '.join(devices)}"
            yield Finding(f"$.swap.memory.{device}", problem)
    for option, problem in library.unknown_names():
        yield Finding(option, problem)


def _folders(config: Config) -> Iterator[Finding]:
    named = [(f"$.model_dirs[{place}]", path) for place, path in enumerate(config.model_dirs)]
    others = [("$.template_dir", config.template_dir), ("$.preset_dir", config.preset_dir)]
    for path, folder in (*named, *others):
        is_made = folder == config.hub.folder  # by the first download
        if folder and not is_made and not Path(folder).expanduser().is_dir():
            yield Finding(path, f"folder not found: {folder}")
