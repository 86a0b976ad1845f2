"""Parses bodies of `/api/chat` and `/api/generate`. Knows no model."""

from typing import TypeAlias

import msgspec

from backends.shapes import JsonObject, JsonSchema
from gateway.dialects.fields import (
    Fields,
    fields_of,
    order_object,
    read_fields,
    unread,
)
from gateway.dialects.ollama.messages import read_parts, read_tool, read_turns
from gateway.dialects.ollama.wire import (
    AnsweringWire,
    ChatWire,
    GenerateWire,
    NamedModel,
    OptionsWire,
)
from gateway.dialects.parameters import SamplingWire, read_keep_alive, read_sampling, read_stop
from gateway.errors import InvalidRequest
from gateway.request import (
    ChatRequest,
    GenerationParams,
    Message,
    TextPart,
    TextRequest,
    Thinking,
)

LATEST = ":latest"  # behind every name that has no tag of its own
EFFORTS = ("low", "medium", "high", "max")


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A request for nothing but that a model be there, or go (`keep_alive` 0); seconds."""

    model: str
    keep_alive: float | None = None


Asked: TypeAlias = ChatRequest | TextRequest | Presence


class OllamaExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the form of its answer. `ignored`: fields without a meaning here."""

    request: Asked
    stream: bool = True
    logprobs: bool = False
    ignored: tuple[str, ...] = ()


def _names(*shapes: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(name for shape in shapes for name in shape.__struct_fields__)


_CHAT_FIELDS = _names(AnsweringWire, ChatWire)
_GENERATE_FIELDS = _names(AnsweringWire, GenerateWire)
_OPTIONS = _names(OptionsWire, SamplingWire)


def read_chat(body: bytes) -> OllamaExchange:
    """What a body of `/api/chat` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(body)
    shared, wire = fields.read(AnsweringWire), fields.read(ChatWire)
    if not wire.messages:
        return _presence(fields, shared)
    tools = tuple(read_tool(fields, f"tools[{k}]", tool) for k, tool in enumerate(wire.tools))
    messages = read_turns(fields, wire.messages)
    request = ChatRequest(
        model=shared.model,
        messages=messages,
        answering=_answering(fields, shared),
        tools=tools,
        tool_choice="auto" if tools else "none",
        thinking=_thinking(fields, shared),
        continue_final=messages[-1].role == "assistant" and not messages[-1].tool_calls,
    )
    return _exchange(fields, shared, request, _CHAT_FIELDS)


def read_generate(body: bytes) -> OllamaExchange:
    """What a body of `/api/generate` means: a question to the model; or, `raw` or with a
    `suffix`, a text to go on from. Raises InvalidRequest.
    """
    fields = read_fields(body)
    shared, wire = fields.read(AnsweringWire), fields.read(GenerateWire)
    if not (wire.prompt or wire.images or wire.suffix):
        return _presence(fields, shared)
    read = _text if wire.raw or wire.suffix else _question
    return _exchange(fields, shared, read(fields, shared, wire), _GENERATE_FIELDS)


def read_named(body: bytes) -> NamedModel:
    """The model that a body names. Raises InvalidRequest."""
    fields = fields_of(order_object(body) if body else {})
    wire = fields.read(NamedModel)
    if not (wire.model or wire.name):
        raise fields.wrong("model", "This field is required.")
    return msgspec.structs.replace(wire, model=wire.model or wire.name)


def _text(fields: Fields, shared: AnsweringWire, wire: GenerateWire) -> TextRequest:
    if wire.images:
        raise fields.wrong("images", "Not available for a raw prompt, or one with a suffix.")
    if wire.system:
        raise fields.wrong("system", "Not available for a raw prompt, or one with a suffix.")
    return TextRequest(
        model=shared.model,
        prompts=(wire.prompt,),
        answering=_answering(fields, shared),
        suffix=wire.suffix or None,
    )


def _question(fields: Fields, shared: AnsweringWire, wire: GenerateWire) -> ChatRequest:
    system = (Message(role="system", parts=(TextPart(wire.system),)),) if wire.system else ()
    question = Message(role="user", parts=read_parts("", wire.prompt, wire.images))
    return ChatRequest(
        model=shared.model,
        messages=(*system, question),
        answering=_answering(fields, shared),
        tool_choice="none",
        thinking=_thinking(fields, shared),
    )


def _exchange(
    fields: Fields, shared: AnsweringWire, request: Asked, known: frozenset[str]
) -> OllamaExchange:
    return OllamaExchange(
        request=request,
        stream=shared.stream,
        logprobs=shared.logprobs,
        ignored=(
            *fields.beyond(known),
            *unread(fields.values, ChatWire),
            *_options(shared).beyond(_OPTIONS),
        ),
    )


def _presence(fields: Fields, shared: AnsweringWire) -> OllamaExchange:
    keep_alive = read_keep_alive(fields, shared.keep_alive)
    return OllamaExchange(
        request=Presence(model=shared.model, keep_alive=keep_alive), stream=shared.stream
    )


def _options(shared: AnsweringWire) -> Fields:
    return fields_of(shared.options, "options.")


def _answering(fields: Fields, shared: AnsweringWire) -> GenerationParams:
    options = _options(shared)
    wire = options.read(OptionsWire)
    return GenerationParams(
        sampling=read_sampling(options),
        max_tokens=wire.max_tokens if wire.max_tokens > 0 else None,
        stop=read_stop(options, wire.stop),
        logprobs=shared.top_logprobs if shared.logprobs else None,
        keep_alive=read_keep_alive(fields, shared.keep_alive),
        shape=_shape(fields, shared),
        spelled=options.otherwise(),
    )


def _shape(fields: Fields, shared: AnsweringWire) -> JsonObject | JsonSchema | None:
    match shared.format:
        case "":
            return None
        case "json":
            return JsonObject(field="format")
        case dict(schema):
            return JsonSchema(schema=msgspec.json.encode(schema), field="format")
        case other:
            raise fields.wrong("format", f"Expected 'json' or a JSON schema, got {other!r:.64}.")


def _thinking(fields: Fields, shared: AnsweringWire) -> Thinking:
    match shared.think:
        case None:
            return Thinking()
        case bool(think):
            return Thinking(enabled=think, shown="split" if think else "hidden")
        case str(effort) if effort in EFFORTS:
            return Thinking(enabled=True, effort=effort)
    names = ", ".join(repr(name) for name in EFFORTS)
    message = f"Expected true, false or one of {names}, got {shared.think!r:.64}."
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
    for host in ("hf.co/", "huggingface.co/", "hf:"):
        model = model.removeprefix(host)
    model = without_latest(model)
    if model.count("/") != 1:
        raise InvalidRequest(
            "model: Ollama's registry is not known here; name a repository of the hub: "
            "hf.co/owner/name:quantization.",
            param="model",
        )
    return model
