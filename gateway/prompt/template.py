"""A model's chat template: compiled and analysed once, then rendered for every conversation, within
the context's length or with an error that explains what is long.

    which tools -> messages arranged -> dicts -> Jinja -> text, ended or left open

It knows no tokenizer and no engine, and doesn't read answers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from backends.contract.protocol import SpecialTokens
from gateway.prompt.analysis import EFFORTS, Renderer, Trial, analyse
from gateway.prompt.conversation import (
    Continuation,
    TemplateTraits,
    arranged,
    closed,
    continuation,
    ends_open,
    is_broken,
    message_dict,
    tool_dicts,
    with_tools_described,
    without_opener,
)
from gateway.prompt.environment import CompiledTemplate, TemplateRefused
from gateway.prompt.learning import proven
from gateway.prompt.metering import ANALYSIS, FULL, Allowance, LimitExceeded, Meter
from gateway.prompt.traced import (
    Spans,
    clients,
    framed,
    from_client,
    joined,
    masked,
    partition,
    plain,
    rpartition,
    spans_of,
    text_of,
)
from gateway.splitter import FORMATS, Format, Recognised, starts_in_reasoning
from gateway.terms.errors import ContextLengthExceeded, InvalidRequest, InvalidTemplate
from gateway.terms.request import (
    ChatRequest,
    ImagePart,
    Message,
    NamedTool,
    Part,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    Unapplied,
)

# What a client requests of reasoning, as the variables that a template reads.


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
    switched = replace(request, template_variables={**switches, **request.template_variables})
    if keep or switches.keys() & request.template_variables.keys():
        return switched
    turns = [at for at, message in enumerate(request.messages) if message.role == "user"]
    last = turns[-1] if turns else 0
    earlier = (replace(message, reasoning=None) for message in request.messages[:last])
    return replace(switched, messages=(*earlier, *request.messages[last:]))


def nearest_effort(effort: str, known: tuple[str, ...]) -> str:
    """The one of `known` that is nearest to `effort`; `effort` itself if it is an unusual one."""
    if effort not in EFFORTS and effort not in known:
        return clients(effort)
    if effort in known or not known:
        return effort
    place = EFFORTS.index(effort)
    return min(known, key=lambda candidate: abs(EFFORTS.index(candidate) - place))


# Stands for the words of a message to be continued, so that their place is found again.
_HERE = "roundhouse9continues5here"


class Rendering(msgspec.Struct, eq=False):
    """Renders one request; all methods raise TemplateRefused if the template does."""

    _traits: TemplateTraits
    _renderer: Renderer
    _format: Format
    _request: ChatRequest
    _image_marker: str | None
    _tools: tuple[Tool, ...] = ()
    _opener: str = ""  # what calls begin with, where a text beside them can't be a turn of its own

    def __post_init__(self) -> None:
        self._tools = shown_tools(self._request)
        strict = self._traits.alternates and not self._traits.calls_with_text
        openers = (opener for syntax in self._format.syntaxes for opener in syntax.openers)
        self._opener = next(openers, "") if strict else ""

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
        if not self._request.has_images:
            return ()
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
            head = self._opened(self._before)
        return closed(head, self._format.reasoning) + begun.text

    def _thinking_on(self, begun: Continuation) -> str:
        """As `_speaking_on`, with the cut behind the reasoning."""
        markers = self._format.reasoning
        head = self._up_to_here(_HERE, ()) if self._traits.reasoning_field else None
        if head is not None and (not markers or starts_in_reasoning(self._format, framed(head))):
            return head + begun.reasoning
        if begun.raw:
            return self._continued_raw(begun)
        opened = self._opened(self._before, reasoning=True)
        if markers and not starts_in_reasoning(self._format, framed(opened)):
            opened += markers.open
        return opened + begun.reasoning if markers or ends_open(opened) else opened

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
        return closed(text, self._format.reasoning) if unwanted else text

    def _rendered(self, messages: Sequence[Message], *, prompt: bool, reasoning: bool) -> str:
        """With `reasoning`, as if the client wanted it: it wrote some already."""
        thinking = self._request.thinking
        if reasoning:
            thinking = replace(thinking, enabled=True)
        native = self._traits.tools == "native"
        tools = tool_dicts(self._tools if native else (), self._traits)
        dicts: list[dict[str, Any]] = []
        beside: list[str] = []
        for message in self._arranged(messages):
            shown = message
            if self._opener and message.tool_calls and message.text:
                shown = _without_text(message, len(beside))
                beside.append(text_of(message))
            dicts.append(message_dict(shown, self._traits, self._image_marker))
        chosen, own = thinking_variables(thinking, self._traits), self._request.template_variables
        text = self._renderer.render(dicts, {**chosen, **own}, tools, prompt=prompt)
        for number, spoken in enumerate(beside):
            text = _with_text(text, number, self._opener, spoken)
        return text

    def _arranged(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        traits = replace(self._traits, calls_with_text=True) if self._opener else self._traits
        if self._traits.tools != "native":
            return arranged(with_tools_described(messages, self._tools), traits)
        return arranged(messages, traits, self._format.past)


# Stands before the name of a call whose message's text the template would lose.
_BESIDE = "roundhouse9beside{}here"


def _without_text(message: Message, number: int) -> Message:
    first, *others = message.tool_calls
    marked = ToolCall(first.id, joined((_BESIDE.format(number), first.name)), first.arguments)
    pictures = tuple(part for part in message.parts if isinstance(part, ImagePart))
    return replace(message, parts=pictures, tool_calls=(marked, *others))


def _with_text(text: str, number: int, opener: str, spoken: str) -> str:
    head, _, behind = partition(text, _BESIDE.format(number))
    at = framed(head).rfind(opener)
    if at < 0:
        raise TemplateRefused("it writes no call where one is expected")
    return joined((head[:at], spoken, head[at:], behind))


S = TypeVar("S", bound=msgspec.Struct)


def from_clients(request: ChatRequest) -> ChatRequest:
    """`request` with its texts marked as the client's. Roles aren't: they are ours to choose."""
    return replace(
        request,
        messages=tuple(map(_message_from_client, request.messages)),
        tools=tuple(_marked(tool, "name", "description", "parameters") for tool in request.tools),
        template_variables=from_client(request.template_variables),
    )


def _message_from_client(message: Message) -> Message:
    return replace(
        _marked(message, "reasoning", "tool_call_id", "name"),
        parts=tuple(
            _marked(part, "text") if isinstance(part, TextPart) else part for part in message.parts
        ),
        tool_calls=tuple(_marked(call, "id", "name", "arguments") for call in message.tool_calls),
    )


def _marked(value: S, *fields: str) -> S:
    return replace(value, **{name: from_client(getattr(value, name)) for name in fields})


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


# For models that bring no template, which were hardly taught to chat.
DEFAULT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TURNS = ("<|im_end|>", "<|im_start|>")  # its markers


_MENDED = (
    Unapplied(
        "messages[].tool_calls[].function.arguments",
        "some are no JSON object; the model sees them in one, as the text `_raw`",
        partly=True,
    ),
)
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
    pictures: tuple[ImagePart, ...] = ()
    unapplied: tuple[Unapplied, ...] = ()
    # Where in `text` later prompts may part from this one, ascending: before what the user said
    # last, and behind it, where the answer begins. Found by what stands there, so hints alone.
    marks: tuple[int, ...] = ()

    @property
    def framed(self) -> str:
        """`text` with the client's text masked: what the template itself wrote."""
        return masked(self.text, self.clients)


