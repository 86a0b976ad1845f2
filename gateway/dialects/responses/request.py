"""Parses a `/v1/responses` body. Knows no model and no store: earlier items are passed in.

The tools of a response, and the choice among them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from backends.protocol import JsonObject, JsonSchema
from gateway.dialects.fields import Fields, read_fields, unapplied_below
from gateway.dialects.parameters import (
    SamplingWire,
    read_choice_mode,
    read_keep_alive,
    read_sampling,
    read_stop,
    require_tool,
)
from gateway.dialects.responses.items import (
    ConversationWire,
    CreateWire,
    InputWire,
    Item,
    ToolChoiceWire,
    ToolWire,
    as_items,
    is_reference,
    read_items,
    resolved,
    unpacked,
)
from gateway.request import (
    ChatRequest,
    GenerationParams,
    Message,
    NamedTool,
    TextPart,
    Thinking,
    Tool,
    ToolChoice,
    Unapplied,
    all_unapplied,
)


class Tools(msgspec.Struct, frozen=True):
    """What may be called, and whether something must be. `unapplied`: what can't be."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    unapplied: tuple[Unapplied, ...] = ()


def read_tools(
    fields: Fields, wires: Sequence[ToolWire], choice: str | ToolChoiceWire | None
) -> Tools:
    """Tools that OpenAI's servers run (`web_search`, …) are left out, and named. Raises
    InvalidRequest.
    """
    tools = tuple(
        _tool(fields, f"tools[{k}]", wire)
        for k, wire in enumerate(wires)
        if wire.type == "function"
    )
    chosen, allowed = _choice(fields, choice, tools)
    others = (f"tools[{k}]" for k, wire in enumerate(wires) if wire.type != "function")
    return Tools(allowed, chosen, all_unapplied(*others))


def _tool(fields: Fields, path: str, wire: ToolWire) -> Tool:
    function = wire.function or wire
    if not function.name:
        raise fields.wrong(f"{path}.name", "A function needs a name.")
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict,
    )


def _choice(
    fields: Fields, wire: str | ToolChoiceWire | None, tools: tuple[Tool, ...]
) -> tuple[ToolChoice, tuple[Tool, ...]]:
    match wire:
        case None:
            return ("auto" if tools else "none"), tools
        case ToolChoiceWire(type="function", name=name):
            require_tool(fields, "tool_choice.name", name, {tool.name for tool in tools})
            return NamedTool(name), tools
        case ToolChoiceWire(type="allowed_tools"):
            return _among(fields, wire, tools)
        case str(mode):
            return read_choice_mode(fields, "tool_choice", mode, tools), tools
    message = "Expected 'none', 'auto', 'required', a function, or allowed_tools."
    raise fields.wrong("tool_choice", message)


def _among(
    fields: Fields, wire: ToolChoiceWire, tools: tuple[Tool, ...]
) -> tuple[ToolChoice, tuple[Tool, ...]]:
    known = {tool.name for tool in tools}
    for k, named in enumerate(wire.tools):
        if named.type == "function":
            require_tool(fields, f"tool_choice.tools[{k}].name", named.name, known)
    names = {named.name for named in wire.tools}
    allowed = tuple(tool for tool in tools if tool.name in names)
    return read_choice_mode(fields, "tool_choice.mode", wire.mode, allowed), allowed


LOGPROBS = "message.output_text.logprobs"
PACKED = "reasoning.encrypted_content"
INCLUDED = (LOGPROBS, PACKED)
# What an answer repeats of its request as it came.
ECHOED = ("metadata", "reasoning", "text", "tool_choice", "tools")

_FIELDS = frozenset((*CreateWire.__struct_fields__, *SamplingWire.__struct_fields__))


class ResponsesExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the form of its answer.

    `items` are those of this request; what came before stands in the store, under `previous` or
    `conversation`. `echoed`: fields of the body that the answer repeats.
    """

    request: ChatRequest  # of `items` alone
    items: tuple[Item, ...]
    echoed: Mapping[str, Any]
    instructions: str | None = None
    stream: bool = False
    store: bool = True
    background: bool = False
    truncates: bool = False
    summarizes: bool = False  # reasoning is sent as a summary
    packs_reasoning: bool = False  # and once more for the client to carry, see `encrypted_content`
    previous: str | None = None
    conversation: str | None = None

    def resolved(self, found: Mapping[str, Item]) -> "ResponsesExchange":
        """With those of `found` in the place of references. Raises NotFound, InvalidRequest."""
        items = resolved(self.items, found)
        request = self._asking(items)
        return msgspec.structs.replace(self, items=items, request=request)

    def behind(self, history: Sequence[Item]) -> ChatRequest:
        """The whole request, `history` first."""
        if not history:
            return self.request
        return self._asking([*history, *self.items])

    def _asking(self, items: Sequence[Item]) -> ChatRequest:
        return msgspec.structs.replace(
            self.request,
            messages=(*_system(self.instructions), *read_items(items)),
            continue_final=_breaks_off(items),
        )


def read_response(body: bytes) -> ResponsesExchange:
    """What the body means. Raises InvalidRequest, which names the field."""
    fields = read_fields(body)
    wire = fields.read(CreateWire)
    _refuse_contradictions(fields, wire)
    items = as_items(wire.input)
    if not (items or wire.previous_response_id or wire.conversation or wire.instructions):
        raise fields.wrong("input", "At least one item is required.")
    tools = read_tools(fields, wire.tools, wire.tool_choice)
    verbosity = wire.text.verbosity
    return ResponsesExchange(
        request=ChatRequest(
            model=wire.model,
            messages=(*_system(wire.instructions), *read_items(items, passing=is_reference)),
            answering=msgspec.structs.replace(
                _answering(fields, wire),
                unapplied=(*_unapplied(fields, wire, items), *tools.unapplied),
            ),
            tools=tools.tools,
            tool_choice=tools.choice,
            parallel_tool_calls=wire.parallel_tool_calls,
            thinking=_thinking(wire),
            template_variables={} if verbosity is None else {"verbosity": verbosity},
            continue_final=_breaks_off(items),
        ),
        items=tuple(items),
        echoed={name: fields.values[name] for name in ECHOED if name in fields.values},
        instructions=wire.instructions,
        stream=wire.stream,
        store=wire.store,
        background=wire.background,
        truncates=wire.truncation == "auto",
        summarizes=bool(wire.reasoning.summary or wire.reasoning.generate_summary),
        packs_reasoning=PACKED in wire.include,
        previous=wire.previous_response_id,
        conversation=_conversation(wire),
    )


def _breaks_off(items: Sequence[Item]) -> bool:
    """The last item is an answer that was cut, and is gone on with; behind a whole one another
    begins, as with OpenAI.
    """
    last = items[-1] if items else {}
    return (
        last.get("type", "message") == "message"
        and last.get("role") == "assistant"
        and last.get("status") in ("incomplete", "in_progress")
        and bool(last.get("content"))
    )


def _unapplied(fields: Fields, wire: CreateWire, items: Sequence[Item]) -> Iterator[Unapplied]:
    """What has no meaning here, and reasoning that was packed elsewhere."""
    yield from fields.unapplied(_FIELDS)
    yield from unapplied_below(fields.values, CreateWire)
    yield from unapplied_below({"input": items}, InputWire)
    yield from all_unapplied(
        *(f"include[{k}]" for k, name in enumerate(wire.include) if name not in INCLUDED)
    )
    packed = (item.get("encrypted_content") for item in items)
    if any(isinstance(one, str) and one and unpacked(one) is None for one in packed):
        yield Unapplied("input[].encrypted_content", "it was packed by another server")


def _refuse_contradictions(fields: Fields, wire: CreateWire) -> None:
    if wire.previous_response_id and wire.conversation:
        raise fields.wrong("conversation", "Not together with previous_response_id.")
    if wire.background and not wire.store:
        raise fields.wrong("background", "A background response must be stored: store is false.")
    if wire.truncation not in ("auto", "disabled"):
        message = f"Expected 'auto' or 'disabled', got {wire.truncation!r:.64}."
        raise fields.wrong("truncation", message)


def _conversation(wire: CreateWire) -> str | None:
    named = wire.conversation
    return named.id if isinstance(named, ConversationWire) else named


def _system(instructions: str | None) -> tuple[Message, ...]:
    if not instructions:
        return ()
    return (Message(role="system", parts=(TextPart(instructions),)),)


def _answering(fields: Fields, wire: CreateWire) -> GenerationParams:
    wants_logprobs = LOGPROBS in wire.include or wire.top_logprobs > 0
    return GenerationParams(
        sampling=read_sampling(fields),
        max_tokens=wire.max_output_tokens,
        stop=read_stop(fields, wire.stop),
        logprobs=wire.top_logprobs if wants_logprobs else None,
        keep_alive=read_keep_alive(fields, wire.keep_alive),
        shape=_shape(fields, wire),
        spelled={**fields.otherwise(), "max_tokens": "max_output_tokens", "messages": "input"},
    )


def _shape(fields: Fields, wire: CreateWire) -> JsonObject | JsonSchema | None:
    asked = wire.text.format
    match asked.type:
        case "text":
            return None
        case "json_object":
            return JsonObject(field="text.format")
        case "json_schema" if asked.schema is not None:
            return JsonSchema(
                schema=msgspec.json.encode(asked.schema),
                strict=bool(asked.strict),
                field="text.format.schema",
            )
        case "json_schema":
            raise fields.wrong("text.format.schema", "This field is required.")
    message = f"Expected 'text', 'json_object' or 'json_schema', got {asked.type!r:.64}."
    raise fields.wrong("text.format.type", message)


def _thinking(wire: CreateWire) -> Thinking:
    effort = wire.reasoning.effort
    return Thinking(enabled=False if effort == "none" else None, effort=effort)
