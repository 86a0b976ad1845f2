"""Parses chat and text completion bodies: the only place where a wire field becomes a request's.

Knows no model: whether it supports images, reasoning or tools is checked by the pipeline.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from backends.contract.protocol import AdapterScale
from config.values import alike
from gateway.dialects.encoding import Input, read_texts
from gateway.dialects.fields import Fields, Known, read_fields
from gateway.dialects.openai.messages import ConversationWire, read_conversation
from gateway.dialects.parameters import (
    Alternatives,
    AnswerWire,
    SamplingWire,
    read_answering,
)
from gateway.dialects.shapes import SHAPE_FIELDS
from gateway.splitter import FORMATS
from gateway.terms.request import (
    ChatRequest,
    GenerationParams,
    Message,
    TextPart,
    TextRequest,
    Thinking,
    all_unapplied,
)

Budget: TypeAlias = Annotated[int, Meta(ge=-1)]  # tokens; -1: no limit

MOST_ADAPTERS = 64  # of a request
MAX_CHOICES = 128  # as OpenAI; the server's own limit may be lower

# llama.cpp's names, and Groq's "parsed" and "raw".
_SHOWN: dict[str, Literal["split", "inline", "hidden"]] = {
    "auto": "split",
    "deepseek": "split",
    "parsed": "split",
    "none": "inline",
    "raw": "inline",
    "hidden": "hidden",
}

# OpenAI's form of before tools.
_UNMET = {
    "functions": "This form is not supported; send tools instead.",
    "function_call": "This form is not supported; send tool_choice instead.",
}


class StreamOptionsWire(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: in every chunk, where it is in the last

    @property
    def is_continuous(self) -> bool:
        return bool(self.include_usage and self.continuous_usage_stats)


class LoraWire(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's: an adapter of the model by its number, or by its name, and its scale."""

    scale: float
    id: Annotated[int, Meta(ge=0)] | None = None
    name: str | None = None


# tokens; an engine drafts no more than it would by itself
Drafted: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class SpeculativeWire(msgspec.Struct, frozen=True):
    """How many tokens are drafted at a time, at most; 0: none. llama-server's name for it is
    `n_max`, in an object or with a dot (`speculative.n_max`).
    """

    n: Drafted | None = None
    n_max: Drafted | None = None


class AnsweringWire(AnswerWire, frozen=True, kw_only=True):
    """The fields that chat and text completion share, sampling aside."""

    stream_options: StreamOptionsWire = StreamOptionsWire()
    max_tokens: Annotated[int, Meta(ge=-1)] = -1
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    id_slot: Annotated[int, Meta(ge=-1)] = -1  # llama-server's; -1: any
    lora: Annotated[list[LoraWire], Meta(max_length=MOST_ADAPTERS)] | None = None
    speculative: Drafted | SpeculativeWire | None = None
    strict_parameters: bool = False
    return_parameters: bool = False
    loading_text: bool | None = None


class ReasoningWire(msgspec.Struct, frozen=True):
    """OpenRouter's and TabbyAPI's object."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: Budget | None = None
    exclude: bool | None = None  # reason, but don't return it


class ThinkingTypeWire(msgspec.Struct, frozen=True):
    """The object of z.ai, DeepSeek and Moonshot, as Anthropic has it."""

    type: str = ""
    budget_tokens: Budget | None = None

    @property
    def enabled(self) -> bool | None:
        """None: as the model's template does by itself."""
        return {"enabled": True, "disabled": False}.get(self.type)


class ChatWire(AnsweringWire, frozen=True, kw_only=True):
    """A chat body, sampling and the conversation aside."""

    logprobs: bool | Alternatives = False
    top_logprobs: Alternatives | None = None
    parallel_tool_calls: bool = True
    template_variables: dict[str, Any] = msgspec.field(default_factory=dict)
    verbosity: str | None = None
    stop_in_reasoning: bool = False
    continue_final_message: bool | None = None
    allow_control_tokens: bool | None = None
    answer_format: str | None = None
    add_generation_prompt: bool | None = None
    response_prefix: str = ""
    return_progress: bool = False  # llama-server's
    logprobs_of: Literal["content", "all"] = "content"
    # Reasoning: six servers' spellings of four parameters.
    reasoning: ReasoningWire = ReasoningWire()
    thinking: ThinkingTypeWire = ThinkingTypeWire()
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: Budget | None = None
    reasoning_budget_message: str = ""
    reasoning_format: str = "auto"
    include_reasoning: bool = True


