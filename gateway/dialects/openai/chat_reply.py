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
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from backends.contract.protocol import PromptProgress, TokenLogprob
from backends.contract.remote import FurtherOfCall, FurtherOfMessage, RemoteFurther
from config.values import alike
from gateway.dialects.custom import InputText
from gateway.dialects.dialect import frame
from gateway.dialects.logprobs import LogprobWire
from gateway.dialects.openai.logprobs import (
    ChatLogprobs,
    ProgressWire,
    chat_logprobs,
    progress_wire,
)
from gateway.dialects.openai.reply import CompletionObject, CompletionReply, StoppedChoice
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
from gateway.terms.request import ChatRequest


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function of a call. Of a stream the name is sent once, on its own; the arguments, the
    text of a JSON object, follow in parts.
    """

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CalledCustom(msgspec.Struct, frozen=True, kw_only=True):
    """The custom tool of a call, whose input is a text."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ChatCall(FurtherOfCall, frozen=True, kw_only=True):
    """A call, or a part of it, which has its `index`. `id` and `type` are in its first delta only,
    because clients concatenate them.
    """

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustom | UnsetType = UNSET


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


class ChatMessage(FurtherOfMessage, frozen=True, kw_only=True):
    """The message, or one step of it, empty in the chunk with the finish reason. `content` is null
    if there are only tool calls.
    """

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    executed_tools: tuple[ExecutedTool, ...] | UnsetType = UNSET
    tool_calls: tuple[ChatCall, ...] | UnsetType = UNSET


class ChatChoice(StoppedChoice, frozen=True, kw_only=True):
    """`schema_fault` describes how the content violates the requested schema, in keywords that the
    grammar can't express.
    """

    schema_fault: str | UnsetType = UNSET


class ChunkChoice(ChatChoice, frozen=True, kw_only=True):
    """A step of a choice. `finish_reason` is null until the choice ends."""

    delta: ChatMessage
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


class WholeChoice(ChatChoice, frozen=True, kw_only=True):
    """One of the requested answers."""

    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(ChatObject, frozen=True, kw_only=True, tag="chat.completion"):
    """The whole body."""

    choices: tuple[WholeChoice, ...]


NO_ARGUMENTS = "{}"
_NOTHING = ChatMessage()


class ArgumentsText:
    """A function's arguments, as `InputText` has a custom tool's input. Clients wait for at least
    one delta of them for every call.
    """

    _has_begun = False

    def grow(self, fragment: str) -> str:
        """What `fragment` adds to them."""
        self._has_begun = self._has_begun or bool(fragment)
        return fragment

    def finish(self) -> str:
        """What is left when they have ended."""
        return "" if self._has_begun else NO_ARGUMENTS


class ChoiceSteps(msgspec.Struct, eq=False):
    """The steps of one choice, delta by delta. `custom`: the names of tools whose input is a text.

    Hidden reasoning, empty texts and the ends of tool calls are gone here. Log probabilities of
    reasoning are left out, as OpenAI does, unless all are asked for. Those of tokens whose text is
    still held back wait for the next step.
    """

    index: int
    hides_reasoning: bool
    has_logprobs: bool
    all_logprobs: bool
    custom: Collection[str]
    _calls: dict[int, ArgumentsText | InputText] = {}  # that are open
    _waiting: tuple[TokenLogprob, ...] = ()

    def of(self, delta: Delta) -> Iterator[ChunkChoice]:
        """The steps that `delta` makes."""
        if self.has_logprobs:
            self._waiting += delta.logprobs
        for event in delta.events:
            is_left_out = isinstance(event, Reasoning) and not self.all_logprobs
            for step in self._steps(event):
                if self._waiting and not is_left_out:
                    logprobs, self._waiting = chat_logprobs(self._waiting), ()
                    yield replace(step, logprobs=logprobs)
                else:
                    yield step
        if delta.events and isinstance(delta.events[-1], Reasoning) and not self.all_logprobs:
            self._waiting = ()

    def _steps(self, event: Event) -> Iterator[ChunkChoice]:
        for said in self._said(event):
            yield ChunkChoice(index=self.index, delta=said)
        if isinstance(event, Finished):
            yield ChunkChoice(
                index=self.index,
                delta=_NOTHING,
                finish_reason=event.reason,
                stop_reason=_given(event.stop),
                stop_str=_given(event.stop),
                schema_fault=_given(event.fault),
            )

    def _said(self, event: Event) -> Iterator[ChatMessage]:
        match event:
            case Content(text) if text:
                yield ChatMessage(content=text)
            case Reasoning(text) if text and not self.hides_reasoning:
                yield ChatMessage(reasoning_content=text)
            case ToolOpened():
                yield ChatMessage(tool_calls=(self._opened(event),))
            case ArgumentsGrown(index, fragment) if index in self._calls:
                yield from self._grown(index, self._calls[index].grow(fragment))
            case ToolClosed(index) if index in self._calls:
                yield from self._closed(index)
            case Finished():
                for index in list(self._calls):
                    yield from self._closed(index)

    def _opened(self, event: ToolOpened) -> ChatCall:
        call = ChatCall(index=event.index, id=event.id, type="function", **event.further)
        if event.name in self.custom:
            self._calls[event.index] = InputText()
            custom = CalledCustom(name=event.name, input="")
            return replace(call, type="custom", custom=custom)
        self._calls[event.index] = ArgumentsText()
        return replace(call, function=CalledFunction(name=event.name))

    def _closed(self, index: int) -> Iterator[ChatMessage]:
        yield from self._grown(index, self._calls[index].finish())
        del self._calls[index]

    def _grown(self, index: int, text: str) -> Iterator[ChatMessage]:
        if not text:
            return
        if isinstance(self._calls[index], InputText):
            call = ChatCall(index=index, custom=CalledCustom(input=text))
        else:
            call = ChatCall(index=index, function=CalledFunction(arguments=text))
        yield ChatMessage(tool_calls=(call,))


