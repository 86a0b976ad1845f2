"""Renders one request for a template with certain traits.

which tools -> messages arranged -> dicts -> Jinja -> text, ended or left open
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from gateway.prompt.conversation import Continuation, arranged
from gateway.prompt.environment import CompiledTemplate
from gateway.prompt.metering import Meter
from gateway.prompt.reasoning import closed, ends_open, without_opener
from gateway.prompt.template_input import (
    given_variables,
    message_dict,
    tool_dicts,
    with_tools_described,
)
from gateway.prompt.traced import clients, from_client, rpartition
from gateway.prompt.traits import TemplateTraits
from gateway.request import (
    ChatRequest,
    ImagePart,
    Message,
    NamedTool,
    Part,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
)

# ----------------------------------------------------------------------------------------- thinking
# What a client requests of reasoning, as the variables that a template reads.


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # from least to most


def thinking_variables(thinking: Thinking, traits: TemplateTraits) -> dict[str, Any]:
    """Only what the client named: for the rest the template's own defaults apply."""
    variables: dict[str, Any] = {}
    if thinking.enabled is not None:
        for switch in traits.thinking_switches:
            value = switch.on if thinking.enabled else switch.off
            if value is not None:
                variables[switch.variable] = value
    if thinking.effort is not None:
        variables["reasoning_effort"] = nearest_effort(thinking.effort, traits.efforts)
    if thinking.budget is not None and thinking.enabled is not False:
        variables["thinking_budget"] = thinking.budget  # Seed-OSS writes the budget into the prompt
    return variables


def with_reasoning(
    request: ChatRequest, traits: TemplateTraits, *, keep: Literal["auto"] | bool
) -> ChatRequest:
    """`request` that says whether reasoning of earlier turns stays, where its client doesn't. auto:
    the template's own default applies.
    """
    if keep == "auto":
        return request
    switches = {
        switch.variable: switch.on if keep else switch.off for switch in traits.keeping_switches
    }
    asked = replace(request, template_variables={**switches, **request.template_variables})
    if keep or switches.keys() & request.template_variables.keys():
        return asked
    turns = [at for at, message in enumerate(request.messages) if message.role == "user"]
    last = turns[-1] if turns else 0
    earlier = (replace(message, reasoning=None) for message in request.messages[:last])
    return replace(asked, messages=(*earlier, *request.messages[last:]))


def nearest_effort(effort: str, known: tuple[str, ...]) -> str:
    """The one of `known` that is nearest to `effort`; `effort` itself if it is an unusual one."""
    if effort not in _EFFORTS and effort not in known:
        return clients(effort)
    if effort in known or not known:
        return effort
    place = _EFFORTS.index(effort)
    return min(known, key=lambda candidate: abs(_EFFORTS.index(candidate) - place))


# Stands for the words of a message to be continued, so that their place is found again.
_HERE = "roundhouse9continues5here"