class TextWire(AnsweringWire, frozen=True, kw_only=True):
    """The body of a text completion, sampling aside."""

    prompt: Input
    suffix: str = ""
    echo: bool = False
    logprobs: Alternatives | None = None
    n_probs: Alternatives = 0  # llama.cpp's name, where 0 means none
    add_bos: bool | None = None
    include_reasoning: bool = True  # a raw text has all that was said


class AnswerForm(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is written."""

    stream_options: StreamOptionsWire = StreamOptionsWire()
    loading_text: bool | None = None  # the wait for the model is reported; None: not given


class ChatExchange(AnswerForm, frozen=True, kw_only=True):
    """A chat request, and the form of its answer."""

    request: ChatRequest


class TextExchange(AnswerForm, frozen=True, kw_only=True):
    """A text completion request, and the form of its answer."""

    request: TextRequest


UNOPENED = "add_generation_prompt"  # not applied where it is false and an answer is wanted


def read_chat(body: bytes) -> ChatExchange:
    """What a `/v1/chat/completions` body means. Raises InvalidRequest, which names the field."""
    fields = read_fields(body)
    wire = fields.read(ChatWire)
    _refuse_unmet(fields)
    if wire.max_tokens == 0:
        raise fields.wrong("max_tokens", "Expected at least 1, or -1 for no limit.")
    if wire.answer_format is not None:
        fields.meant("answer_format", wire.answer_format, FORMATS)
    conversation = read_conversation(fields)
    messages, continue_final = _continued(fields, wire, conversation.messages)
    variables = wire.template_variables
    if wire.verbosity is not None:
        variables = {"verbosity": wire.verbosity, **variables}
    # No generation prompt and nothing to continue: templates have no such form.
    pointless = wire.add_generation_prompt is False and not continue_final
    unapplied = (*(all_unapplied(UNOPENED) if pointless else ()), *conversation.unapplied)
    logprobs = _chat_logprobs(fields, wire) if wire.logprobs or wire.top_logprobs else None
    answering = _answering(fields, wire, logprobs, ConversationWire)
    return alike(ChatExchange, wire)(
        request=alike(ChatRequest, conversation)(
            model=wire.model,
            messages=messages,
            answering=msgspec.structs.replace(
                answering,
                unapplied=(*unapplied, *answering.unapplied),
                reports_progress=wire.return_progress and wire.stream,
            ),
            parallel_tool_calls=wire.parallel_tool_calls,
            thinking=_thinking(fields, wire),
            template_variables=variables,
            continue_final=continue_final,
            allow_control_tokens=wire.allow_control_tokens,
            format=wire.answer_format,
        ),
    )


def read_text(body: bytes) -> TextExchange:
    """What a `/v1/completions` body means. Raises InvalidRequest, which names the field."""
    return read_text_fields(read_fields(body))


def read_text_fields(fields: Fields, *, least: int = 1) -> TextExchange:
    """What the fields of such a body mean. `least`: tokens of an answer. Raises as `read_text`."""
    wire = fields.read(TextWire)
    _refuse_unmet(fields)
    logprobs = (wire.n_probs or None) if wire.logprobs is None else wire.logprobs
    if not wire.echo and 0 <= wire.max_tokens < least:
        raise fields.wrong("max_tokens", "Expected at least 1, -1 for no limit, or echo with 0.")
    if wire.echo and wire.suffix and logprobs is not None:
        raise fields.wrong("logprobs", "Not available together with echo and suffix.")
    return alike(TextExchange, wire)(
        request=TextRequest(
            model=wire.model,
            prompts=read_texts(fields, "prompt", wire.prompt, "prompt"),
            answering=_answering(fields, wire, logprobs),
            suffix=wire.suffix or None,
            echo=wire.echo,
            add_bos=wire.add_bos,
        ),
    )


def _refuse_unmet(fields: Fields) -> None:
    """Options that would change the answer's form must not be ignored silently."""
    for name, message in _UNMET.items():
        if fields.values.get(name):
            raise fields.wrong(name, message)
    best, n = fields.values.get("best_of", math.inf), fields.values.get("n", 1)
    if isinstance(best, int | float) and isinstance(n, int) and best < n:
        raise fields.wrong("best_of", f"Expected at least n, which is {n}.")


def _answering(
    fields: Fields, wire: AnsweringWire, logprobs: int | None, *known: Known
) -> GenerationParams:
    return read_answering(fields, wire, *known)(
        max_tokens=None if wire.max_tokens == -1 else wire.max_tokens,
        logprobs=logprobs,
        slot=None if wire.id_slot == -1 else wire.id_slot,
        adapters=_adapters(fields, wire.lora),
        drafts=_drafts(wire.speculative),
        further=fields.further(type(wire), SamplingWire, SHAPE_FIELDS, *known),
        strict=wire.strict_parameters,
        reports=wire.return_parameters,
    )


def _adapters(fields: Fields, lora: Sequence[LoraWire] | None) -> tuple[AdapterScale, ...] | None:
    """All others don't count, as in llama-server."""
    found = []
    for index, wire in enumerate(lora or ()):
        match wire.id, wire.name:
            case (int(adapter), None) | (None, str(adapter)):
                found.append(AdapterScale(adapter, wire.scale))
            case _:
                raise fields.wrong(f"lora[{index}]", "Expected either an id or a name.")
    return None if lora is None else tuple(found)


def _drafts(wire: int | SpeculativeWire | None) -> int | None:
    if isinstance(wire, SpeculativeWire):
        wire = wire.n if wire.n is not None else wire.n_max
    return wire


def _chat_logprobs(fields: Fields, wire: ChatWire) -> int | None:
    """OpenAI's switch and count; or TabbyAPI's count in place of the switch, where 0 is off."""
    if not wire.logprobs:
        if wire.top_logprobs:
            raise fields.wrong("top_logprobs", "Only with logprobs set to true.")
        return None
    if wire.top_logprobs is not None:
        return wire.top_logprobs
    return 0 if wire.logprobs is True else wire.logprobs


def _continued(
    fields: Fields, wire: ChatWire, messages: tuple[Message, ...]
) -> tuple[tuple[Message, ...], bool]:
    """The messages, and whether the last one is a prefix of the answer."""
    continues = _continues(fields, wire, messages[-1])
    if continues and [message.role for message in messages[-2:]] == ["assistant", "assistant"]:
        path = f"messages[{len(messages) - 1}]"
        raise fields.wrong(path, "Only one assistant message can stand at the end, as a prefix.")
    if wire.response_prefix:
        started = messages if continues else (*messages, Message(role="assistant"))
        return _with_prefix(started, wire.response_prefix), True
    last = messages[-1]
    if continues and not last.text and not last.reasoning and len(messages) > 1:
        return messages[:-1], False  # an empty prefix: an answer like any other
    return messages, continues


def _continues(fields: Fields, wire: ChatWire, last: Message) -> bool:
    """A trailing assistant message is a prefix, because frontends send it without a flag.

    `continue_final_message` false or `add_generation_prompt` true turn this off.
    """
    if wire.continue_final_message is None:
        is_open = last.role == "assistant" and not last.tool_calls
        return is_open and not wire.add_generation_prompt
    if wire.continue_final_message and wire.add_generation_prompt:
        text = "Not together with add_generation_prompt."
        raise fields.wrong("continue_final_message", text)
    if wire.continue_final_message and last.role != "assistant":
        raise fields.wrong("continue_final_message", "The last message is not the assistant's.")
    return wire.continue_final_message


def _with_prefix(messages: tuple[Message, ...], prefix: str) -> tuple[Message, ...]:
    """TabbyAPI's `response_prefix`: goes on from what the last message says already."""
    last = messages[-1]
    grown = msgspec.structs.replace(last, parts=(TextPart(last.text + prefix),))
    return (*messages[:-1], grown)


def _thinking(fields: Fields, wire: ChatWire) -> Thinking:
    """The reasoning options; flat ones go before `reasoning`. Raises InvalidRequest."""
    shown = fields.meant("reasoning_format", wire.reasoning_format, _SHOWN)
    if wire.reasoning.exclude or not wire.include_reasoning:
        shown = "hidden"
    effort = wire.reasoning_effort or wire.reasoning.effort
    budgets = (wire.thinking_budget, wire.reasoning.max_tokens, wire.thinking.budget_tokens)
    budget = next((each for each in budgets if each is not None), None)
    return Thinking(
        enabled=_enabled(wire, effort),
        effort=effort,
        budget=None if budget == -1 else budget,
        closing=wire.reasoning_budget_message,
        shown=shown,
    )


def _enabled(wire: ChatWire, effort: str | None) -> bool | None:
    """The template's own variable is the most specific field, an effort of "none" the least."""
    for value in (
        wire.template_variables.get("enable_thinking"),
        wire.enable_thinking,
        wire.reasoning.enabled,
        wire.thinking.enabled,
    ):
        if isinstance(value, bool):
            return value
    return False if effort == "none" else None
