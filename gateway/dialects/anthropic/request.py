"""Parses a `/v1/messages` body, from Anthropic's blocks to messages.

Knows no model and no template: whether the model supports images, reasoning or tools is checked by
the pipeline. Of the structs' fields a block's `type` says which count.

A user's turn holds the results of tools beside what the user says; here each result is a message
of its own. What a result is marked with (`is_error`) is said in its text, which is all that a model
reads.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.dialects.anthropic.editing import ContextManaged, ContextWire, edited
from gateway.dialects.anthropic.history import History, stripped
from gateway.dialects.anthropic.served import McpServerWire, read_servers
from gateway.dialects.anthropic.tools import (
    KEPT,
    ToolChoiceWire,
    ToolWire,
    read_choice,
    read_tools,
)
from gateway.dialects.fields import Fields, read_fields
from gateway.dialects.parameters import AnswerWire, read_answering
from gateway.dialects.parts import IMAGE_SCHEMES
from gateway.terms.errors import ThreadNotHeld
from gateway.terms.request import (
    ChatRequest,
    ImagePart,
    Message,
    Part,
    TextPart,
    Thinking,
    ToolCall,
    Unapplied,
    all_unapplied,
)


class SourceWire(msgspec.Struct, frozen=True):
    """The source of an image or a document."""

    type: str
    media_type: str = ""
    data: str | None = None
    url: str | None = None
    content: "str | list[BlockWire] | None" = None


class BlockWire(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a message, of the system prompt, of a tool's result."""

    type: str
    text: str | None = None
    source: SourceWire | str | None = None  # a text in search results alone
    title: str | None = None
    context: str | None = None
    thinking: str | None = None
    signature: str | None = None  # of thinking: ours, not verified
    data: str | None = None  # of thinking that Anthropic encrypted
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[BlockWire] | None" = None
    is_error: bool | None = None


class MessageWire(msgspec.Struct, frozen=True):
    """One turn. `clear_at`: a message of the system may count for one turn alone."""

    role: str
    content: str | list[BlockWire] = ""
    clear_at: str | None = None