class Rendering:
    """Renders one request; all methods raise Refused if the template does."""

    def __init__(
        self,
        template: CompiledTemplate,
        tokens: Mapping[str, str],
        traits: TemplateTraits,
        request: ChatRequest,
        image_marker: str | None,
        charged: Meter,
    ) -> None:
        self._template = template
        self._tokens = tokens
        self._traits = traits
        self._request = request
        self._image_marker = image_marker
        self._charged = charged
        self._tools = shown_tools(request)

    def text(self, begun: Continuation | None) -> str:
        """Up to where the model's turn begins or to the end of what it has `begun`; or before."""
        if begun is None and not self._request.opens_turn:
            return self._rendered(self._request.messages, prompt=False, reasoning=False)
        if begun is None:
            return self._opened(self._request.messages)
        if not begun.text and not begun.reasoning:
            return self._opened(self._before)
        if not begun.text:
            return self._thinking_on(begun)
        return self._speaking_on(begun)

    def pictures(self) -> tuple[ImagePart, ...]:
        """The pictures in the text, in its order: arranging may move messages."""
        return tuple(
            part
            for message in self._arranged(self._request.messages)
            for part in message.parts
            if isinstance(part, ImagePart)
        )

    @property
    def _before(self) -> tuple[Message, ...]:
        return self._request.messages[:-1]

    def _speaking_on(self, begun: Continuation) -> str:
        """The template writes an answer; it is cut off behind the text so far."""
        pictures = (part for part in begun.message.parts if isinstance(part, ImagePart))
        head = self._up_to_here(begun.reasoning, (*pictures, TextPart(_HERE)))
        if begun.raw and (head is None or begun.reasoning not in head):
            return self._continued_raw(begun)
        if head is None:
            return closed(self._opened(self._before)) + begun.text
        return closed(head) + begun.text

    def _thinking_on(self, begun: Continuation) -> str:
        """As `_speaking_on`, with the cut behind the reasoning."""
        head = self._up_to_here(_HERE, ())
        if head is not None:
            return head + begun.reasoning
        if begun.raw:
            return self._continued_raw(begun)
        opened = self._opened(self._before, reasoning=True)
        return opened + begun.reasoning if ends_open(opened) else opened

    def _continued_raw(self, begun: Continuation) -> str:
        """The client's tags, for a template that doesn't write reasoning by itself."""
        opened = self._opened(self._before, reasoning=True)
        return opened + (without_opener(begun.raw) if ends_open(opened) else begun.raw)

    def _up_to_here(self, reasoning: str, parts: tuple[Part, ...]) -> str | None:
        """The text before the mark in the last message; None if the mark doesn't come out."""
        last = replace(self._request.messages[-1], reasoning=reasoning or None, parts=parts)
        text = self._rendered((*self._before, last), prompt=False, reasoning=bool(reasoning))
        head, here, _ = rpartition(text, _HERE)
        return head if here else None

    def _opened(self, messages: Sequence[Message], *, reasoning: bool = False) -> str:
        """Up to the model's turn. Unwanted reasoning is closed where the template opens it."""
        text = self._rendered(messages, prompt=True, reasoning=reasoning)
        unwanted = self._request.thinking.enabled is False and not reasoning
        return closed(text) if unwanted else text

    def _rendered(self, messages: Sequence[Message], *, prompt: bool, reasoning: bool) -> str:
        native = self._traits.tools == "native"
        tools = tool_dicts(self._tools if native else (), self._traits)
        dicts = [
            message_dict(message, self._traits, self._image_marker)
            for message in self._arranged(messages)
        ]
        return self._template.render(
            {
                **self._tokens,
                "documents": None,
                **given_variables(self._template.reads, tools),
                **self._thinking_variables(reasoning=reasoning),
                **self._request.template_variables,
                "tools": tools,
                "add_generation_prompt": prompt,
                "messages": dicts,
            },
            self._charged,
        )

    def _arranged(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        if self._traits.tools != "native":
            messages = with_tools_described(messages, self._tools)
        return arranged(messages, self._traits)

    def _thinking_variables(self, *, reasoning: bool) -> dict[str, Any]:
        """With `reasoning`, as if the client wanted it: it wrote some already."""
        thinking = self._request.thinking
        return thinking_variables(
            replace(thinking, enabled=True) if reasoning else thinking, self._traits
        )


def from_clients(request: ChatRequest) -> ChatRequest:
    """`request` with its texts marked as the client's. Roles aren't: they are ours to choose."""
    return replace(
        request,
        messages=tuple(map(_message_from_client, request.messages)),
        tools=tuple(_tool_from_client(tool) for tool in request.tools),
        template_variables=from_client(request.template_variables),
    )


def _message_from_client(message: Message) -> Message:
    return replace(
        message,
        parts=tuple(
            TextPart(from_client(part.text)) if isinstance(part, TextPart) else part
            for part in message.parts
        ),
        reasoning=from_client(message.reasoning),
        tool_calls=tuple(
            ToolCall(*map(from_client, (call.id, call.name, call.arguments)))
            for call in message.tool_calls
        ),
        tool_call_id=from_client(message.tool_call_id),
        name=from_client(message.name),
    )


def _tool_from_client(tool: Tool) -> Tool:
    return replace(
        tool,
        name=from_client(tool.name),
        description=from_client(tool.description),
        parameters=from_client(tool.parameters),
    )


def shown_tools(request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the model is shown.

    None of them for `none`: a model that sees tools calls them, and a call that may not be one
    would reach the client as markup. The demanded one alone for a demanded one.
    """
    match request.tool_choice:
        case "none":
            return ()
        case NamedTool(name):
            return tuple(tool for tool in request.tools if tool.name == name)
        case _:
            return request.tools
