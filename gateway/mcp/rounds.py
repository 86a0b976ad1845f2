"""Chats in rounds: the model calls tools that this server runs, is told what they answered, and is
asked again, within one answer.

    async with rounds.chat(call, "calls") as answer:
        async for delta in answer.deltas():
            ...

Each round holds its model only while that writes: none is held while tools run. Where a chat has no
such tools, the answer is the pipeline's own.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from backends.contract.samplers import Sampling
from gateway.answers.answer import Answer
from gateway.answers.call import Call
from gateway.answers.recording import Recording
from gateway.mcp.servers import McpServers, Runnable, Toolset
from gateway.registry import Registry
from gateway.terms.errors import ContextLengthExceeded, InvalidRequest
from gateway.terms.events import (
    ArgumentsGrown,
    ChoiceReport,
    Content,
    Delta,
    Event,
    Finished,
    ListedServer,
    Reasoning,
    ServedTool,
    ToolAnswered,
    ToolClosed,
    ToolOpened,
    Usage,
)
from gateway.terms.request import (
    ChatRequest,
    ImagePart,
    Message,
    NamedTool,
    Part,
    ServedTools,
    TextPart,
    ToolCall,
)
from gateway.terms.tasks import companions

# What a client sees of the tools that run here: their calls as they are written and what they
# answered, only the latter, or nothing.
Shown: TypeAlias = Literal["calls", "answers", "nothing"]
OpenChat: TypeAlias = Callable[[Call[ChatRequest]], AbstractAsyncContextManager[Answer]]

PICTURES = "tools.pictures"  # where those of tools stand in a request
TOO_MANY = "Error: not run, because there were too many rounds of calls. Answer now."


class _Call(msgspec.Struct):
    """A call while it is written."""

    id: str
    name: str
    shown: int  # its index in the answer; -1: it is not shown
    arguments: str = ""
    closed: bool = False


class ToolRounds(msgspec.Struct, eq=False):
    """One per server."""

    _chat: OpenChat
    _servers: McpServers
    _registry: Registry

    @asynccontextmanager
    async def chat(
        self, call: Call[ChatRequest], shown: Shown = "nothing", *, can_approve: bool = False
    ) -> AsyncIterator[Answer]:
        """`can_approve`: its user can be asked to allow a call. Raises GatewayError, before
        anything is generated if the request is at fault.
        """
        request, always = call.request, self._always(call)
        if not (request.served or request.approved or request.call_limit or always):
            async with self._chat(call) as answer:
                yield answer
            return
        if request.answering.n > 1:
            message = "Expected 1 with tools of MCP servers, which are run here."
            raise InvalidRequest.at("n", message)
        async with companions() as tasks, AsyncExitStack() as held:
            tools = await self._tools(call, always, tasks, can_approve=can_approve)
            rounds = _Rounds(self._chat, call, held, tools, tasks, shown)
            yield await _begun(rounds, _with_tools(request, tools), self._servers.most_rounds)

    async def shown(self, call: Call[ChatRequest], *, can_approve: bool = False) -> ChatRequest:
        """The request as the model first gets it, to count its tokens. Raises as `chat`."""
        always = self._always(call)
        if not (call.request.served or always):
            return call.request
        async with companions() as tasks:
            tools = await self._tools(call, always, tasks, can_approve=can_approve)
            return _with_tools(call.request, tools)

    async def _tools(
        self,
        call: Call[ChatRequest],
        always: Sequence[ServedTools],
        tasks: TaskGroup,
        *,
        can_approve: bool,
    ) -> Toolset:
        wanted, own = call.request.served, call.request.tools
        return await self._servers.opened(
            wanted, always, call.access, tasks, own, can_approve=can_approve
        )

    def _always(self, call: Call[ChatRequest]) -> tuple[ServedTools, ...]:
        """The servers whose tools the model always has."""
        if self._servers.is_empty:
            return ()
        name = self._registry.named(call.request.model, call.access)
        model = self._registry.resolve(name, call.access).name
        return self._servers.of_model(model, call.access)


def _with_tools(request: ChatRequest, tools: Toolset) -> ChatRequest:
    """The request as the model gets it. Raises InvalidRequest."""
    choice = request.tool_choice
    if (wanted := request.served_choice) is not None:
        choice = "required"
        if wanted.tool:
            choice = NamedTool(tools.function(wanted.label, wanted.tool, wanted.field))
    elif choice == "none" and not (request.tools or request.served):
        choice = "auto"  # what dialects say of a request without tools
    unapplied = (*request.answering.unapplied, *tools.unapplied)
    own = frozenset(tool.name for tool in tools.tools)
    return replace(
        request,
        allowed=None if request.allowed is None else request.allowed | own,
        tools=(*request.tools, *tools.tools),
        tool_choice=choice if (request.tools or tools.tools) else "none",
        answering=replace(request.answering, unapplied=unapplied),
        served=(),
        served_choice=None,
        approved=(),
    )


class _Rounds(msgspec.Struct, frozen=True, eq=False):
    """The chat that is open now, of which there is one at most, and the tools that run between, in
    tasks of the request.
    """

    _chat: OpenChat
    call: Call[ChatRequest]
    held: AsyncExitStack  # with it the model is given back
    tools: Toolset
    _tasks: TaskGroup
    shown: Shown

    async def open(self, request: ChatRequest) -> tuple[Answer, ChatRequest]:
        """The answer, and the request as it was taken: without the tools' pictures, which their
        results name, where the model doesn't see, or can't be shown them. Raises GatewayError.
        """
        try:
            return await self._opened(request), request
        except InvalidRequest:  # the model, its template, or the limits for pictures
            plain = replace(request, messages=tuple(map(_without_pictures, request.messages)))
            if plain == request:
                raise
        return await self._opened(plain), plain

    async def _opened(self, request: ChatRequest) -> Answer:
        return await self.held.enter_async_context(self._chat(self.call.of(request)))

    async def answers(self, calls: Sequence[_Call]) -> AsyncIterator[ToolAnswered]:
        """As they come. Those that are left when it is closed end with the request."""
        send, receive = anyio.create_memory_object_stream[ToolAnswered](len(calls))
        for call in calls:
            self._tasks.start_soon(self._run, call, send.clone())
        send.close()
        with receive:
            async for answered in receive:
                yield answered

    async def _run(self, call: _Call, send: anyio.abc.ObjectSendStream[ToolAnswered]) -> None:
        async with send:
            await send.send(await _outcome(call, self.tools.runnable[call.name]))


async def _outcome(call: _Call, tool: Runnable) -> ToolAnswered:
    failed = _refused(call, tool.shown, "Error: the arguments are not a JSON object.")
    with suppress(msgspec.DecodeError, RecursionError):
        given = msgspec.json.decode(failed.arguments, type=dict[str, Any])
        found = await tool.run(given)
        return replace(failed, text=found.text, is_error=found.is_error, pictures=found.pictures)
    return failed


def _refused(call: _Call, tool: ServedTool, why: str) -> ToolAnswered:
    return ToolAnswered(
        index=call.shown,
        id=call.id,
        tool=tool,
        arguments=call.arguments or "{}",
        text=why,
        is_error=True,
    )


async def _begun(rounds: _Rounds, request: ChatRequest, limit: int) -> "AnswerInRounds":
    """The answer, its first round open. What the user allowed is run before."""
    approved = []
    for number, each in enumerate(rounds.call.request.approved):
        name = rounds.tools.function(each.label, each.tool, each.field)
        approved.append(_Call(each.id, name, number, each.arguments, closed=True))
    answered = [each async for each in rounds.answers(approved)]
    request = replace(
        request, messages=(*request.messages, *_exchanged("", "", approved, answered))
    )
    first, request = await rounds.open(request)
    return AnswerInRounds(first, rounds, request, limit, _script(approved, answered, rounds.shown))


def _script(calls: Sequence[_Call], answered: Sequence[ToolAnswered], shown: Shown) -> list[Delta]:
    """What was run before the first round, as it would have come."""
    found: list[Delta] = []
    for call in calls if shown == "calls" else ():
        opened = ToolOpened(call.shown, call.id, call.name)
        grown = ArgumentsGrown(call.shown, call.arguments)
        found.append(Delta(0, (opened, grown, ToolClosed(call.shown))))
    if shown != "nothing":
        found += [Delta(0, (), answered=(each,)) for each in answered]
    return found


class AnswerInRounds(Answer):
    """One answer, of several of the pipeline's."""

    def __init__(
        self,
        first: Answer,
        rounds: _Rounds,
        request: ChatRequest,
        limit: int,
        script: Sequence[Delta],
    ) -> None:
        super().__init__(first.lease, first.unapplied, (), self._all())
        self.parameters, self.turn = first.parameters, first.turn
        self._recording: Recording | None = None
        self._now = first
        self._rounds = rounds
        self._request = request
        self._left = limit  # rounds
        self._script = script
        self._calls = len(rounds.call.request.approved)  # shown so far
        self._counted = self._calls  # of those that the request limits
        self._generated = 0  # tokens of the last one

    @property
    def sampling(self) -> Sampling | None:
        """That of each round."""
        return self._now.sampling

    @property
    def listed(self) -> Sequence[ListedServer]:
        """The servers whose tools the model is shown."""
        return self._rounds.tools.listed

    @property
    def served(self) -> Mapping[str, ServedTool]:
        """The tools that run here, by their functions' names."""
        return {name: each.shown for name, each in self._rounds.tools.runnable.items()}

    def record(self, recording: Recording) -> None:
        """Each round is an answer of its own there."""
        self._recording = recording
        self._now.record(recording)

    def report(self, index: int) -> ChoiceReport | None:
        """Of the last round."""
        return self._now.report(index)

    def prompt_ending(self, characters: int) -> str | None:
        """Of the round that is open."""
        return self._now.prompt_ending(characters)

    def _usage_so_far(self) -> Usage:
        return self._now.usage()

    async def _all(self) -> AsyncIterator[Delta]:
        for delta in self._script:
            yield delta
        while True:
            turn = _Turn(self._rounds, self._calls, self._is_ignored)
            async for delta in self._now.deltas():
                if (passed := turn.take(delta)) is not None:
                    yield passed
            self._calls = turn.seen
            async for answered in self._answers(turn):
                if self._rounds.shown != "nothing":
                    yield Delta(0, (), answered=(answered,))
            if not (self._goes_on(turn) and await self._next_round(turn)):
                yield turn.end()
                return

    def _is_limited(self, name: str) -> bool:
        limit = self._request.call_limit
        return limit is not None and (name in self.served or name in limit.counted)

    def _is_ignored(self, name: str) -> bool:
        """A call of this tool is one too many; else it counts."""
        limit = self._request.call_limit
        if limit is None or not self._is_limited(name):
            return False
        self._counted += 1
        return self._counted > limit.most

    def _allowed(self) -> frozenset[str] | None:
        """The tools that may be called in the next round; None: all."""
        limit, allowed = self._request.call_limit, self._request.allowed
        if limit is None or self._counted < limit.most:
            return allowed
        callable_ = self._request.callable_tools
        return frozenset(tool.name for tool in callable_ if not self._is_limited(tool.name))

    async def _next_round(self, turn: "_Turn") -> bool:
        """Whether the conversation still fits into the context: what tools answered may be long."""
        try:
            self._now, self._request = await self._rounds.open(self._request)
        except ContextLengthExceeded:
            turn.cut()
            return False
        if self._recording is not None:
            self._now.record(self._recording)
        return True

    async def _answers(self, turn: "_Turn") -> AsyncIterator[ToolAnswered]:
        """What the tools say to the calls of a turn."""
        calls = turn.to_run()
        if calls and self._left:
            last = self._now  # its usage is known, and its model is free while tools run
            self.first, self._generated = self.usage(), last.usage().completion_tokens
            await self._rounds.held.aclose()
            self._now = Answer(last.lease, last.unapplied, ())
            async for each in self._rounds.answers(calls):
                turn.answered.append(each)
                yield each
        for call in calls if not self._left else ():
            yield _refused(call, self.served[call.name], TOO_MANY)

    def _goes_on(self, turn: "_Turn") -> bool:
        """Whether there is another round, which is the request then."""
        if not turn.answered or turn.goes_back:
            return False
        request = self._request
        self._left -= 1
        limit = request.answering.max_tokens
        if limit is not None:
            limit -= self._generated
            if limit <= 0:
                turn.cut()
                return False
        messages = request.messages
        begun = ""
        if request.continue_final:  # the answer went on from it
            begun, messages = messages[-1].text, messages[:-1]
        allowed = self._allowed()
        self._request = replace(
            request,
            messages=(*messages, *turn.exchanged(begun)),
            allowed=allowed,
            tool_choice="auto" if self._left and (allowed is None or allowed) else "none",
            continue_final=False,
            answering=replace(request.answering, max_tokens=limit),
        )
        return True


