"""Anthropic's Messages API, spoken to an upstream: request bodies, answers as events, and the
signatures of thinking (https://docs.anthropic.com/en/api/messages and messages-streaming).

That API refuses fields it doesn't know, so what it has no field for is left out and reported.
Blocks of tools that run there (searches, code) are its own; the text around them is the answer.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from backends.contract.conversation import (
    ImagePart,
    JsonSchema,
    Message,
    NamedTool,
    Part,
    TextPart,
    Tool,
    ToolCall,
)
from backends.contract.errors import UpstreamError
from backends.contract.remote import (
    RemoteCall,
    RemoteChanges,
    RemoteChat,
    RemoteDelta,
    RemoteEvent,
    RemoteRequest,
    RemoteUsage,
)
from backends.places.upstream.faults import Unhealthy, broken, decoded, too_large
from backends.places.upstream.reading import FINISH, MOST_CALLS
from backends.places.upstream.wire import DROPPED, changed, overridden, present
from config.upstreams import UpstreamConfig

KEPT = 4_096  # signatures
MOST_BYTES = 16 << 20  # of all signatures
MOST_SIGNATURE = 1 << 20  # characters of one; longer ones are not kept


class Signatures:
    """One upstream's signatures of thinking, by the thinking; the last used are kept.

    Anthropic's models take their own thinking back only with the signature it came with, which no
    other API has a field for. Thinking whose signature is forgotten, or which another model wrote,
    is left out of the conversation.
    """

    def __init__(self, most: int = KEPT, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._left = most_bytes
        self._kept: OrderedDict[bytes, str] = OrderedDict()

    def keep(self, thinking: str, signature: str) -> None:
        """It came with `thinking`."""
        if not signature or len(signature) > MOST_SIGNATURE:
            return
        digest = _digest(thinking)
        self._left += len(self._kept.pop(digest, ""))
        self._kept[digest] = signature
        self._left -= len(signature)
        while self._left < 0 or len(self._kept) > self._most:
            _, forgotten = self._kept.popitem(last=False)
            self._left += len(forgotten)

    def of(self, thinking: str) -> str | None:
        """The signature that `thinking` came with."""
        digest = _digest(thinking)
        if digest in self._kept:
            self._kept.move_to_end(digest)
        return self._kept.get(digest)


def _digest(thinking: str) -> bytes:
    return hashlib.blake2b(thinking.encode(errors="replace"), digest_size=16).digest()


Body: TypeAlias = dict[str, Any]  # JSON's own shape; it leaves this module as bytes only

NO_FIELD = "Anthropic's API has no such field"
LEAST_BUDGET = 1_024  # tokens of thinking; the API takes no fewer
# Efforts of others that it has no name for.
_EFFORTS = {"minimal": "low"}
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]")
# What says the same as its own parameters, by OpenAI's names and others', or nothing: a prompt is
# continued where the conversation ends with the assistant.
_RENAMED = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
_SAID_OTHERWISE = frozenset(
    ("add_generation_prompt", "continue_final_message", "reasoning_effort", "user")
)
# Its own, which clients may send by its names.
_OWN = frozenset(
    ("cache_control", "container", "context_management", "inference_geo", "mcp_servers")
)

_encode = msgspec.json.Encoder().encode


def messages_body(
    request: RemoteChat, model: str, config: UpstreamConfig, signatures: Signatures
) -> bytes:
    """The body of a `messages` request."""
    body: Body = {"max_tokens": config.max_tokens, **_parameters(request, config)}
    body |= count_body(request, model, signatures)
    return _encode({**body, "stream": True, **config.set})


def count_body(request: RemoteChat, model: str, signatures: Signatures) -> Body:
    """The body of a `messages/count_tokens` request."""
    system, turns = _turns(request.messages, signatures)
    body: Body = {"model": model, "messages": turns}
    if system:
        body["system"] = system
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = _choice(request)
    return body


def messages_changes(request: RemoteRequest, config: UpstreamConfig) -> RemoteChanges:
    """How a request is changed on its way."""
    unapplied = {
        name: NO_FIELD for name in request.parameters if not _has_word(name, request, config)
    }
    unapplied |= {name: DROPPED for name in request.parameters if name in config.drop}
    is_json = isinstance(request.shape, JsonSchema) and "output_config" not in config.drop
    return RemoteChanges(
        unapplied=unapplied,
        replaced=overridden(request.parameters, _renaming(config)),
        holds_shape=request.shape is None or is_json,
    )


def _renaming(config: UpstreamConfig) -> UpstreamConfig:
    return msgspec.structs.replace(config, rename={**_RENAMED, **config.rename})


def _has_word(name: str, request: RemoteRequest, config: UpstreamConfig) -> bool:
    if name in config.rename or name in _RENAMED or name in _SAID_OTHERWISE or name in _OWN:
        return True
    if not isinstance(request, RemoteChat):
        return False
    if name == "chat_template_kwargs":
        return bool(request.parameters[name] == {"enable_thinking": request.thinking.enabled})
    return name == request.thinking.budget_name and request.thinking.budget is not None


def _parameters(request: RemoteChat, config: UpstreamConfig) -> Body:
    """Its own parameters, and what a configuration calls otherwise."""
    given, renaming = request.parameters, _renaming(config)
    known = _OWN | renaming.rename.keys()
    body = changed({name: value for name, value in given.items() if name in known}, renaming)
    if (user := given.get("user")) is not None and "user" not in config.drop:
        body["metadata"] = {"user_id": user}
    if output := _output(request, config):
        body["output_config"] = output
    if (thinking := _thinking(request, body.get("max_tokens", config.max_tokens))) is not None:
        body["thinking"] = thinking
    return {name: value for name, value in body.items() if name not in config.drop}


def _output(request: RemoteChat, config: UpstreamConfig) -> Body:
    found: Body = {}
    if isinstance(request.shape, JsonSchema):
        schema = msgspec.Raw(request.shape.schema)
        found["format"] = {"type": "json_schema", "schema": schema}
    effort = request.thinking.effort
    if effort not in (None, "none") and "reasoning_effort" not in config.drop:
        found["effort"] = _EFFORTS.get(effort or "", effort)
    return found


def _thinking(request: RemoteChat, most: int) -> Body | None:
    """A budget is part of the `most` tokens of an answer, and smaller; without one the model
    decides itself.
    """
    asked = request.thinking
    if asked.enabled is False or asked.effort == "none":
        return {"type": "disabled"}
    if asked.budget is not None:
        budget = min(asked.budget, most - 1)
        if budget < LEAST_BUDGET:
            return {"type": "disabled"}
        return {"type": "enabled", "budget_tokens": budget}
    return {"type": "adaptive"} if asked.enabled or asked.effort is not None else None


def _turns(messages: Sequence[Message], signatures: Signatures) -> tuple[list[Body], list[Body]]:
    """The system's blocks, wherever they stood; and turns of users and assistants, that take
    turns: what follows another of the same role is one with it.
    """
    system: list[Body] = []
    turns: list[Body] = []
    for message in messages:
        if message.role == "system":
            system += _blocks(message.parts)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _BLOCKS[message.role](message, signatures)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _answered(message: Message, signatures: Signatures) -> list[Body]:
    thought: list[Body] = []
    if message.reasoning and (signature := signatures.of(message.reasoning)) is not None:
        block = {"type": "thinking", "thinking": message.reasoning, "signature": signature}
        thought.append(block)
    return [*thought, *_blocks(message.parts), *map(_call, message.tool_calls)]


def _result(message: Message, _: Signatures) -> list[Body]:
    block: Body = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id or "")}
    if content := _blocks(message.parts):
        block["content"] = content
    return [block]


_BLOCKS: Mapping[str, Callable[[Message, Signatures], list[Body]]] = {
    "user": lambda message, _: _blocks(message.parts),
    "assistant": _answered,
    "tool": _result,
}


def _blocks(parts: Sequence[Part]) -> list[Body]:
    """It takes no empty text."""
    return [block for part in parts for block in _part(part)]


def _part(part: Part) -> Iterator[Body]:
    match part:
        case TextPart(text) if text.strip():
            yield {"type": "text", "text": text}
        case ImagePart(url):
            yield {"type": "image", "source": _source(url)}


def _source(url: str) -> Body:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url.removeprefix("data:").partition(",")
    media_type = head.partition(";")[0] or "image/png"
    return {"type": "base64", "media_type": media_type, "data": data}


def _call(call: ToolCall) -> Body:
    return {"type": "tool_use", "id": _id(call.id), "name": call.name, "input": _input(call)}


def _input(call: ToolCall) -> Body:
    """What is no object is sent as it was written."""
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": call.arguments}


def _id(call_id: str) -> str:
    """It takes letters, digits, `_` and `-`."""
    return _NOT_IN_AN_ID.sub("_", call_id)


def _tool(tool: Tool) -> Body:
    schema = {"type": "object", **(tool.parameters or {"properties": {}})}
    given = {"input_schema": schema, "strict": tool.strict}
    return present(name=tool.name, description=tool.description, **given)


def _choice(request: RemoteChat) -> Body:
    match request.tool_choice:
        case NamedTool(name):
            choice: Body = {"type": "tool", "name": name}
        case "required":
            choice = {"type": "any"}
        case mode:
            choice = {"type": mode}
    if not request.parallel_tool_calls and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


# An error inside a stream has no status of its own.
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 502,  # about our key, which the client can't change
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class _DeltaWire(msgspec.Struct, frozen=True):
    """Of a block, or of the message."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _BlockWire(_DeltaWire, frozen=True):
    type: str = ""
    id: str | None = None
    name: str | None = None
    input: Any = None