def marks_of(text: str, messages: Sequence[Message]) -> tuple[int, ...]:
    """See `RenderedPrompt.marks`. `text`: what a template made of `messages`."""
    spoken = next(
        (text_of(message) for message in reversed(messages) if message.role == "user"), ""
    )
    begins, bare = plain(spoken).strip()[:_PROBE], plain(text)
    spans = spans_of(text) or ((0, len(bare)),)
    whole = (start for start, _ in reversed(spans) if bare.startswith(begins, start))
    inside = (at for start, end in reversed(spans) if (at := bare.rfind(begins, start, end)) >= 0)
    before = next(whole, next(inside, None)) if begins else None
    behind = spans[-1][1]
    return tuple(mark for mark in (before, behind) if mark is not None and mark < len(bare))


MOST_KEPT = 64  # templates, so that none is tried again because its model is loaded again
_Token: TypeAlias = tuple[str, str]  # a variable of the template, and the token


@lru_cache(maxsize=MOST_KEPT)
def _analysed(source: str, *tokens: _Token) -> tuple[CompiledTemplate, TemplateTraits]:
    template = CompiledTemplate(source)
    return template, analyse(template, dict(tokens), Meter(ANALYSIS))


@lru_cache(maxsize=MOST_KEPT)
def _proven(
    template: CompiledTemplate, traits: TemplateTraits, guess: Recognised, *tokens: _Token
) -> Recognised:
    try:
        return proven(Trial(template, dict(tokens), Meter(ANALYSIS)), traits, guess)
    except LimitExceeded as exceeded:
        return Recognised(guess.format, f"{guess.why}; not tried: {exceeded}")


