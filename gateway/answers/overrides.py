"""Sampling overrides: defaults, forced values and additions that administrators set for requests.

Per parameter: `override` stands in where a request says nothing; with `force` it stands whatever
the request says; with `additive` a list goes in front of the request's. Presets are YAML files of
that.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from backends.protocol import SpecialTokens
from config.document import parse
from config.errors import ConfigError
from gateway.dialects.fields import read_fields
from gateway.dialects.openai import read_text
from gateway.dialects.parameters import SamplingWire
from gateway.errors import InvalidRequest, InvalidTemplate
from gateway.paths import listed
from gateway.prompt import ChatTemplate
from gateway.registry import ModelEntry
from gateway.request import GenerationParams, RequestedSampling

_LENGTHS = frozenset({"max_tokens", "min_tokens", "stop"})
_KNOWN = frozenset(SamplingWire.__struct_fields__) | _LENGTHS


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The override of one parameter."""

    override: Any
    force: bool = False
    additive: bool = False


class OverridePreset(msgspec.Struct, frozen=True, kw_only=True):
    """Overrides by parameter, as their author wrote them, and sorted as they are applied."""

    name: str | None = None
    overrides: Mapping[str, Override] = {}
    default: GenerationParams = GenerationParams()
    forced: GenerationParams = GenerationParams()
    added: GenerationParams = GenerationParams()

    def over(self, asked: GenerationParams) -> GenerationParams:
        """`asked` with the overrides applied."""
        if not self.overrides:
            return asked
        sampling = _over(_over(self.default.sampling, asked.sampling), self.forced.sampling)
        limits = (self.forced.max_tokens, asked.max_tokens, self.default.max_tokens)
        return replace(
            asked,
            sampling=_joined(self.added.sampling, sampling),
            max_tokens=next((limit for limit in limits if limit is not None), None),
            min_tokens=self.forced.min_tokens or asked.min_tokens or self.default.min_tokens,
            stop=self.added.stop + (self.forced.stop or asked.stop or self.default.stop),
        )


def preset(given: Mapping[str, Any], name: str | None = None) -> OverridePreset:
    """The overrides in `given`. Raises InvalidRequest, naming the parameter at fault."""
    overrides = {key: _override(key, value) for key, value in given.items()}
    kinds = {
        "forced": {key: one for key, one in overrides.items() if one.force},
        "added": {key: one for key, one in overrides.items() if one.additive and not one.force},
    }
    rest = overrides.keys() - kinds["forced"].keys() - kinds["added"].keys()
    kinds["default"] = {key: overrides[key] for key in rest}
    for key, one in kinds["added"].items():
        if not isinstance(one.override, list):
            raise InvalidRequest(f"{key}: only a list can be additive", param=key)
    return OverridePreset(
        name=name, overrides=overrides, **{kind: _answering(these) for kind, these in kinds.items()}
    )


class SamplingOverrides:
    """The overrides in force, and the files to choose others from."""

    def __init__(self, folder: Path | None, name: str | None = None) -> None:
        """Raises ConfigError where the preset `name` can't be used."""
        self._folder = folder
        self.current = OverridePreset()
        self._configured = name
        if name is not None:
            try:
                self.current = self.read(name)
            except InvalidRequest as error:
                raise ConfigError("the configuration", "$.preset", error.message) from None

    def apply(self, folder: Path | None, name: str | None, chosen: OverridePreset) -> None:
        """From now on this is the folder, and `chosen` in force where the configuration names
        another preset than before: what an administrator has chosen since stays.
        """
        self._folder = folder
        if self._configured != name:
            self._configured, self.current = name, chosen

    def names(self) -> tuple[str, ...]:
        """What may be chosen now. Scans the folder."""
        return tuple(listed(self._folder, (".yml", ".yaml")))

    def read(self, name: str) -> OverridePreset:
        """The preset called `name`. Raises InvalidRequest. Blocks to read a small file."""
        files = listed(self._folder, (".yml", ".yaml"))
        if name not in files:
            known = ", ".join(files) or "none"
            raise InvalidRequest(f"There is no preset {name!r}; there is: {known}.", param="preset")
        try:
            given, _ = parse(files[name].read_text("utf-8"), files[name].name)
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise InvalidRequest(f"{name} can't be read: {error}", param="preset") from error
        if not isinstance(given, dict):
            raise InvalidRequest(f"{name} holds no parameters by name", param="preset")
        return preset(given, name)

    def switch(self, chosen: OverridePreset) -> None:
        """From the next request on."""
        self.current = chosen

    def unload(self) -> None:
        """Requests get their own parameters again."""
        self.current = OverridePreset()


