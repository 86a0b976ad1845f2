"""OpenAI's chat reply: deltas to chunks of a stream, or to one body. Knows no HTTP.

Both forms are made of the same steps, so that a stream put together by a client equals the body it
would have got. Absent is UNSET, null is None: clients break on either in the place of the other.
The contents of chunks avoid what clients were seen to fail on:

- the role stands alone in a choice's first chunk and is never repeated: it would be concatenated;
- a tool call's first delta has id, type and name and no arguments; the others have arguments only,
  and there is at least one; a custom tool's first delta has an empty input, too;
- the finish reason comes beside an empty delta; usage once, in the last chunk, if asked for;
- no chunk has a key `type`, `event` or `timings` that can be null: Open WebUI drops such a chunk.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import chain, count
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.contract.protocol import PromptProgress, TokenLogprob
from backends.contract.remote import FurtherOfCall, FurtherOfMessage, RemoteFurther
from gateway.dialects.custom import InputText
from gateway.dialects.dialect import PLACEHOLDER, FrameTemplate, frame
from gateway.dialects.openai.logprobs import (
    ChatLogprobs,
    ProgressWire,
    chat_logprobs,
    progress_wire,
)
from gateway.dialects.openai.reply import (
    AnswerFacts,
    CompletionObject,
    CompletionReply,
    StoppedChoice,
)
from gateway.dialects.openai.request import ChatExchange
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ToolClosed,
    ToolOpened,
    Usage,
)


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a call. The name is sent once, on its own; the arguments follow in parts."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a call of a custom tool, whose input is a text."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCallDelta(FurtherOfCall, frozen=True, kw_only=True):
    """A part of a call. `id` and `type` are in its first delta only, because clients concatenate
    them.
    """

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class ExecutedTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp"):
    """A tool of an MCP server that this server ran, in Groq's form; `index` counts them. Clients
    have nothing to run, so it is none of `tool_calls`.
    """

    index: int
    server_label: str
    name: str
    arguments: str
    output: str
    is_error: bool


class ChatDelta(FurtherOfMessage, frozen=True, kw_only=True):
    """One step of a message. Empty in the chunk with the finish reason."""

    executed_tools: tuple[ExecutedTool, ...] | UnsetType = UNSET
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET


class ChatChoice(StoppedChoice, frozen=True, kw_only=True):
    """`schema_fault` describes how the content violates the requested schema, in keywords that the
    grammar can't express.
    """

    schema_fault: str | UnsetType = UNSET


class ChunkChoice(ChatChoice, frozen=True, kw_only=True):
    """A step of a choice. `finish_reason` is null until the choice ends."""

    delta: ChatDelta
    logprobs: ChatLogprobs | UnsetType = UNSET
    finish_reason: FinishReason | None = None


class ChatObject(CompletionObject, frozen=True, kw_only=True, tag_field="object"):
    """The common part of an event and of the whole body, with what another server adds beside the
    choices, as it is.
    """

    citations: Any = UNSET
    provider: Any = UNSET
    related_questions: Any = UNSET
    search_results: Any = UNSET


class ChatChunk(ChatObject, frozen=True, kw_only=True, tag="chat.completion.chunk"):
    """One event of a stream. `choices` has one entry; it is empty in the event with the usage."""

    choices: tuple[ChunkChoice, ...]
    prompt_progress: ProgressWire | UnsetType = UNSET


class FunctionWhole(msgspec.Struct, frozen=True):
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCallWhole(FurtherOfCall, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A tool call of the message."""

    id: str
    function: FunctionWhole


class CustomWhole(msgspec.Struct, frozen=True):
    """`input` is any text."""

    name: str
    input: str


