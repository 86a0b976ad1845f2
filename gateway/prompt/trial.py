"""Trial conversations for template analysis: sentinel texts, and which of them are rendered.

Every word is a sentinel that no template writes by itself, so that what comes out was taken from
the conversation. Lower case, because some templates capitalise. Draws no conclusions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.prompt.environment import CompiledTemplate, TemplateRefused
from gateway.prompt.metering import Meter
from gateway.prompt.template_input import given_variables, message_dict, tool_dicts
from gateway.prompt.traits import TemplateTraits
from gateway.request import Message, Role, TextPart, Tool, ToolCall


def _message(role: Role, text: str) -> Message:
    return Message(role=role, parts=(TextPart(text),))


ASK = "sentinelask"
USER, USER_MORE, USER_LATER = (
    _message("user", text) for text in (ASK, "sentinelmore", "sentinellater")
)
SYSTEM, SYSTEM_MORE = _message("system", "sentinelrule"), _message("system", "sentinelsecondrule")
ASSISTANT, ASSISTANT_MORE = (
    _message("assistant", text) for text in ("sentinelanswer", "sentinelcontinued")
)
SPOKEN, THOUGHT, FUNCTION, KEY = (
    "sentinelspoken",
    "sentinelthought",
    "sentinelfunction",
    "sentinelkey",
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
        self.answer = Message(
            role="tool", parts=(TextPart(self.result),), tool_call_id=call_id, name=FUNCTION
        )


EXCHANGE, EXCHANGE_MORE = TrialConversation(1), TrialConversation(2)


def calling(
    *exchanges: TrialConversation, beside: str = "", thought: str | None = None
) -> tuple[Message, ...]:
    """A user asks, the assistant calls (and speaks, and thinks), the tools answer."""
    caller = Message(
        role="assistant",
        parts=(TextPart(beside),) if beside else (),
        reasoning=thought,
        tool_calls=tuple(exchange.call for exchange in exchanges),
    )
    return (USER, caller, *(exchange.answer for exchange in exchanges))


class Trial:
    """Renders trial conversations with one template."""

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
        """Raises Refused, LimitExceeded."""
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

    def says(self, traits: TemplateTraits, *messages: Message) -> bool:
        """Whether all that `messages` say comes out, no answer being asked for."""
        text = self.text(messages, traits, prompt=False)
        return all(message.text in text for message in messages)

    def shows(self, traits: TemplateTraits, *messages: Message) -> bool:
        """Whether all that `messages` say comes out, and an answer may follow."""
        text = self.text(messages, traits)
        return all(message.text in text for message in messages)