class _Turn(msgspec.Struct, eq=False):
    """What the model says in one round, on its way to the client."""

    _rounds: _Rounds
    seen: int  # how many calls the client sees, of all rounds
    _is_ignored: Callable[[str], bool]  # asked for each call
    _calls: dict[int, _Call] = {}
    _finished: Finished = Finished("stop")
    _last: Delta = Delta(0, ())
    _texts: list[str] = []
    _thoughts: list[str] = []
    answered: list[ToolAnswered] = []

    def exchanged(self, begun: str) -> tuple[Message, ...]:
        """The turn and its results as the next round reads them. `begun`: text that it went on
        from.
        """
        text, thought = begun + "".join(self._texts), "".join(self._thoughts)
        return _exchanged(text, thought, self.to_run(), self.answered)

    def take(self, delta: Delta) -> Delta | None:
        """What of `delta` the client gets now."""
        events = tuple(passed for event in delta.events if (passed := self._of(event)) is not None)
        if delta.events and isinstance(delta.events[-1], Finished):
            self._last = replace(delta, events=())
            return Delta(delta.choice, events) if events else None
        if events or delta.logprobs or delta.tokens or delta.progress or delta.further:
            return replace(delta, events=events)
        return None

    def _of(self, event: Event) -> Event | None:
        match event:
            case Content(text):
                self._texts.append(text)
                return event
            case Reasoning(text):
                self._thoughts.append(text)
                return event
            case ToolOpened(index, call_id, name):
                return self._opened(event, index, call_id, name)
            case ArgumentsGrown(index=index) | ToolClosed(index=index) if index not in self._calls:
                return None
            case ArgumentsGrown(index, fragment):
                call = self._calls[index]
                call.arguments += fragment
                return ArgumentsGrown(call.shown, fragment) if call.shown >= 0 else None
            case ToolClosed(index):
                call = self._calls[index]
                call.closed = True
                return ToolClosed(call.shown) if call.shown >= 0 else None
            case Finished():
                self._finished = event
                return None

    def _opened(self, event: ToolOpened, index: int, call_id: str, name: str) -> Event | None:
        if self._is_ignored(name):
            return None
        is_shown = self._rounds.shown == "calls" or name not in self._rounds.tools.runnable
        number = self.seen if is_shown else -1
        self.seen += is_shown
        self._calls[index] = _Call(call_id, name, number)
        return ToolOpened(number, call_id, name, event.further) if is_shown else None

    def to_run(self) -> list[_Call]:
        """The calls that run now: of the others some wait for their user."""
        if self._finished.reason != "tool_calls":
            return []
        tools = self._rounds.tools.runnable
        calls = [call for call in self._calls.values() if call.closed and call.name in tools]
        return [call for call in calls if not tools[call.name].shown.waits]

    @property
    def goes_back(self) -> bool:
        """The client has to do something: run its own tools, or allow a call."""
        return len(self._calls) > len(self.to_run())

    def cut(self) -> None:
        """There is no room for another round."""
        self._finished = Finished("length")

    def end(self) -> Delta:
        """The last delta of the answer. A client that has nothing to run is not told to."""
        finished, known = self._finished, self._rounds.tools.runnable
        if finished.reason == "tool_calls":
            own = [call for call in self._calls.values() if call.name not in known]
            finished = finished if own else replace(finished, reason="stop")
        return replace(self._last, events=(finished,))


def _exchanged(
    text: str, thought: str, calls: Sequence[_Call], answered: Sequence[ToolAnswered]
) -> tuple[Message, ...]:
    """What the assistant said and called, and what the tools answered, in the calls' order."""
    if not calls:
        return ()
    said = Message(
        role="assistant",
        parts=(TextPart(text),) if text else (),
        reasoning=thought or None,
        tool_calls=tuple(ToolCall(call.id, call.name, call.arguments or "{}") for call in calls),
    )
    parts: dict[str, tuple[Part, ...]] = {
        each.id: (TextPart(each.text), *(ImagePart(url, PICTURES) for url in each.pictures))
        for each in answered
    }
    return (
        said,
        *(
            Message(
                role="tool",
                parts=parts.get(call.id, (TextPart(TOO_MANY),)),
                tool_call_id=call.id,
                name=call.name,
            )
            for call in calls
        ),
    )


def _without_pictures(message: Message) -> Message:
    """A client's own stay."""
    parts = (
        part
        for part in message.parts
        if not (isinstance(part, ImagePart) and part.field == PICTURES)
    )
    return replace(message, parts=tuple(parts))