class CustomCallWhole(FurtherOfCall, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """A call of a custom tool."""

    id: str
    custom: CustomWhole


class MessageWhole(FurtherOfMessage, frozen=True, kw_only=True):
    """The answer. `content` is null if there are only tool calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    executed_tools: tuple[ExecutedTool, ...] | UnsetType = UNSET
    tool_calls: tuple[ToolCallWhole | CustomCallWhole, ...] | UnsetType = UNSET


class WholeChoice(ChatChoice, frozen=True, kw_only=True):
    """One of the requested answers."""

    message: MessageWhole
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(ChatObject, frozen=True, kw_only=True, tag="chat.completion"):
    """The whole body."""

    choices: tuple[WholeChoice, ...]


# From the events of one choice to the steps that a client sees. Knows no wire format.
#
# Hidden reasoning, empty texts and the ends of tool calls are gone here; a call without arguments
# gets its `{}`.


NO_ARGUMENTS = "{}"


class InputOpened(ToolOpened, frozen=True):
    """A call of a custom tool begins."""


class InputGrown(msgspec.Struct, frozen=True):
    """Some more of the text that is a custom tool's input."""

    index: int
    text: str


Step: TypeAlias = Event | InputOpened | InputGrown


class AnswerStep(msgspec.Struct, frozen=True):
    """Something to send, never a `ToolClosed`, and the log probabilities that go with it."""

    event: Step
    logprobs: tuple[TokenLogprob, ...] = ()


class ChoiceSteps(msgspec.Struct, eq=False):
    """The steps of one choice, delta by delta. `custom`: the names of tools whose input is a text.

    Log probabilities of reasoning are left out, as OpenAI does, unless all are asked for. Those of
    tokens whose text is still held back wait for the next step.
    """

    hides_reasoning: bool
    all_logprobs: bool
    custom: Collection[str]
    _inputs: dict[int, InputText] = {}  # of custom tools' calls that are open
    _without_arguments: list[int] = []  # calls opened, without any arguments yet
    _waiting: tuple[TokenLogprob, ...] = ()

    def of(self, delta: Delta) -> Iterator[AnswerStep]:
        """The steps that `delta` makes."""
        if delta.logprobs:
            self._waiting += delta.logprobs
        for event in delta.events:
            for shown in self._shown(event):
                if isinstance(shown, Reasoning) and not self.all_logprobs:
                    yield AnswerStep(shown)
                else:
                    yield AnswerStep(shown, self._waiting)
                    self._waiting = ()
        if delta.events and isinstance(delta.events[-1], Reasoning) and not self.all_logprobs:
            self._waiting = ()

    def _shown(self, event: Event) -> tuple[Step, ...]:
        if self.custom and (steps := self._of_input(event)) is not None:
            return steps
        match event:
            case Content(text):
                return (event,) if text else ()
            case Reasoning(text):
                return (event,) if text and not self.hides_reasoning else ()
            case ToolOpened(index):
                self._without_arguments.append(index)
                return (event,)
            case ArgumentsGrown(index, fragment):
                if fragment and index in self._without_arguments:
                    self._without_arguments.remove(index)
                return (event,) if fragment else ()
            case ToolClosed(index):
                return self._empty_arguments((index,))
            case Finished():
                return (*self._empty_arguments(tuple(self._without_arguments)), event)

    def _of_input(self, event: Event) -> tuple[Step, ...] | None:
        """What belongs to a custom tool's call; None for anything else."""
        match event:
            case ToolOpened(index, call_id, name) if name in self.custom:
                self._inputs[index] = InputText()
                return (InputOpened(index, call_id, name, event.further),)
            case ArgumentsGrown(index, fragment) if index in self._inputs:
                return _input(index, self._inputs[index].grow(fragment))
            case ToolClosed(index) if index in self._inputs:
                return _input(index, self._inputs.pop(index).finish())
            case Finished() if self._inputs:
                cut = [_input(index, text.finish()) for index, text in self._inputs.items()]
                self._inputs = {}
                return (*chain.from_iterable(cut), *self._shown(event))
        return None

    def _empty_arguments(self, indexes: tuple[int, ...]) -> tuple[Step, ...]:
        """Clients wait for at least one delta of arguments for every call."""
        without = [index for index in indexes if index in self._without_arguments]
        self._without_arguments = [
            index for index in self._without_arguments if index not in indexes
        ]
        return tuple(ArgumentsGrown(index, NO_ARGUMENTS) for index in without)


def _input(index: int, text: str) -> tuple[Step, ...]:
    return (InputGrown(index, text),) if text else ()


# The steps of one choice, put together to a message. Knows no other choice and no usage.


class _Call(msgspec.Struct, eq=False):
    """A tool call while it grows."""

    opened: ToolOpened
    fragments: list[str] = []

    def whole(self) -> ToolCallWhole | CustomCallWhole:
        if isinstance(self.opened, InputOpened):
            custom = CustomWhole(self.opened.name, "".join(self.fragments))
            return CustomCallWhole(id=self.opened.id, custom=custom, **self.opened.further)
        function = FunctionWhole(self.opened.name, "".join(self.fragments))
        return ToolCallWhole(id=self.opened.id, function=function, **self.opened.further)


class ChoiceFold:
    """One choice while it grows."""

    def __init__(self, index: int, *, has_logprobs: bool) -> None:
        self._index = index
        self._has_logprobs = has_logprobs
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._logprobs: list[TokenLogprob] = []
        self._further: dict[str, Any] = {}
        self._executed: list[ExecutedTool] = []
        self._finished: Finished | None = None

    def add_executed(self, executed: ExecutedTool) -> None:
        """A tool was run here."""
        self._executed.append(executed)

    def add_further(self, fields: Mapping[str, Any]) -> None:
        """What another server adds to the message: lists come in parts."""
        for name, value in fields.items():
            before = self._further.get(name)
            if isinstance(before, list) and isinstance(value, list):
                self._further[name] = _joined([*before, *value])
            else:
                self._further[name] = value

    def add(self, step: AnswerStep) -> None:
        """Take one step more."""
        self._logprobs += step.logprobs
        match step.event:
            case Content(text):
                self._content.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case ToolOpened(index) as opened:
                self._calls[index] = _Call(opened)
            case ArgumentsGrown(index, fragment) | InputGrown(index, fragment):
                self._calls[index].fragments.append(fragment)
            case Finished() as finished:
                self._finished = finished

    def whole(self) -> WholeChoice:
        """The choice, once it is finished."""
        assert self._finished is not None, "a choice is sent when it has ended"
        return WholeChoice(
            index=self._index,
            message=self._message(),
            logprobs=chat_logprobs(self._logprobs) if self._has_logprobs else None,
            finish_reason=self._finished.reason,
            stop_reason=_given(self._finished.stop),
            stop_str=_given(self._finished.stop),
            schema_fault=_given(self._finished.fault),
        )

    def _message(self) -> MessageWhole:
        content = "".join(self._content)
        calls = tuple(call.whole() for call in self._calls.values())
        return MessageWhole(
            content=content if content or not calls else None,
            reasoning_content="".join(self._reasoning) if self._reasoning else UNSET,
            executed_tools=tuple(self._executed) or UNSET,
            tool_calls=calls or UNSET,
            **self._further,
        )


def _joined(parts: list[Any]) -> list[Any]:
    """Parts of one text (OpenRouter's details of reasoning, by type and index) are made one."""
    whole: list[Any] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, dict) and isinstance(last, dict) and _continues(last, part):
            texts = {
                name: last[name] + part[name]
                for name in ("text", "summary", "data")
                if isinstance(last.get(name), str) and isinstance(part.get(name), str)
            }
            whole[-1] = {**last, **part, **texts}
        else:
            whole.append(part)
    return whole


