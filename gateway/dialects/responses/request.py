"""Parses a `/v1/responses` body. Knows no model and no store: earlier items are passed in."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from config.values import alike
from gateway.dialects.fields import Fields, read_fields
from gateway.dialects.parameters import read_answering
from gateway.dialects.responses.items import (
    ConversationWire,
    CreateWire,
    InputWire,
    Item,
    as_items,
    is_plain,
    packed,
    read_items,
    require_calls,
    resolved,
    since_compaction,
    unpacked,
)
from gateway.dialects.responses.mcp_items import approved_calls, settled
from gateway.dialects.responses.tools import Toolbox, Tools
from gateway.dialects.served import without_secrets
from gateway.terms.errors import NotFound
from gateway.terms.request import (
    CallLimit,
    ChatRequest,
    GenerationParams,
    Message,
    TextPart,
    Thinking,
    Unapplied,
    all_unapplied,
)

LOGPROBS = "message.output_text.logprobs"
PACKED = "reasoning.encrypted_content"
# Pictures' addresses are always there: items are kept, and listed, as they came.
INCLUDED = (
    LOGPROBS,
    PACKED,
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
)
TRUNCATES = {"auto": True, "disabled": False}
# What an answer repeats of its request as it came.
ECHOED = (
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "text",
    "tool_choice",
    "tools",
)


class ResponsesExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the form of its answer.

    `items` are those of this request; what came before stands in the store, under `previous` or
    `conversation`; `after` puts it before them, once. `echoed`: fields of the body that the answer
    repeats.
    """

    request: ChatRequest  # its messages and tools: once what came before is known
    items: tuple[Item, ...]
    whole: tuple[Item, ...] = ()  # with what came before
    toolbox: Toolbox
    opened: Tools = Tools()  # the tools, as `whole` opens them
    echoed: Mapping[str, Any]
    instructions: str | None = None
    store: bool = True
    background: bool = False
    generates: bool = True  # else the prompt alone is computed, for what will go on from it
    truncates: bool = False
    summarizes: bool = False  # reasoning is sent as a summary
    standard: bool = False  # events are named as Open Responses has it, where OpenAI's differ
    packs_reasoning: bool = False  # and once more for the client to carry, see `encrypted_content`
    previous: str | None = None
    conversation: str | None = None
    compacts: bool = False  # an item says so
    compact_threshold: int | None = None  # or that the prompt has more tokens

    def compacted(self, summary: str) -> ChatRequest:
        """The request with `summary` in place of all but what users said."""
        packed_ = {"type": "compaction", "encrypted_content": packed(summary)}
        said = [item for item in self.whole if item.get("type") != "compaction_trigger"]
        last = len(said)
        while last and said[last - 1].get("role") == "user":
            last -= 1
        return self._asking([*said[:last], packed_, *said[last:]])

    def after(
        self, history: Sequence[Item] = (), found: Mapping[str, Item] = {}
    ) -> "ResponsesExchange":
        """The same, with the whole request: `history` before its items, and those of `found` in the
        place of references. Raises NotFound, InvalidRequest.
        """
        items = resolved(self.items, found)
        whole = (*history, *items)
        asking, opened = self.toolbox.opened(self._asking(whole), whole, -len(history))
        require_calls(items, whole)
        return msgspec.structs.replace(
            self, items=items, whole=whole, opened=opened, request=asking
        )

    def _asking(self, items: Sequence[Item]) -> ChatRequest:
        own, left = len(self.items), settled(since_compaction(items))
        said = read_items(left, first=own - len(left))  # the request's own are the last
        return msgspec.structs.replace(
            self.request,
            messages=(*_system(self.instructions), *said),
            continue_final=_breaks_off(items),
            approved=approved_calls(items, own - len(items)),
        )


