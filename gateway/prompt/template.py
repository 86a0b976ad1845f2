"""A model's chat template: compiled and analysed once, then rendered for every conversation.

    request -> which tools -> messages arranged -> dicts -> Jinja -> the prompt's text

Knows no tokenizer and no engine. What the model answers is none of its business.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backends.protocol import SpecialTokens
from gateway.errors import InvalidRequest, InvalidTemplate
from gateway.prompt.analysis import analyse
from gateway.prompt.conversation import arranged
from gateway.prompt.describing import with_tools_described
from gateway.prompt.environment import CompiledTemplate, Refused
from gateway.prompt.reasoning import closed, joined, opener_at_start
from gateway.prompt.shape import message_shape, tools_shape
from gateway.prompt.thinking import thinking_variables
from gateway.prompt.traits import TemplateTraits
from gateway.request import ChatRequest, Message, NamedTool, TextPart, Tool

# Stands for the words of a message to be continued, so that their place is found again.
_HERE = "roundhouse9continues5here"


class RenderedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as the model reads it.

    `text` holds control tokens as text: tokenize it with `special=True`. It ends with `prefix`.
    """

    text: str
    prefix: str = ""  # the continued message's words, which belong to the answer already
    has_bos: bool = False  # begins with the model's bos token: nobody adds another


class ChatTemplate:
    """A model's own Jinja template, compiled once; renders conversations."""

    def __init__(self, source: str, special: SpecialTokens) -> None:
        """Raises InvalidTemplate, which names line and reason."""
        self._bos = special.bos
        self._tokens = {
            "bos_token": special.bos,
            "eos_token": special.eos,
            "pad_token": special.pad,
            "unk_token": special.unk,
        }
        try:
            self._template = CompiledTemplate(source)
            self.traits: TemplateTraits = analyse(self._template, self._tokens)
        except Refused as refused:
            at = f" at line {refused.line}" if refused.line else ""
            raise InvalidTemplate(f"The chat template fails{at}: {refused.reason}") from refused

    def render(self, request: ChatRequest) -> RenderedPrompt:
        """The prompt for `request`.

        A conversation that ends with the assistant's words is continued there: SillyTavern sends
        such a prefix without any flag. Raises InvalidRequest if the template refuses, or for what
        it can't show.
        """
        written = _prefix(request)
        try:
            text = self._text(request, written)
        except Refused as refused:
            raise InvalidRequest(
                f"The model's chat template refuses this conversation: {refused.reason}",
                param="messages",
            ) from refused
        has_bos = bool(self._bos) and text.startswith(self._bos)
        return RenderedPrompt(text=text, prefix=written or "", has_bos=has_bos)

    def _text(self, request: ChatRequest, written: str | None) -> str:
        try:
            return _Draft(self._template, self._tokens, self.traits, request).text(written)
        except Refused:
            # The analysis can't foresee everything, so one more draft asks as little as possible.
            careful = self.traits.strictest()
            return _Draft(self._template, self._tokens, careful, request).text(written)


class _Draft:
    """One request, rendered as `traits` say."""

    def __init__(
        self,
        template: CompiledTemplate,
        tokens: Mapping[str, str],
        traits: TemplateTraits,
        request: ChatRequest,
    ) -> None:
        self._template = template
        self._tokens = tokens
        self._traits = traits
        self._request = request
        self._tools = _shown_tools(request)

    def text(self, written: str | None) -> str:
        """Up to where the model's turn begins, or to the end of what it has `written` of it.

        Raises Refused.
        """
        if written is None:
            return self._opened(self._request.messages)
        return self._continued(written)

    def _continued(self, written: str) -> str:
        *before, last = self._request.messages
        if opener_at_start(written):
            # The client kept the model's raw words: they go on where the model's turn begins.
            return joined(self._opened(before, reasoning=True), written)
        open_ended = msgspec.structs.replace(last, parts=(TextPart(_HERE),))
        rendered = self._rendered((*before, open_ended), prompt=False)
        head, here, _ = rendered.rpartition(_HERE)
        if not here:
            head = self._opened(before)
        return closed(head) + written

    def _opened(self, messages: Sequence[Message], *, reasoning: bool = False) -> str:
        text = self._rendered(messages, prompt=True, reasoning=reasoning)
        unwanted = self._request.thinking.enabled is False and not reasoning
        return closed(text) if unwanted else text

    def _rendered(
        self, messages: Sequence[Message], *, prompt: bool, reasoning: bool = False
    ) -> str:
        native = self._traits.tools == "native"
        if not native:
            messages = with_tools_described(messages, self._tools)
        shapes = [
            message_shape(message, self._traits) for message in arranged(messages, self._traits)
        ]
        thinking = self._request.thinking
        if reasoning:
            thinking = msgspec.structs.replace(thinking, enabled=True)
        variables: dict[str, Any] = {
            **self._tokens,
            "documents": None,
            **thinking_variables(thinking, self._traits),
            **self._request.template_variables,
            "tools": tools_shape(self._tools if native else (), self._traits),
            "add_generation_prompt": prompt,
            "messages": shapes,
        }
        return self._template.render(variables)


def _prefix(request: ChatRequest) -> str | None:
    """What the last message says, if it is the assistant's and the answer goes on from it."""
    last = request.messages[-1] if request.messages else None
    if last is not None and last.role == "assistant" and not last.tool_calls:
        return last.text
    if request.continue_final:
        raise InvalidRequest(
            "Only a last message of the assistant, without tool calls, can be continued.",
            param="messages",
        )
    return None


def _shown_tools(request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the model is told of.

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
