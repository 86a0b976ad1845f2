"""A model's chat template and output format, and why that format was chosen.

Made once per template, because the analysis renders the template several times.
"""

from typing import Literal, TypeAlias

import msgspec
from anyio import to_thread

from backends.protocol import ModelContainer, ModelInfo, SpecialTokens, ThinkingBudget
from backends.remote import Container
from gateway.answers.control_tokens import Spellings
from gateway.answers.overrides import Templates
from gateway.prompt import (
    DEFAULT_TEMPLATE,
    FULL,
    Allowance,
    ChatTemplate,
    RenderedPrompt,
    TemplateTraits,
    with_reasoning,
)
from gateway.registry import ModelEntry
from gateway.request import ChatRequest
from gateway.splitter import (
    FORMATS,
    Format,
    Recognised,
    Splitter,
    reasoning_ends,
    recognise,
    starts_in_reasoning,
)
from gateway.splitter.grammar.places import Thinking
from gateway.tasks import Wanted


class Interpreter(msgspec.Struct, frozen=True):
    """The template that makes a prompt of a conversation, and the format that makes events of an
    answer.
    """

    template: ChatTemplate
    recognised: Recognised
    spellings: Spellings
    keep_reasoning: Literal["auto"] | bool = "auto"  # of earlier turns

    @property
    def format(self) -> Format:
        return self.recognised.format

    def render(
        self,
        request: ChatRequest,
        container: Container,
        allowance: Allowance = FULL,
        wanted: Wanted = lambda: True,
    ) -> RenderedPrompt:
        """The prompt, with pictures where this container finds them. Raises as
        `ChatTemplate.render`.
        """
        return self.template.render(
            with_reasoning(request, self.template.traits, keep=self.keep_reasoning),
            image_marker=container.info.image_marker,
            allowance=allowance,
            wanted=wanted,
        )

    def splitter(self, request: ChatRequest, prompt: str) -> Splitter:
        """A fresh one for an answer to `prompt`, the rendered text as the template framed it:
        nothing a client wrote says how an answer begins.
        """
        return Splitter(
            self.format,
            in_reasoning=starts_in_reasoning(self.format, prompt),
            tools=request.tools,
            parse_tools=_parses_tools(request),
            split_reasoning=request.thinking.shown != "inline",
            prompt_tail=prompt[-TAIL:],
            first_call_number=sum(len(message.tool_calls) for message in request.messages),
        )

    def thinking(self, request: ChatRequest, prompt: str) -> Thinking:
        """Whether an answer to `prompt` begins inside reasoning, may begin with it, or may not."""
        if starts_in_reasoning(self.format, prompt):
            return "opened"
        return "off" if request.thinking.enabled is False else "possible"

    def ending(self, prompt: str) -> str:
        """As much of the end of `prompt` as says how an answer begins, the same for every prompt
        that a template ends alike.
        """
        ends = (self.format.implied_opener, self.format.headers.end if self.format.headers else "")
        length = max(map(len, ends))
        return prompt[len(prompt) - length :]

    def budget(
        self, request: ChatRequest, prompt: str, container: ModelContainer
    ) -> ThinkingBudget | None:
        """The thinking budget as the driver enforces it, `prompt` as for the splitter; None
        when there is none, or no reasoning to limit.
        """
        thinking, reasoning = request.thinking, self.format.reasoning
        if thinking.budget is None or reasoning is None:
            return None
        closing = thinking.closing + reasoning.close
        return ThinkingBudget(
            tokens=thinking.budget,
            closing=container.tokenize(closing, special=True),
            opens=reasoning.opens,
            closes=reasoning_ends(self.format, parse_tools=_parses_tools(request)),
            anywhere=reasoning.anywhere,
            is_open=starts_in_reasoning(self.format, prompt),
        )


def _parses_tools(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice != "none"


DESCRIBED_TOOLS = "hermes_json"
MOST_INTERPRETERS = 64  # interpreters; templates can be switched without end
TAIL = 512  # characters of the prompt that may say how an answer begins


TemplateKey: TypeAlias = tuple[
    str, str | None, SpecialTokens, str | None, str, str | None, Literal["auto"] | bool
]


class Interpreters:
    """One for each template and tokenizer; the `MOST_INTERPRETERS` last used are kept."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._known: dict[TemplateKey, Interpreter] = {}

    async def of(self, container: Container, entry: ModelEntry) -> Interpreter:
        """Waits for a thread where the template must be read first. Raises InvalidTemplate."""
        info, source = container.info, self._templates.source(entry)
        template = source or info.chat_template
        key = (
            entry.name,
            template,
            info.special,
            info.response_template,
            info.architecture,
            entry.format,
            entry.keep_reasoning,
        )
        found = self._known.pop(key, None)
        if found is None:
            found = await to_thread.run_sync(interpret, info, entry, source)
        self._known[key] = found  # the last used stands last
        while len(self._known) > MOST_INTERPRETERS:
            del self._known[next(iter(self._known))]
        return found


def interpret(info: ModelInfo, entry: ModelEntry, source: str | None) -> Interpreter:
    """`source` (chosen or configured) wins over what the model carries, and that over the default.

    Raises InvalidTemplate.
    """
    source = source or info.chat_template or DEFAULT_TEMPLATE
    template = ChatTemplate(source, info.special, entry.name)
    recognised = recognised_format(entry, info, source, template.traits)
    spellings = Spellings(info.special, _markers(source, recognised.format))
    return Interpreter(template, recognised, spellings, entry.keep_reasoning)


def _markers(source: str, form: Format) -> str:
    """A text in which all markers stand that frame a model's turns, reasoning and calls."""
    reasoning = form.reasoning
    return "\n".join((source, *((*reasoning.opens, *reasoning.closes) if reasoning else ())))


def recognised_format(
    entry: ModelEntry, info: ModelInfo | None, source: str, traits: TemplateTraits | None
) -> Recognised:
    """The output format of a model with the template `source`; without `info` it isn't loaded yet.

    Config wins over what is recognised. Before a load the control tokens are unknown, so the format
    of a model whose template has few markers may change after the load.
    """
    if entry.format:
        return Recognised(FORMATS[entry.format], "named in the configuration")
    found = recognise(
        template=source,
        control_tokens=info.special.control if info else (),
        model_type=info.architecture if info else entry.files.architecture,
        response_template=info.response_template if info else None,
    )
    if traits is not None and traits.tools == "described":
        # The template knows no tools, so the prompt asks for calls in a form of ours.
        syntaxes = FORMATS[DESCRIBED_TOOLS].syntaxes
        described = msgspec.structs.replace(found.format, syntaxes=syntaxes)
        found = Recognised(described, f"{found.why}; its tools are described in the prompt")
    return found
