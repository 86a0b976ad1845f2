"""Parses Ollama's bodies: `/api/chat`, `/api/generate`, and models that administrators make of
others (`/api/create`, `/api/copy`): no files, only a name and what stands in where a request to it
says nothing. Those are kept in memory. Knows no model, no template and no registry.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from config.values import alike, hub_id
from gateway.dialects.fields import (
    Fields,
    fields_of,
    given_fields,
    json_object,
    order_object,
    read_fields,
)
from gateway.dialects.parameters import (
    Alternatives,
    FunctionWire,
    SamplingWire,
    read_keep_alive,
    read_sampling,
    read_stop,
)
from gateway.dialects.shapes import SHAPE_FIELDS, read_shape
from gateway.terms.errors import InvalidRequest, NotFound
from gateway.terms.request import (
    ChatRequest,
    GenerationParams,
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    TextRequest,
    Thinking,
    Tool,
    ToolCall,
)


class CalledWire(msgspec.Struct, frozen=True, kw_only=True):
    """The called function and its arguments, as an object rather than JSON text. `index`: among the
    calls of an answer.
    """

    index: int | UnsetType | None = UNSET
    name: str
    arguments: Any = {}


class CallWire(msgspec.Struct, frozen=True, kw_only=True):
    """A call. Old clients send no id."""

    id: str | None = None
    function: CalledWire


class MessageWire(msgspec.Struct, frozen=True, kw_only=True):
    """One message. Images are base64, without a media type."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[CallWire] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolWire(msgspec.Struct, frozen=True):
    """A tool. `function` is the only type."""

    function: FunctionWire
    type: str = "function"


