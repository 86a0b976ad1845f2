"""The configuration of a command: the file's, with the models of its arguments and the user's
folders.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

import bundled
from backends.catalog import BACKENDS
from config.errors import ConfigError
from config.folders import user_folder
from config.settings import Config, ModelConfig
from gateway.registry.library import HUB_SCHEME


def with_models(config: Config, models: Sequence[str]) -> Config:
    """The models named on the command line come first; with none at all, the bundled one."""
    if not (models or config.models or config.model_dirs or config.upstreams):
        models = [str(bundled.GGUF)]
    named = tuple(map(model_of, models))
    taken = {model.name for model in config.models}
    if clash := [model.name for model in named if model.name in taken]:
        raise ConfigError("the command line", "MODEL", f"{clash[0]} is in the configuration too")
    return msgspec.structs.replace(config, models=named + config.models)


def model_of(text: str) -> ModelConfig:
    """The model that `text` names, a path or a place on a hub. Raises ConfigError when there is
    nothing at the path.
    """
    if text.startswith(HUB_SCHEME):
        return ModelConfig(name=text.removeprefix(HUB_SCHEME), path=text)
    path = Path(text)
    if not path.exists():
        raise ConfigError("the command line", "MODEL", f"there is no file or folder {path}")
    return ModelConfig(name=BACKENDS.bare_name(path.name), path=str(path.resolve()))


def with_downloads(config: Config) -> Config:
    """Where no folder is configured, downloads go to the user's, and what lies there is offered."""
    if config.hub.folder or config.model_dirs:
        return config
    folder = str(user_folder() / "models")
    hub = msgspec.structs.replace(config.hub, folder=folder)
    return msgspec.structs.replace(config, hub=hub, model_dirs=(folder,))
