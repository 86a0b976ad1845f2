"""Template analysis: the traits of a chat template, found by rendering small conversations.

A template takes a thing if it renders without an error and the words come out; a name in a list of
known models is never consulted. The words are sentinels that no template writes by itself, so that
what comes out was taken from the conversation; lower case, because some templates capitalise.
Some thirty renderings of three messages take ten to twenty milliseconds, once for each loaded
model.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Literal

from msgspec.structs import replace

from gateway.prompt.conversation import (
    ReasoningField,
    TemplateTraits,
    ThinkingSwitch,
    ends_open,
    given_variables,
    message_dict,
    tool_dicts,
)
from gateway.prompt.environment import CompiledTemplate, TemplateRefused
from gateway.prompt.metering import Meter
from gateway.terms.request import Message, Role, TextPart, Tool, ToolCall


def message_of(role: Role, text: str, **fields: Any) -> Message:
    """A message with that text; none: it has no parts."""
    return Message(role=role, parts=(TextPart(text),) if text else (), **fields)


ASK = "sentinelask"
USER, USER_MORE, USER_LATER = (
    message_of("user", text) for text in (ASK, "sentinelmore", "sentinellater")
)
SYSTEM, SYSTEM_MORE = (
    message_of("system", text) for text in ("sentinelrule", "sentinelsecondrule")
)
ASSISTANT, ASSISTANT_MORE = (
    message_of("assistant", text) for text in ("sentinelanswer", "sentinelcontinued")
)
_SILENT = Message(role="assistant", parts=(TextPart(""),))
SPOKEN, THOUGHT, FUNCTION, KEY = (
    f"sentinel{word}" for word in ("spoken", "thought", "function", "key")
)

TOOL = Tool(
    name=FUNCTION,
    description="sentineldescription",
    parameters={"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]},
)


class TrialConversation:
    """A call and its result. The id is as long as OpenAI's are."""

    def __init__(self, number: int) -> None:
        self.value, self.result = f"sentinelvalue{number}", f"sentinelresult{number}"
        call_id = f"call_{number}123456789abcdef01234567"
        self.call = ToolCall(call_id, FUNCTION, json.dumps({KEY: self.value}))
        self.answer = message_of("tool", self.result, tool_call_id=call_id, name=FUNCTION)


EXCHANGE, EXCHANGE_MORE = TrialConversation(1), TrialConversation(2)


def calling(
    *exchanges: TrialConversation, beside: str = "", thought: str | None = None
) -> tuple[Message, ...]:
    """A user asks, the assistant calls (and speaks, and thinks), the tools answer."""
    calls = tuple(exchange.call for exchange in exchanges)
    caller = message_of("assistant", beside, reasoning=thought, tool_calls=calls)
    return (USER, caller, *(exchange.answer for exchange in exchanges))


class Renderer:
    """Renders with one template. `tokens` are the special tokens by their variable names; all is
    charged to one meter.
    """

    def __init__(
        self, template: CompiledTemplate, tokens: Mapping[str, str], charged: Meter
    ) -> None:
        self._template = template
        self._tokens = tokens
        self._charged = charged
        self.reads = template.reads

    def render(
        self,
        dicts: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        prompt: bool,
    ) -> str:
        """Raises TemplateRefused, LimitExceeded."""
        return self._template.render(
            {
                **self._tokens,
                "documents": None,
                **given_variables(self.reads, tools),
                **variables,
                "tools": tools,
                "add_generation_prompt": prompt,
                "messages": dicts,
            },
            self._charged,
        )