class AnsweringWire(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and generate have in common."""

    model: str = ""
    stream: bool = True
    think: bool | str | None = None
    format: dict[str, Any] | str = ""
    options: dict[str, Any] = {}
    keep_alive: float | str | None = None
    logprobs: bool = False
    top_logprobs: Alternatives = 0


class ChatWire(AnsweringWire, frozen=True, kw_only=True):
    """A conversation. Without messages it only loads the model, or unloads it."""

    messages: list[MessageWire] = []
    tools: list[ToolWire] = []


class GenerateWire(AnsweringWire, frozen=True, kw_only=True):
    """A prompt. Without one it only loads the model, or unloads it."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    images: list[str] = []
    raw: bool = False


class OptionsWire(msgspec.Struct, frozen=True, kw_only=True):
    """Those of `options` that are no sampling parameters."""

    max_tokens: Annotated[int, Meta(ge=-2)] = -1  # -1 and -2: as many as there is room for
    stop: str | list[str] = []


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `name` is the former name of `model`."""

    model: str = ""
    name: str = ""
    stream: bool = True


ROLES: Mapping[str, Role] = {role: role for role in get_args(Role)}


_MEDIA_TYPES = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "Qk": "image/bmp",
}


def read_turns(fields: Fields, turns: Sequence[MessageWire]) -> tuple[Message, ...]:
    """The conversation. Results find their calls by id, by name, or by their order. Raises
    InvalidRequest.
    """
    open_calls = _OpenCalls()
    found = []
    for k, wire in enumerate(turns):
        path = f"messages[{k}]"
        role = fields.meant(f"{path}.role", wire.role, ROLES)
        message = Message(
            role=role,
            parts=read_parts(path, wire.content or "", wire.images or ()),
            reasoning=wire.thinking or None,
            tool_calls=_calls(wire, k),
            tool_call_id=open_calls.answered(wire) if role == "tool" else None,
            name=wire.tool_name or None,
        )
        open_calls.add(message.tool_calls)
        found.append(message)
    return tuple(found)


def read_parts(path: str, text: str, images: Sequence[str]) -> tuple[Part, ...]:
    """The pictures, and behind them the text. `path` is where `images` stands; "": in the body."""
    place = f"{path}.images" if path else "images"
    pictures = (ImagePart(_url(data), field=f"{place}[{k}]") for k, data in enumerate(images))
    return (*pictures, *((TextPart(text),) if text else ()))


def _url(data: str) -> str:
    """A `data:` URL; its media type is seen from the first bytes, which are base64 too. Open WebUI
    sends addresses of pictures as they are.
    """
    if data.startswith(("data:", "http:", "https:")):
        return data
    kinds = (kind for begin, kind in _MEDIA_TYPES.items() if data.startswith(begin))
    return f"data:{next(kinds, '')};base64,{data}"


def _calls(wire: MessageWire, turn: int) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            call.id or f"call_{turn}_{k}",
            call.function.name,
            msgspec.json.encode(call.function.arguments).decode(),
        )
        for k, call in enumerate(wire.tool_calls or ())
    )


class _OpenCalls(msgspec.Struct, eq=False):
    """Calls that no result has answered yet, as they were made: ids, and the names of what they
    call.
    """

    _all: OrderedDict[str, str] = msgspec.field(default_factory=OrderedDict)
    _by_name: dict[str, OrderedDict[str, str]] = {}

    def add(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            if (before := self._all.get(call.id)) is not None:
                del self._by_name[before][call.id]
            self._all[call.id] = call.name
            self._by_name.setdefault(call.name, OrderedDict())[call.id] = call.name

    def answered(self, wire: MessageWire) -> str | None:
        """The id of the call that a result answers, which is open no more."""
        line = self._by_name.get(wire.tool_name) if wire.tool_name else self._all
        found = wire.tool_call_id
        if found not in self._all:
            found = next(iter(line or ()), None)
        if found is None:
            return wire.tool_call_id
        del self._by_name[self._all.pop(found)][found]
        return found


def read_tool(fields: Fields, path: str, wire: ToolWire) -> Tool:
    """One tool. Raises InvalidRequest."""
    if wire.type != "function":
        raise fields.wrong(f"{path}.type", f"Expected 'function', got {wire.type!r:.64}.")
    return wire.function.tool(fields, f"{path}.function")


LATEST = ":latest"  # behind every name that has no tag of its own
EFFORTS = ("low", "medium", "high", "max")


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A request for nothing but that a model be there, or go (`keep_alive` 0); seconds."""

    model: str
    keep_alive: float | None = None
    stream: bool = False


Asked: TypeAlias = ChatRequest | TextRequest | Presence


def read_chat(body: bytes) -> ChatRequest | Presence:
    """What a body of `/api/chat` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(body)
    wire = fields.read(ChatWire)
    if not wire.messages:
        return _presence(fields, wire)
    tools = tuple(read_tool(fields, f"tools[{k}]", tool) for k, tool in enumerate(wire.tools))
    messages = read_turns(fields, wire.messages)
    return ChatRequest(
        model=wire.model,
        messages=messages,
        answering=_answering(fields, wire),
        tools=tools,
        tool_choice="auto" if tools else "none",
        thinking=_thinking(fields, wire),
        continue_final=messages[-1].role == "assistant" and not messages[-1].tool_calls,
    )


def read_generate(body: bytes) -> Asked:
    """What a body of `/api/generate` means: a question to the model; or, `raw` or with a
    `suffix`, a text to go on from. Raises InvalidRequest.
    """
    fields = read_fields(body)
    wire = fields.read(GenerateWire)
    if not (wire.prompt or wire.images or wire.suffix):
        return _presence(fields, wire)
    read = _text if wire.raw or wire.suffix else _question
    return read(fields, wire)


def read_named(body: bytes) -> NamedModel:
    """The model that a body names. Raises InvalidRequest."""
    fields = given_fields(order_object(body))
    wire = fields.read(NamedModel)
    if not (wire.model or wire.name):
        raise fields.wrong("model", "This field is required.")
    return msgspec.structs.replace(wire, model=wire.model or wire.name)


def _text(fields: Fields, wire: GenerateWire) -> TextRequest:
    if wire.images:
        raise fields.wrong("images", "Not available for a raw prompt, or one with a suffix.")
    if wire.system:
        raise fields.wrong("system", "Not available for a raw prompt, or one with a suffix.")
    return TextRequest(
        model=wire.model,
        prompts=(wire.prompt,),
        answering=_answering(fields, wire),
        suffix=wire.suffix or None,
    )


def _question(fields: Fields, wire: GenerateWire) -> ChatRequest:
    system = (Message(role="system", parts=(TextPart(wire.system),)),) if wire.system else ()
    question = Message(role="user", parts=read_parts("", wire.prompt, wire.images))
    return ChatRequest(
        model=wire.model,
        messages=(*system, question),
        answering=_answering(fields, wire),
        tool_choice="none",
        thinking=_thinking(fields, wire),
    )


def _presence(fields: Fields, wire: AnsweringWire) -> Presence:
    return alike(Presence, wire)(keep_alive=read_keep_alive(fields, wire.keep_alive))


def _answering(fields: Fields, wire: AnsweringWire) -> GenerationParams:
    options = fields_of(wire.options, "options.")
    limits = options.read(OptionsWire)
    return GenerationParams(
        sampling=read_sampling(options),
        max_tokens=limits.max_tokens if limits.max_tokens > 0 else None,
        stop=read_stop(options, limits.stop),
        logprobs=wire.top_logprobs if wire.logprobs else None,
        keep_alive=read_keep_alive(fields, wire.keep_alive),
        shape=read_shape(fields),
        streamed=wire.stream,
        spelled=options.otherwise(),
        unapplied=(
            *fields.unapplied(type(wire), SHAPE_FIELDS),
            *options.unapplied(OptionsWire, SamplingWire),
        ),
    )


def _thinking(fields: Fields, wire: AnsweringWire) -> Thinking:
    match wire.think:
        case None:
            return Thinking()
        case bool(think):
            return Thinking(enabled=think, shown="split" if think else "hidden")
        case str(effort) if effort in EFFORTS:
            return Thinking(enabled=True, effort=effort)
    names = ", ".join(repr(name) for name in EFFORTS)
    message = f"Expected true, false or one of {names}, got {wire.think!r:.64}."
    raise fields.wrong("think", message)


def without_latest(model: str) -> str:
    """The name that Ollama's clients make `name:latest`."""
    return model.removesuffix(LATEST)


def with_tag(model: str) -> str:
    """Model names as Ollama lists them: with a tag."""
    return model if ":" in model else f"{model}{LATEST}"


def hub_name(model: str) -> str:
    """`hf.co/owner/name:quantization` as `owner/name:quantization`. Raises InvalidRequest for a
    name of Ollama's own registry.
    """
    for host in ("hf.co/", "huggingface.co/"):
        model = model.removeprefix(host)
    model = without_latest(hub_id(model))
    if model.count("/") != 1:
        raise InvalidRequest.at(
            "model",
            "Ollama's registry is not supported; use a repository of the hub: "
            "hf.co/owner/name:quantization.",
        )
    return model


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


class CreateWire(NamedModel, frozen=True, kw_only=True):
    """A model created from another one."""

    base: str = msgspec.field(default="", name="from")
    system: str = ""
    parameters: dict[str, Any] = {}


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
        raise InvalidRequest.at(field, f"a name of 1 to {NAME_LENGTH} characters.")
    return without_latest(name)


class Presets(msgspec.Struct, eq=False):
    """All of them, by name."""

    _all: dict[str, Preset] = {}

    def all(self) -> list[Preset]:
        """In the order in which they were made."""
        return list(self._all.values())

    def find(self, name: str) -> Preset | None:
        """With or without the tag `:latest`."""
        return self._all.get(without_latest(name))

    def keep(self, preset: Preset) -> None:
        """In place of one of the same name. Raises InvalidRequest where there are too many."""
        if preset.name not in self._all and len(self._all) >= MOST:
            raise InvalidRequest.at("model", f"there are {MOST} made models already.")
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