class ChatTemplate:
    """A model's own Jinja template, compiled once; renders conversations. `name`: whose it is."""

    def __init__(self, source: str, special: SpecialTokens, name: str = "") -> None:
        """Raises InvalidTemplate, which names the model, line and reason."""
        self.source = source
        self.format = FORMATS["plain"]  # what the model writes by itself
        self._whose = f"The chat template of '{name}'" if name else "The chat template"
        self._tokens = {
            "bos_token": special.bos,
            "eos_token": special.eos,
            "pad_token": special.pad,
            "unk_token": special.unk,
        }
        try:
            self._template, self.traits = _analysed(source, *self._tokens.items())
        except LimitExceeded as exceeded:
            raise InvalidTemplate(f"{self._whose} was stopped: {exceeded}.") from exceeded
        except TemplateRefused as refused:
            at = f" at line {refused.line}" if refused.line else ""
            raise InvalidTemplate(f"{self._whose} fails{at}: {refused.reason}") from refused

    def speaking(self, format: Format) -> "ChatTemplate":
        """The template of a model that writes `format` by itself."""
        spoken = copy(self)
        spoken.format = format
        return spoken

    def proven(self, guess: Recognised) -> Recognised:
        """The format that reads back what the template writes: `guess`, or one learned from it."""
        return _proven(self._template, self.traits, guess, *self._tokens.items())

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
        begun = continuation(request) if request.continue_final else None
        charged = Meter(allowance, wanted)
        try:
            text, pictures = self._written(request, begun, image_marker, charged)
        except LimitExceeded as exceeded:
            if allowance is not FULL:
                raise
            raise InvalidRequest(
                f"{self._whose} was stopped at this conversation: {exceeded}.",
                param="messages",
            ) from exceeded
        except TemplateRefused as refused:
            raise InvalidRequest(
                f"The model's chat template refuses this conversation: {refused.reason}",
                param="messages",
            ) from refused
        calls = (call for message in request.messages for call in message.tool_calls)
        return RenderedPrompt(
            text=plain(text),
            clients=spans_of(text),
            prefix=plain(begun.text) if begun is not None else "",
            pictures=pictures,
            unapplied=_MENDED if any(map(is_broken, calls)) else (),
            marks=marks_of(text, request.messages),
        )

    def _written(
        self,
        request: ChatRequest,
        begun: Continuation | None,
        image_marker: str | None,
        charged: Meter,
    ) -> tuple[str, tuple[ImagePart, ...]]:
        renderer = Renderer(self._template, self._tokens, charged)
        own = (renderer, self.format, request, image_marker)
        rendering = Rendering(self.traits, *own)
        try:
            return rendering.text(begun), rendering.pictures()
        except TemplateRefused as refused:
            # The analysis can't foresee everything, so one more try asks as little as possible.
            careful = Rendering(self.traits.strictest(), *own)
            try:
                return careful.text(begun), careful.pictures()
            except TemplateRefused:
                raise refused from None


WORTH_TELLING = 10  # percent of the prompt


@contextmanager
def length_explained(request: ChatRequest) -> Iterator[None]:
    """Adds to the error of a too long prompt which parts of `request` are long, and what to do.

    Frontends bring tools by the dozen with a "Hello!", and the error is all that their user sees.
    Shares are of characters: to render and tokenize each part would cost what the refusal saves.
    """
    try:
        yield
    except ContextLengthExceeded as error:
        copied = copy(error)
        copied.message = f"{error.message} {' '.join(_advice(request))}"
        raise copied from error


def _advice(request: ChatRequest) -> Iterator[str]:
    tools = len(msgspec.json.encode(request.tools))
    texts = [(message.role, len(message.text)) for message in request.messages]
    system = sum(size for role, size in texts if role == "system")
    whole = tools + sum(size for _, size in texts) or 1
    if (share := 100 * tools // whole) >= WORTH_TELLING:
        yield (
            f"About {share} % of it are the request's tools ({len(request.tools)}): switch off "
            "what isn't needed (Open WebUI: the model's capability 'Builtin Tools')."
        )
    if (share := 100 * system // whole) >= WORTH_TELLING:
        yield f"About {share} % of it are system messages."
    parts = [part for message in request.messages for part in message.parts]
    if pictures := sum(isinstance(part, ImagePart) for part in parts):
        yield f"It has {pictures} images, which also take tokens."
    yield "Send less, or load the model with a larger context_length."