def _given(text: str | None) -> str | UnsetType:
    return UNSET if text is None else text


class ChoiceFold(msgspec.Struct, eq=False):
    """One choice while it grows: its steps, put together to a message. Knows no other choice and no
    usage.
    """

    has_logprobs: bool
    _content: list[str] = []
    _reasoning: list[str] = []
    _calls: dict[int, tuple[ChatCall, list[str]]] = {}  # each as it began
    _logprobs: list[LogprobWire] = []
    _further: dict[str, Any] = {}
    _executed: list[ExecutedTool] = []
    _last: ChunkChoice | None = None

    def add_further(self, fields: Mapping[str, Any]) -> None:
        """What another server adds to the message: lists come in parts."""
        for name, value in fields.items():
            before = self._further.get(name)
            if isinstance(before, list) and isinstance(value, list):
                self._further[name] = _joined([*before, *value])
            else:
                self._further[name] = value

    def add(self, step: ChunkChoice) -> None:
        """Take one step more."""
        match step.delta:
            case ChatMessage(content=str(text)):
                self._content.append(text)
            case ChatMessage(reasoning_content=str(text)):
                self._reasoning.append(text)
            case ChatMessage(tool_calls=(ChatCall(index=int(index)) as call,)):
                if call.id is not UNSET:  # it begins
                    self._calls[index] = (call, [])
                self._calls[index][1].extend(_texts(call))
            case ChatMessage(executed_tools=(executed,)):
                self._executed.append(executed)
        if isinstance(step.logprobs, ChatLogprobs):
            self._logprobs += step.logprobs.content
        if step.finish_reason is not None:
            self._last = step

    def whole(self) -> WholeChoice:
        """The choice, once it is finished."""
        assert self._last is not None, "a choice is sent when it has ended"
        logprobs = ChatLogprobs(tuple(self._logprobs)) if self.has_logprobs else None
        return alike(WholeChoice, self._last)(message=self._message(), logprobs=logprobs)

    def _message(self) -> ChatMessage:
        content = "".join(self._content)
        calls = tuple(_whole(call, "".join(texts)) for call, texts in self._calls.values())
        return ChatMessage(
            role="assistant",
            content=content if content or not calls else None,
            reasoning_content="".join(self._reasoning) if self._reasoning else UNSET,
            executed_tools=tuple(self._executed) or UNSET,
            tool_calls=calls or UNSET,
            **self._further,
        )


def _texts(call: ChatCall) -> Iterator[str]:
    match call:
        case ChatCall(function=CalledFunction(arguments=str(text))):
            yield text
        case ChatCall(custom=CalledCustom(input=str(text))):
            yield text


