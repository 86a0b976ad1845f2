"""Answers of an upstream that speaks Anthropic's Messages, as events; whole ones too.

https://docs.anthropic.com/en/api/messages-streaming. Blocks of tools that run there (searches,
code) are its own; the text around them is the answer.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from backends.errors import UpstreamError
from backends.remote import RemoteCall, RemoteDelta, RemoteEvent, RemoteUsage
from backends.upstream.calls import MOST_CALLS
from backends.upstream.faults import Unhealthy, broken, too_large
from backends.upstream.messages.signatures import MOST_SIGNATURE, Signatures, hasher

# Why it stopped, by OpenAI's names. Others become "stop".
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
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


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class _BlockWire(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _DeltaWire(msgspec.Struct, frozen=True):
    """Of a block, or of the message."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _UsageWire(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _MessagesError(msgspec.Struct, frozen=True):
    type: str = "api_error"
    message: str = "The upstream failed without a word."


class _MessageWire(msgspec.Struct, frozen=True):
    usage: _UsageWire | None = None


class _EventWire(msgspec.Struct, frozen=True):
    """An event, or a whole message."""

    type: str = ""
    index: int = 0
    message: _MessageWire | None = None
    content_block: _BlockWire | None = None
    delta: _DeltaWire | None = None
    usage: _UsageWire | None = None
    error: _MessagesError | None = None
    content: list[_BlockWire] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


_decode = msgspec.json.Decoder(_EventWire).decode


class _OpenBlock:
    """A block that grows."""

    def __init__(self, wire: _BlockWire) -> None:
        self.wire = wire
        self.call: int | None = None  # which call of the answer
        self.has_arguments = False
        self.thought: _Hash | None = None
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

    def read(self, payloads: Sequence[bytes]) -> list[RemoteEvent]:
        """The deltas of some events. Raises UpstreamError for an error and for what is no event."""
        return [event for payload in payloads for event in self._read(_decoded(payload))]

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
                delta = wire.delta or _DeltaWire()
                yield from self._finish(delta.stop_reason, delta.stop_sequence)
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
        yield from self._finish(wire.stop_reason, wire.stop_sequence)

    def _block(self, index: int) -> _OpenBlock:
        if (found := self._open.get(index)) is None:
            raise broken(f"more of the block {index}, which is not open")
        return found

    def _begun(self, index: int, wire: _BlockWire) -> Iterator[RemoteEvent]:
        """Its beginning may hold some of it, or all."""
        if len(self._open) == MOST_CALLS or self._calls == MOST_CALLS:
            raise too_large(f"more than {MOST_CALLS} blocks in one answer")
        block = self._open[index] = _OpenBlock(wire)
        if wire.type == "tool_use":
            block.call, self._calls = self._calls, self._calls + 1
            yield RemoteDelta(calls=(RemoteCall(block.call, wire.id or "", wire.name or ""),))
        began = _DeltaWire(text=wire.text, thinking=wire.thinking, signature=wire.signature)
        yield from self._grown(block, began)

    def _grown(self, block: _OpenBlock, delta: _DeltaWire) -> Iterator[RemoteEvent]:
        if delta.text and block.wire.type == "text":
            yield RemoteDelta(content=delta.text)
        elif delta.thinking and block.wire.type == "thinking":
            block.thought = block.thought or hasher()
            block.thought.update(delta.thinking.encode(errors="replace"))
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
        if block.thought is not None:
            self._signatures.keep(block.thought.digest(), "".join(block.signature))
        if block.call is not None and not block.has_arguments:
            arguments = msgspec.json.encode(block.wire.input or {}).decode()
            yield RemoteDelta(calls=(RemoteCall(block.call, arguments=arguments),))

    def _finish(self, reason: str | None, stop: str | None) -> Iterator[RemoteEvent]:
        if reason is None or self._finished:
            return
        self._finished = True
        yield RemoteDelta(finished=_FINISH.get(reason, "stop"), stop=stop)
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


def _decoded(payload: bytes) -> _EventWire:
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise broken(f"what can't be read ({error})") from None
    except RecursionError:
        raise broken("what can't be read (nested too deeply)") from None