class ThinkingWire(msgspec.Struct, frozen=True, kw_only=True):
    """The model's thinking mode."""

    type: str
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class FormatWire(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the answer."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfigWire(msgspec.Struct, frozen=True):
    """The effort, and the format of the answer."""

    effort: str | None = None
    format: FormatWire | None = None


class ThreadWire(msgspec.Struct, frozen=True):
    """A conversation that the server holds: none is held here."""

    type: str


class MessagesWire(AnswerWire, frozen=True, kw_only=True):
    """A body, sampling aside."""

    messages: list[MessageWire]
    system: str | list[BlockWire] = ""
    tools: Sequence[ToolWire] = ()
    tool_choice: ToolChoiceWire | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: list[str] = msgspec.field(default_factory=list)
    thinking: ThinkingWire | None = None
    output_config: OutputConfigWire = OutputConfigWire()
    output_format: FormatWire | None = None  # its name before there was output_config
    context_management: ContextWire | None = None
    mcp_servers: Sequence[McpServerWire] = ()
    thread: ThreadWire | None = None  # "create" is left out, "continue" refused


ERROR = "Error: "  # before the result of a tool that failed
# A line that a coding agent puts first into the system prompt, for billing. It differs in each
# request, so a prompt that began with it would never hit the prefix cache.
BOOKKEEPING = "x-anthropic-billing-header:"


def read_system(fields: Fields, system: str | list[BlockWire]) -> tuple[Message, ...]:
    """The system prompt as a message; none if it is empty. Raises InvalidRequest."""
    blocks = _blocks(system)
    kept = [block for block in blocks if not is_bookkeeping(block)]
    parts = _parts(fields, "system", kept, ("text",)) if kept else ()
    return (Message(role="system", parts=parts),) if parts else ()


def is_bookkeeping(block: BlockWire) -> bool:
    """Whether the block is not meant for the model."""
    return (block.text or "").startswith(BOOKKEEPING)


def read_turn(fields: Fields, path: str, wire: MessageWire) -> Iterator[Message]:
    """The messages that one turn is. Raises InvalidRequest."""
    read = fields.meant(f"{path}.role", wire.role, _BY_ROLE)
    return read(fields, path, _blocks(wire.content))


def _blocks(content: str | list[BlockWire]) -> list[BlockWire]:
    if isinstance(content, list):
        return content
    return [BlockWire(type="text", text=content)] if content else []


def _instructions(fields: Fields, path: str, blocks: Sequence[BlockWire]) -> Iterator[Message]:
    yield Message(role="system", parts=_parts(fields, f"{path}.content", blocks, ("text",)))


def _user(fields: Fields, path: str, blocks: Sequence[BlockWire]) -> Iterator[Message]:
    parts: list[Part] = []
    for k, block in enumerate(blocks):
        place = f"{path}.content[{k}]"
        if block.type != "tool_result":
            parts += _part(fields, place, block)
            continue
        if parts:
            yield Message(role="user", parts=tuple(parts))
            parts = []
        yield _result(fields, place, block)
    if parts or not blocks:
        yield Message(role="user", parts=tuple(parts))


def _result(fields: Fields, path: str, block: BlockWire) -> Message:
    if block.tool_use_id is None:
        raise fields.wrong(f"{path}.tool_use_id", "This field is required.")
    parts = _parts(fields, f"{path}.content", _blocks(block.content or ""))
    if block.is_error:
        parts = _marked(parts)
    return Message(role="tool", parts=parts, tool_call_id=block.tool_use_id)


def _marked(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    match parts:
        case (TextPart(text), *rest):
            return (TextPart(ERROR + text), *rest)
        case _:
            return (TextPart(ERROR), *parts)


def _assistant(fields: Fields, path: str, blocks: Sequence[BlockWire]) -> Iterator[Message]:
    """Its message; several where results of MCP servers' tools or a summary stand in between."""
    said: list[tuple[str, BlockWire]] = []
    for k, block in enumerate(blocks):
        place = f"{path}.content[{k}]"
        match block:
            case BlockWire(type="tool_result"):
                yield from _said(fields, said)
                yield _result(fields, place, block)
                said = []
            case BlockWire(type="compaction", text=str(text)):
                yield from _said(fields, said)
                yield Message(role="user", parts=(TextPart(text),))
                said = []
            case _:
                said.append((place, block))
    yield from _said(fields, said)
    if not blocks:
        yield Message(role="assistant")


def _said(fields: Fields, blocks: Sequence[tuple[str, BlockWire]]) -> Iterator[Message]:
    """The assistant's message that `blocks` are, if they say something."""
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for place, block in blocks:
        match block:
            case BlockWire(type="thinking", thinking=str(text)):
                thoughts.append(text)
            case BlockWire(type="redacted_thinking"):
                pass  # encrypted by Anthropic; listed in `x-roundhouse-ignored`
            case BlockWire(type="tool_use", id=str(call_id), name=str(name)):
                given = msgspec.json.encode(block.input or {}).decode()
                calls.append(ToolCall(call_id, name, given))
            case BlockWire(type="thinking" | "tool_use"):
                raise fields.wrong(place, f"A {block.type} block lacks one of its fields.")
            case _:
                parts += _part(fields, place, block, ("text",))
    if parts or thoughts or calls:
        yield Message(
            role="assistant",
            parts=tuple(parts),
            reasoning="\n\n".join(thoughts) or None,
            tool_calls=tuple(calls),
        )


_BY_ROLE = {"user": _user, "assistant": _assistant, "system": _instructions}
_KNOWN = ("text", "image", "document", "search_result", "compaction")


def _parts(
    fields: Fields, path: str, blocks: Sequence[BlockWire], known: Sequence[str] = _KNOWN
) -> tuple[Part, ...]:
    found: list[Part] = []
    for k, block in enumerate(blocks):
        found += _part(fields, f"{path}[{k}]", block, known)
    return tuple(found)


def _part(
    fields: Fields, path: str, block: BlockWire, known: Sequence[str] = _KNOWN
) -> tuple[Part, ...]:
    """What one block says; nothing for an empty text."""
    if block.type not in known:
        names = ", ".join(repr(name) for name in known)
        raise fields.wrong(f"{path}.type", f"Expected one of {names} here, got {block.type!r:.64}.")
    match block:
        case BlockWire(type="text" | "compaction", text=str(text)):
            return (TextPart(text),) if text else ()
        case BlockWire(type="text"):
            raise fields.wrong(f"{path}.text", "This field is required.")
        case BlockWire(type="image", source=SourceWire() as source):
            return (_image(fields, f"{path}.source", source),)
        case BlockWire(type="document", source=SourceWire() as source):
            return _document(fields, path, block, source)
        case BlockWire(type="search_result", source=str(source)):
            return _headed((block.title, source), _inside(fields, path, block.content))
        case _:
            raise fields.wrong(f"{path}.source", "This field is required.")


def _image(fields: Fields, path: str, source: SourceWire) -> ImagePart:
    match source:
        case SourceWire(type="base64", data=str(data)):
            return ImagePart(f"data:{source.media_type};base64,{data}", field=f"{path}.data")
        case SourceWire(type="url", url=str(url)) if url.startswith(IMAGE_SCHEMES):
            return ImagePart(url, field=f"{path}.url")
        case SourceWire(type="base64" | "url"):
            raise fields.wrong(path, "An image needs its data, or an http: or https: URL.")
    raise fields.wrong(f"{path}.type", f"Expected 'base64' or 'url', got {source.type!r:.64}.")


def _document(fields: Fields, path: str, block: BlockWire, source: SourceWire) -> tuple[Part, ...]:
    """A plain text, or blocks. PDF is not supported."""
    match source:
        case SourceWire(type="text", data=str(data)):
            return _headed((block.title, block.context), (TextPart(data),))
        case SourceWire(type="content"):
            inside = _inside(fields, f"{path}.source", source.content)
            return _headed((block.title, block.context), inside)
    message = f"Documents of type {source.type!r:.64} are not supported; send their text."
    raise fields.wrong(f"{path}.source.type", message)


def _inside(fields: Fields, path: str, content: str | list[BlockWire] | None) -> tuple[Part, ...]:
    return _parts(fields, f"{path}.content", _blocks(content or ""), ("text", "image"))


def _headed(lines: Sequence[str | None], parts: tuple[Part, ...]) -> tuple[Part, ...]:
    head = "\n".join(line for line in lines if line)
    return (TextPart(head), *parts) if head else parts


# Fields that change nothing about an answer here, and why.
HARMLESS = {
    "cache_control": "prompts are always cached",
    "diagnostics": "about Anthropic's cache",
    "inference_geo": "the answer is made here",
    "service_tier": "there is one",
    "speed": "there is one",
    "user_profile_id": "user identifiers are not used",
    "workspace_id": "whose books it goes to",
}


class MessagesExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the form of its answer."""

    request: ChatRequest
    managed: ContextManaged | UnsetType = UNSET  # `context_management` was not asked for


def read_messages(body: bytes) -> MessagesExchange:
    """What the body means. Raises InvalidRequest, which names the field."""
    fields, history = _readable(_with_stop(read_fields(body)))
    wire = fields.read(MessagesWire)
    if wire.thread is not None and wire.thread.type == "continue":
        message = "No conversations are held here; send all messages of this one."
        raise ThreadNotHeld.at("thread", message)
    tools, left_out = read_tools(fields, wire.tools, history, wire.tool_choice)
    served = read_servers(fields, wire.mcp_servers, wire.tools)
    edit = edited(_messages(fields, wire, history), wire.context_management)
    answering = read_answering(fields, wire, HARMLESS)()
    unapplied = (
        *answering.unapplied,
        *_unapplied(fields, wire),
        *left_out,
        *history.unapplied.values(),
        *edit.unapplied,
    )
    return MessagesExchange(
        request=ChatRequest(
            model=wire.model,
            messages=edit.messages,
            answering=msgspec.structs.replace(answering, unapplied=unapplied),
            tools=tools,
            tool_choice=read_choice(
                fields, wire.tools, tools, wire.tool_choice, has_served=bool(served)
            ),
            served=served,
            parallel_tool_calls=not (
                wire.tool_choice and wire.tool_choice.disable_parallel_tool_use
            ),
            thinking=_thinking(fields, wire),
            continue_final=_continues(edit.messages[-1]),
        ),
        managed=edit.managed,
    )


def _with_stop(fields: Fields) -> Fields:
    """Anthropic's own stop strings count where others stand beside them, which may be a text."""
    own, values, spelled = "stop_sequences", dict(fields.values), dict(fields.spelled)
    if own in values:
        others, values["stop"] = values.get("stop"), values.pop(own)
        name, spelled["stop"] = spelled.get("stop", "stop"), own
        if others is not None:
            values[own], spelled[own] = others, name  # so that they are named as not applied
    elif isinstance(text := values.get("stop"), str):
        values["stop"] = [text]
    return msgspec.structs.replace(fields, values=values, spelled=spelled)


def _readable(fields: Fields) -> tuple[Fields, History]:
    """The body with blocks and tools alone that the structs describe."""
    history = History(fields.values.get("messages"))
    history.read()
    values = dict(fields.values)
    if "messages" in values:
        values["messages"] = history.messages
    if isinstance(tools := values.get("tools", []), list) and (tools or history.added):
        values["tools"] = stripped([*tools, *history.added], KEPT)
    return msgspec.structs.replace(fields, values=values), history


def _messages(fields: Fields, wire: MessagesWire, history: History) -> tuple[Message, ...]:
    if not wire.messages:
        raise fields.wrong("messages", "At least one message is required.")
    answered = max((k for k, m in enumerate(wire.messages) if m.role == "user"), default=-1)
    messages = [
        message
        for k, turn in enumerate(wire.messages)
        if k >= history.first and not (turn.clear_at == "next_user_message" and k < answered)
        for message in read_turn(fields, f"messages[{k}]", turn)
    ]
    if _is_silent(messages[-1]) and len(messages) > 1:
        messages.pop()  # an empty prefill: an answer like any other
    return (*read_system(fields, wire.system), *messages)


def _is_silent(last: Message) -> bool:
    return last.role == "assistant" and not (last.parts or last.reasoning or last.tool_calls)


def _continues(last: Message) -> bool:
    """A trailing turn of the assistant is the beginning of the answer."""
    return last.role == "assistant" and not last.tool_calls


def _unapplied(fields: Fields, wire: MessagesWire) -> Iterator[Unapplied]:
    """What else has no meaning here, named once however often it stands in the body."""
    system = wire.system if isinstance(wire.system, list) else []
    yield from all_unapplied(
        *(f"system[{k}]" for k, block in enumerate(system) if is_bookkeeping(block))
    )
    if "thread" in fields.values:
        yield Unapplied("thread", "no conversations are held here")
    blocks = (block for message in wire.messages for block in _blocks(message.content))
    if any(block.type == "redacted_thinking" for block in blocks):
        yield Unapplied("messages[].content[].redacted_thinking")


def _thinking(fields: Fields, wire: MessagesWire) -> Thinking:
    """Without a request for thinking there is none, and none is shown: much client code reads the
    first block as text.
    """
    effort = wire.output_config.effort
    match wire.thinking:
        case None | ThinkingWire(type="disabled"):
            return Thinking(enabled=False, effort=effort, shown="hidden")
        case ThinkingWire(type="enabled" | "adaptive" | "between_tools") as asked:
            return Thinking(
                enabled=True,
                effort=effort,
                budget=asked.budget_tokens,
                shown="hidden" if asked.display == "omitted" else "split",
            )
        case ThinkingWire(type=kind):
            message = f"Expected 'enabled', 'adaptive' or 'disabled', got {kind!r:.64}."
            raise fields.wrong("thinking.type", message)
