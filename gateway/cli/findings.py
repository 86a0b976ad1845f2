"""What is wrong with a configuration that a server can start with all the same: folders, devices
and models that it names and that are not there.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from config.settings import Config
from gateway.errors import ModelNotFound, ModelUnavailable
from gateway.registry.library import ModelLibrary


class Finding(msgspec.Struct, frozen=True):
    """`path`: the option, as errors of the configuration name it."""

    path: str
    problem: str


def findings(config: Config, library: ModelLibrary, devices: Collection[str]) -> Iterator[Finding]:
    """`library`: the models of `config`; `devices`: this machine's."""
    yield from _folders(config)
    for device in config.swap.memory:
        if device not in devices:
            problem = f"this machine has no such device; available: {', '.join(devices)}"
            yield Finding(f"$.swap.memory.{device}", problem)
    if all(upstream.models != "all" for upstream in config.upstreams):
        yield from _models(config, library)  # else their servers may have models of that name


def _folders(config: Config) -> Iterator[Finding]:
    named = [(f"$.model_dirs[{place}]", path) for place, path in enumerate(config.model_dirs)]
    named += [
        ("$.template_dir", config.template_dir or ""),
        ("$.preset_dir", config.preset_dir or ""),
    ]
    for path, folder in named:
        is_made = folder == config.hub.folder  # by the first download
        if folder and not is_made and not Path(folder).expanduser().is_dir():
            yield Finding(path, f"there is no folder {folder}")


def _models(config: Config, library: ModelLibrary) -> Iterator[Finding]:
    for path, name in _named(config):
        try:
            library.resolve(name)
        except ModelNotFound as error:
            yield Finding(path, error.message)
        except ModelUnavailable:  # it is listed with the reason
            pass


def _named(config: Config) -> Iterator[tuple[str, str]]:
    """Where a model is named that must be described elsewhere."""
    if config.default_model:
        yield "$.default_model", config.default_model
    for place, key in enumerate(config.keys):
        for index, name in enumerate(key.models):
            yield f"$.keys[{place}].models[{index}]", name
    for place, upstream in enumerate(config.upstreams):
        for index, name in enumerate(upstream.fallbacks):
            yield f"$.upstreams[{place}].fallbacks[{index}]", name