def _override(name: str, given: Any) -> Override:
    try:
        return msgspec.convert(given, Override)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from None


def _answering(overrides: Mapping[str, Override]) -> GenerationParams:
    """As if a request had said so: the same spellings, the same limits."""
    values = {name: one.override for name, one in overrides.items() if one.override is not None}
    fields = read_fields(msgspec.json.encode(values))
    for name in fields.values.keys() - _KNOWN:
        raise InvalidRequest(f"{name} is no sampling parameter", param=name)
    return read_text(msgspec.json.encode({**values, "prompt": ""})).request.answering


def _over(low: RequestedSampling, high: RequestedSampling) -> RequestedSampling:
    texts = low.text_biases if "logit_bias" not in high.named else ()
    return RequestedSampling(
        high.over(low.values), low.named | high.named, high.text_biases or texts
    )


def _joined(added: RequestedSampling, requested: RequestedSampling) -> RequestedSampling:
    """Lists in front of those that are there."""
    joined = {name: getattr(added.values, name) + _list(requested, name) for name in added.named}
    return RequestedSampling(
        replace(requested.values, **joined),
        requested.named | added.named,
        added.text_biases + requested.text_biases,
    )


def _list(requested: RequestedSampling, name: str) -> tuple[Any, ...]:
    items: Iterable[Any] = getattr(requested.values, name) if name in requested.named else ()
    return tuple(items)


# ---------------------------------------------------------------------------------------- templates
# Chat templates that administrators put in place of a model's own, until they take them back.


class Chosen(msgspec.Struct, frozen=True):
    """A template by its name, and its text at the time it was chosen."""

    name: str
    source: str


class Templates:
    """`folder` holds NAME.jinja files; None: there is nothing to choose from."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._chosen: dict[str, Chosen] = {}

    def apply(self, folder: Path | None) -> None:
        """From now on this is the folder; what was chosen stays."""
        self._folder = folder

    def names(self) -> tuple[str, ...]:
        """What may be chosen now. Scans the folder."""
        return tuple(self._files())

    def read(self, name: str) -> Chosen:
        """The template called `name`. Reads and tries it; blocks for some milliseconds.

        Raises InvalidRequest for an unknown name and for a template that can't be used.
        """
        param = "prompt_template_name"
        files = self._files()
        if name not in files:
            known = ", ".join(files) or "none"
            raise InvalidRequest(f"There is no template {name!r}; there is: {known}.", param=param)
        try:
            source = files[name].read_text("utf-8")
            ChatTemplate(source, SpecialTokens())
        except (OSError, UnicodeDecodeError, InvalidTemplate) as error:
            raise InvalidRequest(f"{name} can't be used: {error}", param=param) from error
        return Chosen(name, source)

    def switch(self, model: str, chosen: Chosen) -> None:
        """From the next request on `model` uses `chosen`."""
        self._chosen[model] = chosen

    def unload(self, model: str) -> None:
        """Back to the model's own."""
        self._chosen.pop(model, None)

    def chosen(self, model: str) -> str | None:
        """The name of the template in place of the model's own."""
        found = self._chosen.get(model)
        return found.name if found else None

    def source(self, entry: ModelEntry) -> str | None:
        """The text in place of what the model carries: chosen, else configured."""
        found = self._chosen.get(entry.name)
        return found.source if found else entry.template

    def _files(self) -> Mapping[str, Path]:
        return listed(self._folder, (".jinja",))