class _UsageWire(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _MessagesError(msgspec.Struct, frozen=True):
    type: str = "api_error"
    message: str = "The upstream failed without an error message."


class _EventWire(_DeltaWire, frozen=True):
    """An event, or a whole message."""

    type: str = ""
    index: int = 0
    message: "_EventWire | None" = None
    content_block: _BlockWire | None = None
    delta: _DeltaWire | None = None
    usage: _UsageWire | None = None
    error: _MessagesError | None = None
    content: list[_BlockWire] | None = None


class _OpenBlock:
    """A block that grows."""

    def __init__(self, wire: _BlockWire) -> None:
        self.wire = wire
        self.call: int | None = None  # which call of the answer
        self.has_arguments = False
        self.thought: list[str] = []
        self.signature: list[str] = []
        self.signed = 0  # characters


class MessagesReader:
    """Reads one answer; an `AnswerReader` for this API."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._open: dict[int, _OpenBlock] = {}
        self._calls = 0
        self._usage = _UsageWire()
        self._finished = False
        self.is_done = False  # the other server ended the answer

    @property
    def is_whole(self) -> bool:
        """It has ended."""
        return self.is_done or self._finished

    def read(self, payload: bytes) -> list[RemoteEvent]:
        """The deltas of an event. Raises UpstreamError for an error and for what is no event."""
        return list(self._read(decoded(payload, _EventWire)))

    def _read(self, wire: _EventWire) -> Iterator[RemoteEvent]:
        match wire.type:
            case "content_block_delta" if wire.delta is not None:
                yield from self._grown(self._block(wire.index), wire.delta)
            case "content_block_start" if wire.content_block is not None:
                yield from self._begun(wire.index, wire.content_block)
            case "content_block_stop":
                yield from self._ended(self._open.pop(wire.index, None))
            case "message_start" if wire.message is not None:
                self._count(wire.message.usage)
            case "message_delta":
                self._count(wire.usage)
                yield from self._finish(wire.delta or _DeltaWire())
            case "message_stop":
                self.is_done = True
            case "message":
                yield from self._whole(wire)
            case "error":
                raise stream_error(wire.error or _MessagesError())

    def _whole(self, wire: _EventWire) -> Iterator[RemoteEvent]:
        for index, block in enumerate(wire.content or ()):
            yield from self._begun(index, block)
            yield from self._ended(self._open.pop(index))
        self._count(wire.usage)
        yield from self._finish(wire)

    def _block(self, index: int) -> _OpenBlock:
        if (found := self._open.get(index)) is None:
            raise broken(f"a delta of the block {index}, which is not open")
        return found

    def _begun(self, index: int, wire: _BlockWire) -> Iterator[RemoteEvent]:
        """Its beginning may hold some of it, or all."""
        if len(self._open) == MOST_CALLS or self._calls == MOST_CALLS:
            raise too_large(f"more than {MOST_CALLS} blocks in one answer")
        block = self._open[index] = _OpenBlock(wire)
        if wire.type == "tool_use":
            block.call, self._calls = self._calls, self._calls + 1
            yield RemoteDelta(calls=(RemoteCall(block.call, wire.id or "", wire.name or ""),))
        yield from self._grown(block, wire)

    def _grown(self, block: _OpenBlock, delta: _DeltaWire) -> Iterator[RemoteEvent]:
        if delta.text and block.wire.type == "text":
            yield RemoteDelta(content=delta.text)
        elif delta.thinking and block.wire.type == "thinking":
            block.thought.append(delta.thinking)
            yield RemoteDelta(reasoning=delta.thinking)
        elif delta.partial_json and block.call is not None:
            block.has_arguments = True
            yield RemoteDelta(calls=(RemoteCall(block.call, arguments=delta.partial_json),))
        if delta.signature and block.signed <= MOST_SIGNATURE:
            block.signature.append(delta.signature)
            block.signed += len(delta.signature)

    def _ended(self, block: _OpenBlock | None) -> Iterator[RemoteEvent]:
        """A call without arguments has none: `{}`; one may have come with its beginning."""
        if block is None:
            return
        if block.thought:
            self._signatures.keep("".join(block.thought), "".join(block.signature))
        if block.call is not None and not block.has_arguments:
            arguments = msgspec.json.encode(block.wire.input or {}).decode()
            yield RemoteDelta(calls=(RemoteCall(block.call, arguments=arguments),))

    def _finish(self, delta: _DeltaWire) -> Iterator[RemoteEvent]:
        if delta.stop_reason is None or self._finished:
            return
        self._finished = True
        yield RemoteDelta(finished=FINISH.get(delta.stop_reason, "stop"), stop=delta.stop_sequence)
        yield self._used()

    def _count(self, wire: _UsageWire | None) -> None:
        """Later counts take the place of earlier ones; what isn't reported stays."""
        if wire is None:
            return
        counts = {name: value for name, value in msgspec.structs.asdict(wire).items() if value}
        self._usage = msgspec.structs.replace(self._usage, **counts)

    def _used(self) -> RemoteUsage:
        """All of a prompt counts, also what was found in a cache or put there."""
        usage = self._usage
        cached = max(0, usage.cache_read_input_tokens or 0)
        fresh = max(0, usage.input_tokens or 0) + max(0, usage.cache_creation_input_tokens or 0)
        return RemoteUsage(
            prompt_tokens=fresh + cached,
            completion_tokens=max(0, usage.output_tokens or 0),
            cached_tokens=cached,
        )


def stream_error(wire: _MessagesError) -> UpstreamError:
    """An error inside a stream. Its message is still the other server's own."""
    status = _STATUS.get(wire.type, 502)
    kind = Unhealthy if status in (502, 504) else UpstreamError
    return kind(wire.message, status=status, type=wire.type)