def read_response(body: bytes) -> ResponsesExchange:
    """What the body means, but for its items and tools: see `after`. Raises InvalidRequest, which
    names the field, and NotFound.
    """
    fields = read_fields(body)
    wire = fields.read(CreateWire)
    _refuse_contradictions(fields, wire)
    items = as_items(wire.input)
    if not (items or wire.previous_response_id or wire.conversation or wire.instructions):
        raise fields.wrong("input", "At least one item is required.")
    verbosity = wire.text.verbosity
    return alike(ResponsesExchange, wire)(
        request=ChatRequest(
            model=wire.model,
            messages=(),
            answering=_answering(fields, wire, items),
            parallel_tool_calls=wire.parallel_tool_calls,
            call_limit=CallLimit(wire.max_tool_calls) if wire.max_tool_calls else None,
            thinking=_thinking(wire),
            template_variables={} if verbosity is None else {"verbosity": verbosity},
        ),
        items=tuple(items),
        toolbox=Toolbox(fields, wire.tools, wire.tool_choice),
        echoed={
            name: without_secrets(fields.values[name]) for name in ECHOED if name in fields.values
        },
        truncates=fields.meant("truncation", wire.truncation, TRUNCATES),
        summarizes=bool(wire.reasoning.summary or wire.reasoning.generate_summary),
        packs_reasoning=PACKED in wire.include,
        previous=wire.previous_response_id,
        conversation=_conversation(wire),
        compacts=any(item.get("type") == "compaction_trigger" for item in items),
        compact_threshold=next(
            (each.compact_threshold for each in wire.context_management if each.compact_threshold),
            None,
        ),
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


def _unapplied(wire: CreateWire, items: Sequence[Item]) -> Iterator[Unapplied]:
    """What has no meaning here in its fields, and reasoning that was packed elsewhere."""
    plain = [item for item in items if is_plain(item)]
    yield from Fields({"input": plain}, {}).unapplied(InputWire)
    if any(item.get("type") == "configuration_update" for item in items):
        yield Unapplied("input[].configuration_update", "an answer has one configuration")
    yield from all_unapplied(
        *(f"include[{k}]" for k, name in enumerate(wire.include) if name not in INCLUDED)
    )
    packed = (item.get("encrypted_content") for item in items)
    if any(isinstance(one, str) and one and unpacked(one) is None for one in packed):
        yield Unapplied("input[].encrypted_content", "it was packed by another server")


def _refuse_contradictions(fields: Fields, wire: CreateWire) -> None:
    if wire.prompt is not None:
        raise NotFound.at(
            "prompt.id",
            f"Prompt {wire.prompt.id!r:.80} not found. No prompts are stored here; send "
            "its text in instructions and input.",
        )
    if wire.previous_response_id and wire.conversation:
        raise fields.wrong("conversation", "Not together with previous_response_id.")
    if wire.background and not wire.store:
        raise fields.wrong("background", "A background response must be stored: store is false.")


def _conversation(wire: CreateWire) -> str | None:
    named = wire.conversation
    return named.id if isinstance(named, ConversationWire) else named


def _system(instructions: str | None) -> tuple[Message, ...]:
    if not instructions:
        return ()
    return (Message(role="system", parts=(TextPart(instructions),)),)


def _answering(fields: Fields, wire: CreateWire, items: Sequence[Item]) -> GenerationParams:
    wants_logprobs = LOGPROBS in wire.include or wire.top_logprobs > 0
    answering = read_answering(fields, wire)(
        max_tokens=wire.max_output_tokens,
        logprobs=wire.top_logprobs if wants_logprobs else None,
        spelled={**fields.otherwise(), "max_tokens": "max_output_tokens", "messages": "input"},
    )
    unapplied = (*answering.unapplied, *_unapplied(wire, items))
    return msgspec.structs.replace(answering, unapplied=unapplied)


def _thinking(wire: CreateWire) -> Thinking:
    effort = wire.reasoning.effort
    return Thinking(enabled=False if effort == "none" else None, effort=effort)
