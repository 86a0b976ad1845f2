"""Models that administrators make of others (`/api/create`, `/api/copy`): no files, only a name and
what stands in where a request to it says nothing. Kept in memory. Knows no registry.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.dialects.fields import fields_of, json_object, read_fields
from gateway.dialects.ollama.request import NamedModel, OptionsWire, without_latest
from gateway.dialects.parameters import read_sampling, read_stop
from gateway.errors import InvalidRequest, NotFound

MOST = 128  # presets
LONGEST = 65_536  # characters of a system prompt, and of the parameters
NAME_LENGTH = 256
OF_ITS_OWN = ("files", "adapters", "quantize", "template", "messages")  # what no preset has


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """`base`: the model that answers. `system` and `options` are a request's where it has none."""

    name: str
    base: str
    system: str = ""
    options: Mapping[str, Any] = {}
    created: int = 0  # Unix time

    @property
    def parameters(self) -> str:
        """As Ollama shows them: each in a line."""
        pairs = (
            (name, each)
            for name, value in self.options.items()
            for each in (value if isinstance(value, list) else [value])
        )
        return "\n".join(f"{name} {msgspec.json.encode(each).decode()}" for name, each in pairs)

    @property
    def modelfile(self) -> str:
        """As Ollama writes it."""
        lines = [f"FROM {self.base}"]
        lines += [f'SYSTEM """{self.system}"""'] if self.system else []
        lines += [f"PARAMETER {line}" for line in self.parameters.splitlines()]
        return "\n".join(lines)


class CreateWire(msgspec.Struct, frozen=True, kw_only=True):
    """A model created from another one. `name` is the former name of `model`."""

    model: str = ""
    name: str = ""
    base: str = msgspec.field(default="", name="from")
    system: str = ""
    parameters: dict[str, Any] = {}
    stream: bool = True


class CopyWire(msgspec.Struct, frozen=True, kw_only=True):
    """Another name for a model."""

    source: str
    destination: str


def read_create(body: bytes) -> CreateWire:
    """What a body of `/api/create` means. Raises InvalidRequest, which names the field."""
    fields = fields_of(json_object(body))
    wire = fields.read(CreateWire)
    for name in OF_ITS_OWN:
        if fields.values.get(name):
            raise fields.wrong(name, "Not available; a model is made `from` another one.")
    if not wire.base:
        raise fields.wrong("from", "This field is required.")
    if len(wire.system) > LONGEST:
        raise fields.wrong("system", f"At most {LONGEST} characters.")
    if len(msgspec.json.encode(wire.parameters)) > LONGEST:
        raise fields.wrong("parameters", f"At most {LONGEST} characters.")
    options = fields_of(wire.parameters, "parameters.")
    read_sampling(options)
    read_stop(options, options.read(OptionsWire).stop)
    return msgspec.structs.replace(wire, model=_name(wire.model or wire.name, "model"))


def read_copy(body: bytes) -> CopyWire:
    """What a body of `/api/copy` means. Raises InvalidRequest, which names the field."""
    wire = read_fields(body).read(CopyWire)
    return CopyWire(source=wire.source, destination=_name(wire.destination, "destination"))


def _name(name: str, field: str) -> str:
    if not 0 < len(name) <= NAME_LENGTH or not name.isprintable():
        raise InvalidRequest(f"{field}: a name of 1 to {NAME_LENGTH} characters.", param=field)
    return without_latest(name)


class Presets:
    """All of them, by name."""

    def __init__(self) -> None:
        self._all: dict[str, Preset] = {}

    def all(self) -> list[Preset]:
        """In the order in which they were made."""
        return list(self._all.values())

    def find(self, name: str) -> Preset | None:
        """With or without the tag `:latest`."""
        return self._all.get(without_latest(name))

    def keep(self, preset: Preset) -> None:
        """In place of one of the same name. Raises InvalidRequest where there are too many."""
        if preset.name not in self._all and len(self._all) >= MOST:
            raise InvalidRequest(f"model: there are {MOST} made models already.", param="model")
        self._all[preset.name] = preset

    def remove(self, name: str) -> None:
        """Raises NotFound."""
        if self._all.pop(without_latest(name), None) is None:
            raise NotFound(f"Made model {name!r:.200} not found.", param="model")

    def filled(self, body: bytes) -> bytes:
        """The body of a request, which has what its model's preset says where it says nothing."""
        try:
            named = msgspec.json.decode(body, type=NamedModel).model if self._all else ""
        except (msgspec.DecodeError, RecursionError):
            return body  # for its reader to refuse
        preset = self.find(named)
        return body if preset is None else msgspec.json.encode(_filled(json_object(body), preset))


def _filled(wire: dict[str, Any], preset: Preset) -> dict[str, Any]:
    options = wire.get("options")
    if options is None or isinstance(options, dict):
        wire["options"] = {**preset.options, **(options or {})}
    if not preset.system:
        return wire
    messages = wire.get("messages")
    if isinstance(messages, list) and messages:
        first = messages[0]
        if not (isinstance(first, dict) and first.get("role") == "system"):
            wire["messages"] = [{"role": "system", "content": preset.system}, *messages]
    elif wire.get("prompt") and not (wire.get("raw") or wire.get("suffix")):
        wire["system"] = wire.get("system") or preset.system
    return wire
