"""The structs of Ollama's bodies as clients send them."""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Alternatives: TypeAlias = Annotated[int, Meta(ge=0, le=20)]


class FunctionCallWire(msgspec.Struct, frozen=True):
    """What was called, and with what: an object, not its text."""

    name: str
    arguments: dict[str, Any] = {}


class ToolCallWire(msgspec.Struct, frozen=True):
    """A call of an earlier turn. Old clients send no id."""

    function: FunctionCallWire
    id: str | None = None


class MessageWire(msgspec.Struct, frozen=True, kw_only=True):
    """One message. Images are base64, without a media type."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCallWire] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class FunctionWire(msgspec.Struct, frozen=True):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolWire(msgspec.Struct, frozen=True):
    """One tool. There is no other type."""

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


class ChatWire(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. Without messages it only loads the model, or unloads it."""

    messages: list[MessageWire] = []
    tools: list[ToolWire] = []


class GenerateWire(msgspec.Struct, frozen=True, kw_only=True):
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
    """One model; `name` is what `model` was called before."""

    model: str = ""
    name: str = ""
    stream: bool = True