class Trial(Renderer):
    """Renders trial conversations."""

    def text(
        self,
        messages: Iterable[Message],
        traits: TemplateTraits,
        *,
        tools: Sequence[Tool] = (),
        prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The rendering of `messages`; "" if the template refuses them."""
        dicts = [message_dict(message, traits) for message in messages]
        try:
            return self.render(dicts, variables or {}, tool_dicts(tools, traits), prompt=prompt)
        except TemplateRefused:
            return ""

    def shows(self, traits: TemplateTraits, *messages: Message, prompt: bool = True) -> bool:
        """Whether all that `messages` say comes out, and an answer may follow if it is asked for in
        a `prompt`.
        """
        text = self.text(messages, traits, prompt=prompt)
        return all(message.text in text for message in messages)


_REASONING_FIELDS: tuple[ReasoningField, ...] = ("reasoning_content", "reasoning", "thinking")
_SWITCHES = (
    ThinkingSwitch("enable_thinking", on=True, off=False),
    ThinkingSwitch("thinking", on=True, off=False),
    ThinkingSwitch("reasoning", on=True, off=False),
    ThinkingSwitch("thinking_mode", on="enabled", off="disabled"),
    ThinkingSwitch("thinking_budget", on=None, off=0),
)
_KEEPING = (
    ThinkingSwitch("preserve_thinking", on=True, off=False),
    ThinkingSwitch("clear_thinking", on=False, off=True),
)
_EFFORT = "reasoning_effort"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # from least to most
_EFFORTS_OF_NOTHING = ("none", "no_think", "minimal", "low")  # the nearest to off comes first
_FREE_EFFORT = "sentineleffort"
_TRAINED_EFFORTS = ("low", "medium", "high")  # of gpt-oss, whose template prints what it is given


def analyse(
    template: CompiledTemplate, tokens: Mapping[str, str], charged: Meter
) -> TemplateTraits:
    """The traits of `template`; `tokens` are the special tokens by their variable names.

    All renderings are charged to one meter. Raises TemplateRefused, with the template's own reason,
    if it renders not even one user message, and LimitExceeded.
    """
    trial = Trial(template, tokens, charged)
    traits = _with_content(trial, TemplateTraits())
    traits = _with_roles(trial, traits)
    traits = _with_tools(trial, traits)
    traits = _with_calls(trial, traits)
    return _with_reasoning(trial, traits)


def _with_content(trial: Trial, traits: TemplateTraits) -> TemplateTraits:
    """How a user's words are handed over, and whether pictures may stand among them.

    A template that renders none of them is used as it is.
    """
    part = {"type": "text", "text": ASK}
    refused: TemplateRefused | None = None
    mute: TemplateTraits | None = None
    for no_tools in ("null", "empty"):
        tools: list[Mapping[str, Any]] | None = None if no_tools == "null" else []
        try:
            plain = trial.render([{"role": "user", "content": ASK}], {}, tools, prompt=True)
            mute = mute or replace(traits, no_tools=no_tools)
        except TemplateRefused as error:
            refused, plain = refused or error, ""
        parts = _user_says(trial, [part], tools)
        if ASK in plain or parts:
            content: Literal["text", "parts"] = "text" if ASK in plain else "parts"
            pictured = _user_says(trial, [part, {"type": "image"}], tools)
            images = bool(parts and pictured) and parts != pictured
            return replace(traits, content=content, images=images, no_tools=no_tools)
    if mute is not None:
        return mute
    assert refused is not None, "it renders, or refuses"
    raise refused


def _user_says(trial: Trial, content: Any, tools: list[Mapping[str, Any]] | None) -> str:
    """The rendering, "" if the words or the list's structure are not understood."""
    try:
        text = trial.render([{"role": "user", "content": content}], {}, tools, prompt=True)
    except TemplateRefused:
        return ""
    # A list printed as Python or JSON writes it was taken for a text.
    understood = ASK in text and "'type'" not in text and '"type"' not in text
    return text if understood else ""


def _with_roles(trial: Trial, traits: TemplateTraits) -> TemplateTraits:
    system: Literal["anywhere", "leading", "none"]
    if not trial.shows(traits, SYSTEM, USER):
        system = "none"
    elif (
        trial.shows(traits, SYSTEM, SYSTEM_MORE, USER)
        and trial.shows(traits, USER, SYSTEM, ASSISTANT, SYSTEM_MORE, USER_MORE)
        and trial.shows(traits, SYSTEM, USER, ASSISTANT, USER_MORE, SYSTEM_MORE)
        and trial.shows(traits, SYSTEM)
    ):
        system = "anywhere"
    else:
        system = "leading"
    repeats = trial.shows(traits, USER, USER_MORE) and trial.shows(
        traits, USER, USER_MORE, ASSISTANT, ASSISTANT_MORE, USER_LATER
    )
    opens = trial.shows(traits, ASSISTANT, USER) and (
        system == "none" or trial.shows(traits, SYSTEM, ASSISTANT, USER)
    )
    fades = system != "none" and not trial.shows(traits, SYSTEM, USER, ASSISTANT, prompt=False)
    return replace(
        traits,
        system=system,
        system_fades=fades,
        alternates=not repeats,
        assistant_opens=opens,
        empty_answers=trial.shows(traits, USER, _SILENT, USER_LATER),
    )


def _with_tools(trial: Trial, traits: TemplateTraits) -> TemplateTraits:
    conversation = (USER,) if traits.system == "none" else (SYSTEM, USER)
    text = trial.text(conversation, traits, tools=(TOOL,))
    native = FUNCTION in text and all(message.text in text for message in conversation)
    return replace(traits, tools="native" if native else "described")


def _with_calls(trial: Trial, traits: TemplateTraits) -> TemplateTraits:
    if traits.tools == "described":
        # One model, one format: calls are formatted as our description says.
        return replace(traits, calls="described", results="described")
    for way in _ways_to_call(traits):
        if _comes_out(trial, way, EXCHANGE):
            return replace(
                way,
                # Some show the tools in the first message, as the user's, whatever its role.
                assistant_opens=way.assistant_opens
                and EXCHANGE.value in trial.text(calling(EXCHANGE)[1:], way, tools=(TOOL,)),
                calls_with_text=_comes_out(trial, way, EXCHANGE, beside=SPOKEN),
                parallel_calls=_comes_out(trial, way, EXCHANGE, EXCHANGE_MORE),
            )
    shown = trial.shows(traits, USER, ASSISTANT, EXCHANGE.answer)
    return replace(traits, calls="described", results="native" if shown else "described")


def _ways_to_call(traits: TemplateTraits) -> Iterable[TemplateTraits]:
    """From the least change of what the client sent to the most."""
    ways = product((False, True), ("empty", "null"), ("object", "text"))
    for short_ids, content, arguments in ways:
        yield replace(traits, short_call_ids=short_ids, call_content=content, arguments=arguments)


def _comes_out(
    trial: Trial, traits: TemplateTraits, *exchanges: TrialConversation, beside: str = ""
) -> bool:
    """Whether one message with these calls, and their results, are rendered whole and clean."""
    # Some drop the text beside a call once the answer follows, so the trial has an answer.
    messages = (*calling(*exchanges, beside=beside), ASSISTANT, USER_MORE)
    text = trial.text(messages, traits, tools=(TOOL,))
    bare = trial.text(messages[:1], traits, tools=(TOOL,))
    words = [ASK, FUNCTION, beside]
    for exchange in exchanges:
        words += [exchange.value, exchange.result]
    # An object as Python writes it, JSON in a string of JSON, a null content printed.
    unclean = (f"'{KEY}'", f'\\"{KEY}', "None")
    return (
        all(word in text for word in words)
        and text.count(KEY) >= bare.count(KEY) + len(exchanges)
        and all(text.count(sign) == bare.count(sign) for sign in unclean)
    )


def _with_reasoning(trial: Trial, traits: TemplateTraits) -> TemplateTraits:
    switches = tuple(switch for switch in _SWITCHES if _works(trial, traits, switch))
    switched_on = {switch.variable: switch.on for switch in switches if switch.on is not None}
    efforts = _efforts(trial, traits, switched_on)
    if efforts and not switches:
        switches = _effort_as_switch(trial, traits, efforts)
    fields = (field for field in _REASONING_FIELDS if _reads(trial, traits, field, switched_on))
    reading = replace(traits, reasoning_field=next(fields, None))
    return replace(
        reading,
        keeping_switches=tuple(switch for switch in _KEEPING if _keeps(trial, reading, switch)),
        thinking_switches=switches,
        efforts=efforts,
        opens_reasoning=ends_open(trial.text((USER,), traits)),
    )


def _works(trial: Trial, traits: TemplateTraits, switch: ThinkingSwitch) -> bool:
    if switch.variable not in trial.reads:
        return False
    on = {} if switch.on is None else {switch.variable: switch.on}
    lit = trial.text((USER,), traits, variables=on)
    dark = trial.text((USER,), traits, variables={switch.variable: switch.off})
    return bool(lit and dark) and lit != dark


def _efforts(
    trial: Trial, traits: TemplateTraits, switched_on: Mapping[str, Any]
) -> tuple[str, ...]:
    """The usual efforts that the template takes; none if no effort makes a difference."""
    if _EFFORT not in trial.reads:
        return ()
    if _FREE_EFFORT in trial.text((USER,), traits, variables={_EFFORT: _FREE_EFFORT}):
        return _TRAINED_EFFORTS
    texts = {
        effort: trial.text((USER,), traits, variables={**switched_on, _EFFORT: effort})
        for effort in EFFORTS
    }
    if len(set(texts.values())) == 1:
        return ()
    return tuple(effort for effort, text in texts.items() if text)


def _effort_as_switch(
    trial: Trial, traits: TemplateTraits, efforts: tuple[str, ...]
) -> tuple[ThinkingSwitch, ...]:
    """For templates without a switch: the least effort turns reasoning off.

    A high effort turns it on, where nothing said means the least.
    """
    by_itself = trial.text((USER,), traits)
    most = trial.text((USER,), traits, variables={_EFFORT: "high"})
    for least in _EFFORTS_OF_NOTHING:
        text = trial.text((USER,), traits, variables={_EFFORT: least})
        trained = efforts != _TRAINED_EFFORTS or least in efforts
        if trained and text and text != most:
            on = "high" if text == by_itself else None
            return (ThinkingSwitch(_EFFORT, on=on, off=least),)
    return ()


def _keeps(trial: Trial, traits: TemplateTraits, switch: ThinkingSwitch) -> bool:
    """Whether the reasoning of a turn before the last stays where the switch says so."""
    if switch.variable not in trial.reads or traits.reasoning_field is None:
        return False
    talk = (USER, replace(ASSISTANT, reasoning=THOUGHT), USER_MORE)
    on, off = (
        trial.text(talk, traits, variables={switch.variable: value})
        for value in (switch.on, switch.off)
    )
    return THOUGHT in on and THOUGHT not in off


def _reads(
    trial: Trial,
    traits: TemplateTraits,
    field: ReasoningField,
    switched_on: Mapping[str, Any],
) -> bool:
    """Whether an earlier answer's reasoning comes out, wherever the template keeps it."""
    reading = replace(traits, reasoning_field=field)
    answer = replace(ASSISTANT, reasoning=THOUGHT)
    in_turn = trial.text((USER, answer, USER_MORE), reading, variables=switched_on)
    at_end = trial.text((USER, answer), reading, prompt=False, variables=switched_on)
    called = calling(EXCHANGE, thought=THOUGHT)
    calls = trial.text(called, reading, tools=(TOOL,), variables=switched_on)
    return any(THOUGHT in text for text in (in_turn, at_end, calls))