def _whole(call: ChatCall, text: str) -> ChatCall:
    """`call` as it began, with all of its `text`."""
    if isinstance(call.custom, CalledCustom):
        return replace(call, index=UNSET, custom=replace(call.custom, input=text))
    assert isinstance(call.function, CalledFunction), "it is the one or the other"
    return replace(call, index=UNSET, function=replace(call.function, arguments=text))


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


_ROLE = ChatMessage(role="assistant")


class ChatReply(CompletionReply):
    """The answer to one request in chat."""

    chunk = ChatChunk

    exchange: ChatExchange
    _steps: list[ChoiceSteps] = msgspec.field(default_factory=list)
    _folds: list[ChoiceFold] = msgspec.field(default_factory=list)  # those of a stream stay empty
    _numbers: "count[int]" = msgspec.field(default_factory=count)  # of tools that were run here
    # What another server adds beside the choices.
    _of_answer: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        request = self.exchange.request
        custom = frozenset(tool.name for tool in request.tools if tool.input is not None)
        self._steps = [
            ChoiceSteps(
                index=index,
                hides_reasoning=request.thinking.shown == "hidden",
                has_logprobs=self._has_logprobs,
                all_logprobs=request.answering.logprobs_of == "all",
                custom=custom,
            )
            for index in range(request.answering.n)
        ]
        self._folds = [ChoiceFold(has_logprobs=self._has_logprobs) for _ in self._steps]
        self._unfinished = len(self._steps)

    def opening(self) -> bytes:
        """The role of every choice, in the order of their indexes, which clients rely on."""
        roles = (ChunkChoice(index=step.index, delta=_ROLE) for step in self._steps)
        return b"".join(frame(self._chunk(role)) for role in roles)

    def delta(self, delta: Delta) -> bytes:
        """Some more of one choice."""
        if delta.further is not None:
            plain = replace(delta, further=None)
            return self._further(delta.choice, delta.further) + self.delta(plain)
        if delta.progress is not None:
            return frame(self._progress(delta.choice, delta.progress))
        return self._frames_of([*self._executed(delta), *self._steps[delta.choice].of(delta)])

    def add(self, delta: Delta) -> None:
        """Keep some more of one choice for `whole`."""
        fold = self._folds[delta.choice]
        if delta.further is not None:
            fold.add_further(delta.further.message)
            self._of_answer.update(delta.further.answer)
        for step in (*self._executed(delta), *self._steps[delta.choice].of(delta)):
            fold.add(step)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body, when every choice has finished."""
        choices = [fold.whole() for fold in self._folds]
        return self._body(ChatCompletion, choices, usage, **self._of_answer)

    def _further(self, choice: int, further: RemoteFurther) -> bytes:
        """In a chunk of its own."""
        delta = ChatMessage(**further.message)
        chunk = self._chunk(ChunkChoice(index=choice, delta=delta))
        return frame(replace(chunk, **further.answer))

    def _executed(self, delta: Delta) -> Iterator[ChunkChoice]:
        for answer in delta.answered:
            executed = ExecutedTool(
                index=next(self._numbers),
                server_label=answer.tool.label,
                name=answer.tool.name,
                arguments=answer.arguments,
                output=answer.text,
                is_error=answer.is_error,
            )
            yield ChunkChoice(index=delta.choice, delta=ChatMessage(executed_tools=(executed,)))

    def _progress(self, choice: int, progress: PromptProgress) -> msgspec.Struct:
        chunk = self._chunk(ChunkChoice(index=choice, delta=_NOTHING))
        return replace(chunk, prompt_progress=progress_wire(progress))


class ChatLoading(msgspec.Struct, eq=False):
    """The wait for a model, reported as reasoning of the first choice: frontends drop comments.

    It opens the stream in the reply's place. Where reasoning is hidden there is only the opening.
    """

    request: ChatRequest
    id: str
    created: int
    began: bool = False

    def frames(self, model: str, text: str) -> bytes:
        """Frames that say `text`."""
        roles = 0 if self.began else self.request.answering.n
        choices = [ChunkChoice(index=k, delta=_ROLE) for k in range(roles)]
        self.began = True
        if self.request.thinking.shown != "hidden":
            choices.append(ChunkChoice(index=0, delta=ChatMessage(reasoning_content=text)))
        return b"".join(
            frame(ChatChunk(id=self.id, created=self.created, model=model, choices=(choice,)))
            for choice in choices
        )
