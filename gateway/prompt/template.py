"""A model's chat template: compiled and analysed once, then rendered for every conversation.

Knows no tokenizer and no engine. It doesn't read answers.
"""

from collections.abc import Callable, Sequence

import msgspec

from backends.protocol import SpecialTokens
from gateway.errors import InvalidRequest, InvalidTemplate
from gateway.prompt.analysis import analyse
from gateway.prompt.conversation import Continuation, continuation
from gateway.prompt.environment import CompiledTemplate, TemplateRefused
from gateway.prompt.metering import ANALYSIS, FULL, Allowance, LimitExceeded, Meter
from gateway.prompt.rendering import Rendering, from_clients
from gateway.prompt.traced import Spans, masked, plain, spans_of, text_of
from gateway.prompt.traits import TemplateTraits
from gateway.request import ChatRequest, ImagePart, Message

# ------------------------------------------------------------------------------------------- chatml
# The template for models that bring none: ChatML, with tools in the Hermes style.


DEFAULT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou can call these functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nWrite each call as a JSON object inside tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function name>, "arguments": <its arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if loop.first and tools and message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
            {{- call.function.arguments + '}\\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


_PROBE = 64  # characters by which a message is found again


class RenderedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as the model reads it.

    `text` holds control tokens as text. It ends with `prefix`. `pictures` stand at its
    placeholders, in order. `clients` are the places of what the client wrote: what is spelled like
    a control token there is none.
    """

    text: str
    clients: Spans = ()
    prefix: str = ""  # the words of a continued message, which belong to the answer already
    has_bos: bool = False  # begins with the model's bos token: no second one is added
    pictures: tuple[ImagePart, ...] = ()
    # Where in `text` later prompts may part from this one, ascending: before what the user said
    # last, and behind it, where the answer begins. Found by what stands there, so hints alone.
    marks: tuple[int, ...] = ()

    @property
    def framed(self) -> str:
        """`text` with the client's text masked: what the template itself wrote."""
        return masked(self.text, self.clients)


def marks_of(text: str, messages: Sequence[Message]) -> tuple[int, ...]:
    """See `RenderedPrompt.marks`. `text`: what a template made of `messages`."""
    spoken = next((text_of(one) for one in reversed(messages) if one.role == "user"), "")
    begins, bare = plain(spoken).strip()[:_PROBE], plain(text)
    spans = spans_of(text) or ((0, len(bare)),)
    whole = (start for start, _ in reversed(spans) if bare.startswith(begins, start))
    inside = (at for start, end in reversed(spans) if (at := bare.rfind(begins, start, end)) >= 0)
    found = next(whole, next(inside, None)) if begins else None
    behind = spans[-1][1]
    return tuple(mark for mark in (found, behind) if mark is not None and mark < len(bare))


class ChatTemplate:
    """A model's own Jinja template, compiled once; renders conversations. `name`: whose it is."""

    def __init__(self, source: str, special: SpecialTokens, name: str = "") -> None:
        """Raises InvalidTemplate, which names the model, line and reason."""
        self.source = source
        self._whose = f"The chat template of '{name}'" if name else "The chat template"
        self._bos = special.bos
        self._tokens = {
            "bos_token": special.bos,
            "eos_token": special.eos,
            "pad_token": special.pad,
            "unk_token": special.unk,
        }
        try:
            self._template = CompiledTemplate(source)
            self.traits: TemplateTraits = analyse(self._template, self._tokens, Meter(ANALYSIS))
        except LimitExceeded as exceeded:
            raise InvalidTemplate(f"{self._whose} was stopped: {exceeded.reason}.") from exceeded
        except TemplateRefused as refused:
            at = f" at line {refused.line}" if refused.line else ""
            raise InvalidTemplate(f"{self._whose} fails{at}: {refused.reason}") from refused

    def render(
        self,
        request: ChatRequest,
        *,
        image_marker: str | None = None,
        allowance: Allowance = FULL,
        wanted: Callable[[], bool] = lambda: True,
    ) -> RenderedPrompt:
        """The prompt for `request`; `image_marker` is what stands for a picture, where the template
        doesn't render pictures itself.

        An answer that was begun (`continue_final`) goes on right behind its last words. Raises
        InvalidRequest if the template refuses, or for what it can't show, or takes more than the
        full allowance; LimitExceeded for more than a smaller one; Abandoned when
        this rendering isn't `wanted` any more.
        """
        if not request.allow_control_tokens:
            request = from_clients(request)
        begun = continuation(request)
        charged = Meter(allowance, wanted)
        try:
            text, pictures = self._written(request, begun, image_marker, charged)
        except LimitExceeded as exceeded:
            if allowance is not FULL:
                raise
            raise InvalidRequest(
                f"{self._whose} was stopped at this conversation: {exceeded.reason}.",
                param="messages",
            ) from exceeded
        except TemplateRefused as refused:
            raise InvalidRequest(
                f"The model's chat template refuses this conversation: {refused.reason}",
                param="messages",
            ) from refused
        return RenderedPrompt(
            text=plain(text),
            clients=spans_of(text),
            prefix=plain(begun.text) if begun is not None else "",
            has_bos=bool(self._bos) and text.startswith(self._bos),
            pictures=pictures,
            marks=marks_of(text, request.messages),
        )

    def _written(
        self,
        request: ChatRequest,
        begun: Continuation | None,
        image_marker: str | None,
        charged: Meter,
    ) -> tuple[str, tuple[ImagePart, ...]]:
        given = (request, image_marker, charged)
        rendering = Rendering(self._template, self._tokens, self.traits, *given)
        try:
            return rendering.text(begun), rendering.pictures()
        except TemplateRefused as refused:
            # The analysis can't foresee everything, so one more try asks as little as possible.
            strictest = self.traits.strictest()
            careful = Rendering(self._template, self._tokens, strictest, *given)
            try:
                return careful.text(begun), careful.pictures()
            except TemplateRefused:
                raise refused from None
