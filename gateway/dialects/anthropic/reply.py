"""Anthropic's reply: an answer as blocks in sequence, each started, extended and ended. Knows no
HTTP.

Both forms are made of the same events, so that a stream put together by a client equals the body it
would have got. A block that says nothing is never begun.
"""

from typing import ClassVar

import msgspec

from gateway.dialects.anthropic.errors import error_event
from gateway.dialects.anthropic.reply_wire import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Count,
    Ending,
    Increment,
    InputDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageWhole,
    OutputDetails,
    Ping,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    UsageWire,
)
from gateway.dialects.anthropic.request import MessagesExchange
from gateway.dialects.frames import PLACEHOLDER, FrameTemplate, body, named_frame
from gateway.errors import GatewayError
from gateway.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ToolClosed,
    ToolOpened,
    Usage,
)

PING = named_frame(b"ping", Ping())
NO_INPUT = msgspec.Raw(b"{}")

_STOPS: dict[FinishReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def count_body(tokens: int) -> bytes:
    """The body of a token count."""
    return body(Count(tokens))


class _Ended:
    """How an answer ended, once it has."""

    def __init__(self) -> None:
        self._reason: StopReason = "end_turn"
        self._sequence: str | None = None

    def take(self, event: Finished) -> None:
        self._reason = _STOPS[event.reason]
        if event.stop is not None:
            self._reason, self._sequence = "stop_sequence", event.stop

    def ending(self) -> Ending:
        return Ending(self._reason, self._sequence)


class _Blocks:
    """Frames of the blocks. At most one is open; calls are sent one after the other."""

    _GROWN: ClassVar[dict[type[Block], Increment]] = {
        TextBlock: TextDelta(PLACEHOLDER),
        ThinkingBlock: ThinkingDelta(PLACEHOLDER),
        ToolUseBlock: InputDelta(PLACEHOLDER),
    }

    def __init__(self, signature: str) -> None:
        self.open: type[Block] | None = None
        self._index = -1
        self._signature = signature
        self._template: FrameTemplate | None = None

    def grow(self, text: str) -> bytes:
        """Some more of the block that is open: the frame of nearly every token."""
        assert self._template is not None, "a block is open"
        return self._template.render(text)

    def begin(self, block: Block) -> bytes:
        """A new block, behind the end of the one before."""
        ended = self.end()
        self._index += 1
        self.open = type(block)
        grown = BlockDelta(self._index, self._GROWN[self.open])
        self._template = FrameTemplate(named_frame(b"content_block_delta", grown))
        return ended + named_frame(b"content_block_start", BlockStart(self._index, block))

    def end(self) -> bytes:
        """The end of the block that is open, if there is one."""
        if self.open is None:
            return b""
        signed = self._signed() if self.open is ThinkingBlock else b""
        self.open = None
        return signed + named_frame(b"content_block_stop", BlockStop(self._index))

    def _signed(self) -> bytes:
        delta = BlockDelta(self._index, SignatureDelta(self._signature))
        return named_frame(b"content_block_delta", delta)


class _Fold:
    """The blocks of a whole answer while they grow."""

    def __init__(self, signature: str) -> None:
        self._signature = signature
        self._grown: list[tuple[type[Block], ToolOpened | None, list[str]]] = []

    def add(self, event: Event) -> None:
        match event:
            case Content(text):
                self._text(TextBlock, text)
            case Reasoning(text):
                self._text(ThinkingBlock, text)
            case ToolOpened():
                self._grown.append((ToolUseBlock, event, []))
            case ArgumentsGrown(fragment=fragment):
                self._grown[-1][2].append(fragment)

    def _text(self, kind: type[Block], text: str) -> None:
        if not self._grown or self._grown[-1][0] is not kind:
            self._grown.append((kind, None, []))
        self._grown[-1][2].append(text)

    def blocks(self) -> tuple[Block, ...]:
        return tuple(
            self._block(kind, opened, "".join(texts)) for kind, opened, texts in self._grown
        )

    def _block(self, kind: type[Block], opened: ToolOpened | None, text: str) -> Block:
        if opened is not None:
            given = msgspec.Raw(text.encode()) if text else NO_INPUT
            return ToolUseBlock(opened.id, opened.name, given)
        return TextBlock(text) if kind is TextBlock else ThinkingBlock(text, self._signature)


class MessagesReply:
    """The answer to one request, as a stream or whole; see `gateway.http.exchange.Reply`."""

    def __init__(
        self, exchange: MessagesExchange, *, id: str, model: str, prompt_tokens: int
    ) -> None:
        """`prompt_tokens` are sent when the answer begins; what was cached is not known then."""
        self._id = id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._hides_thinking = exchange.request.thinking.shown == "hidden"
        self._ended = _Ended()
        self._blocks = _Blocks(signature=id)
        self._fold = _Fold(signature=id)

    def opening(self) -> bytes:
        """The message without content."""
        usage = UsageWire(input_tokens=self._prompt_tokens, output_tokens=0)
        return named_frame(b"message_start", MessageStart(self._message((), None, usage)))

    def delta(self, delta: Delta) -> bytes:
        """Some more of the answer."""
        match delta.events:
            case (Content(text),) if text and self._blocks.open is TextBlock:
                return self._blocks.grow(text)
        return b"".join([self._frames(event) for event in delta.events])

    def _frames(self, event: Event) -> bytes:
        match event:
            case Content(text):
                return self._grow_text(TextBlock(""), text)
            case Reasoning(text):
                return b"" if self._hides_thinking else self._grow_text(ThinkingBlock("", ""), text)
            case ToolOpened(_, call_id, name):
                return self._blocks.begin(ToolUseBlock(call_id, name, NO_INPUT))
            case ArgumentsGrown(fragment=fragment):
                return self._blocks.grow(fragment) if fragment else b""
            case ToolClosed():
                return self._blocks.end()
            case Finished():
                self._ended.take(event)
                return self._blocks.end()

    def _grow_text(self, empty: Block, text: str) -> bytes:
        if not text:
            return b""
        begun = b"" if self._blocks.open is type(empty) else self._blocks.begin(empty)
        return begun + self._blocks.grow(text)

    def closing(self, usage: Usage) -> bytes:
        """Why it ended, what it cost, and the end."""
        last = MessageDelta(self._ended.ending(), _usage(usage))
        return named_frame(b"message_delta", last) + named_frame(b"message_stop", MessageStop())

    def failed(self, error: GatewayError) -> bytes:
        """The last event of a broken stream."""
        return error_event(error)

    def add(self, delta: Delta) -> None:
        """Keep some more for `whole`."""
        for event in delta.events:
            match event:
                case Finished():
                    self._ended.take(event)
                case Reasoning() if self._hides_thinking:
                    pass
                case Content("") | Reasoning(""):
                    pass
                case _:
                    self._fold.add(event)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        return body(self._message(self._fold.blocks(), self._ended.ending(), _usage(usage)))

    def _message(
        self, content: tuple[Block, ...], ending: Ending | None, usage: UsageWire
    ) -> MessageWhole:
        return MessageWhole(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=ending.stop_reason if ending else None,
            stop_sequence=ending.stop_sequence if ending else None,
            usage=usage,
        )


def _usage(usage: Usage) -> UsageWire:
    return UsageWire(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens_details=OutputDetails(usage.reasoning_tokens),
    )