def _continues(last: dict[str, Any], part: dict[str, Any]) -> bool:
    alike = all(last.get(name) == part.get(name) for name in ("type", "index"))
    return alike and "index" in part and str(part.get("type", "")).startswith("reasoning.")


_ROLE = ChatDelta(role="assistant")
_NOTHING = ChatDelta()


class ChatReply(CompletionReply):
    """The answer to one request in chat."""

    chunk = ChatChunk

    def __init__(self, exchange: ChatExchange, facts: AnswerFacts) -> None:
        super().__init__(exchange, facts)
        hidden = exchange.request.thinking.shown == "hidden"
        choices = range(exchange.request.answering.n)
        everything = exchange.request.answering.logprobs_of == "all"
        tools = exchange.request.tools
        custom = frozenset(tool.name for tool in tools if tool.input is not None)
        self._steps = [
            ChoiceSteps(hides_reasoning=hidden, all_logprobs=everything, custom=custom)
            for _ in choices
        ]
        self._unfinished = len(choices)
        self._numbers = count()  # of tools that were run here
        self._of_answer: dict[str, Any] = {}  # what another server adds beside the choices
        self._templates = (
            [self._templates_of(index, hides_reasoning=hidden) for index in choices]
            if self._usage is None
            else []
        )

    @cached_property
    def _folds(self) -> list[ChoiceFold]:
        """Of the whole answer: a stream has none."""
        return [ChoiceFold(k, has_logprobs=self._has_logprobs) for k in range(len(self._steps))]

    def opening(self) -> bytes:
        """The role of every choice, in the order of their indexes, which clients rely on."""
        roles = (ChunkChoice(index=k, delta=_ROLE) for k in range(len(self._steps)))
        return b"".join(frame(self._chunk(role)) for role in roles)

    def delta(self, delta: Delta) -> bytes:
        """Some more of one choice."""
        if delta.further is not None:
            plain = msgspec.structs.replace(delta, further=None)
            return self._further(delta.choice, delta.further) + self.delta(plain)
        if len(delta.events) == 1 and not self._has_logprobs and self._usage is None:
            (event,) = delta.events
            if (type(event) is Content or type(event) is Reasoning) and event.text:
                # Nearly every delta of an answer; no step depends on it, so the steps may miss it.
                template = self._templates[delta.choice].get(type(event))
                return template.render(event.text) if template else b""
        if delta.answered:
            return b"".join(self._executed_frames(delta))
        if delta.progress is not None:
            return frame(self._progress(delta.choice, delta.progress))
        steps = self._steps[delta.choice].of(delta)
        return self._frames_of([_choice(delta.choice, step) for step in steps])

    def add(self, delta: Delta) -> None:
        """Keep some more of one choice for `whole`."""
        if delta.further is not None:
            self._folds[delta.choice].add_further(delta.further.message)
            self._of_answer.update(delta.further.answer)
        for executed in self._executed(delta):
            self._folds[delta.choice].add_executed(executed)
        for step in self._steps[delta.choice].of(delta):
            self._folds[delta.choice].add(step)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body, when every choice has finished."""
        choices = [fold.whole() for fold in self._folds]
        return self._body(ChatCompletion, choices, usage, **self._of_answer)

    def _further(self, choice: int, further: RemoteFurther) -> bytes:
        """In a chunk of its own."""
        delta = ChatDelta(**further.message)
        chunk = self._chunk(ChunkChoice(index=choice, delta=delta))
        return frame(msgspec.structs.replace(chunk, **further.answer))

    def _executed(self, delta: Delta) -> Iterator[ExecutedTool]:
        for answer in delta.answered:
            yield ExecutedTool(
                index=next(self._numbers),
                server_label=answer.tool.label,
                name=answer.tool.name,
                arguments=answer.arguments,
                output=answer.text,
                is_error=answer.is_error,
            )

    def _executed_frames(self, delta: Delta) -> Iterator[bytes]:
        for executed in self._executed(delta):
            step = ChatDelta(executed_tools=(executed,))
            yield frame(self._chunk(ChunkChoice(index=delta.choice, delta=step)))

    def _progress(self, choice: int, progress: PromptProgress) -> msgspec.Struct:
        chunk = self._chunk(ChunkChoice(index=choice, delta=_NOTHING))
        return msgspec.structs.replace(chunk, prompt_progress=progress_wire(progress))

    def _templates_of(
        self, index: int, *, hides_reasoning: bool
    ) -> dict[type[Event], FrameTemplate]:
        """The frames of plain text, by the event that fills them. Hidden reasoning has none."""
        events = (
            (Content(PLACEHOLDER),)
            if hides_reasoning
            else (Content(PLACEHOLDER), Reasoning(PLACEHOLDER))
        )
        return {
            type(event): FrameTemplate(frame(self._chunk(_choice(index, AnswerStep(event)))))
            for event in events
        }


class ChatLoading:
    """The wait for a model, reported as reasoning of the first choice: frontends drop comments.

    It opens the stream in the reply's place. Where reasoning is hidden there is only the opening.
    """

    def __init__(self, exchange: ChatExchange, *, id: str, created: int) -> None:
        self.began = False
        self._exchange = exchange
        self._id = id
        self._created = created

    def frames(self, model: str, text: str) -> bytes:
        """Frames that say `text`."""
        roles = 0 if self.began else self._exchange.request.answering.n
        choices = [ChunkChoice(index=k, delta=_ROLE) for k in range(roles)]
        self.began = True
        if self._exchange.request.thinking.shown != "hidden":
            choices.append(ChunkChoice(index=0, delta=ChatDelta(reasoning_content=text)))
        return b"".join(
            frame(ChatChunk(id=self._id, created=self._created, model=model, choices=(choice,)))
            for choice in choices
        )


def _choice(index: int, step: AnswerStep) -> ChunkChoice:
    logprobs = chat_logprobs(step.logprobs) if step.logprobs else UNSET
    match step.event:
        case Finished(reason, stop=stop, fault=fault):
            return ChunkChoice(
                index=index,
                delta=_NOTHING,
                logprobs=logprobs,
                finish_reason=reason,
                stop_reason=_given(stop),
                stop_str=_given(stop),
                schema_fault=_given(fault),
            )
    return ChunkChoice(index=index, delta=_chat_delta(step.event), logprobs=logprobs)


def _given(text: str | None) -> str | UnsetType:
    return UNSET if text is None else text


def _chat_delta(event: Step) -> ChatDelta:
    match event:
        case InputOpened(index, call_id, name):
            opened = CustomDelta(name=name, input="")
            call = ToolCallDelta(
                index=index, id=call_id, type="custom", custom=opened, **event.further
            )
            return ChatDelta(tool_calls=(call,))
        case InputGrown(index, text):
            grown = CustomDelta(input=text)
            return ChatDelta(tool_calls=(ToolCallDelta(index=index, custom=grown),))
        case Content(text):
            return ChatDelta(content=text)
        case Reasoning(text):
            return ChatDelta(reasoning_content=text)
        case ToolOpened(index, call_id, name):
            function = FunctionDelta(name=name)
            call = ToolCallDelta(
                index=index, id=call_id, type="function", function=function, **event.further
            )
            return ChatDelta(tool_calls=(call,))
        case ArgumentsGrown(index, fragment):
            function = FunctionDelta(arguments=fragment)
            return ChatDelta(tool_calls=(ToolCallDelta(index=index, function=function),))
        case ToolClosed() | Finished():
            raise AssertionError("the end of a call is not sent, and that of an answer elsewhere")
