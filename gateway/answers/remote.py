"""Answers of models that other servers run: a request handed on, and what comes back as our events.

The other server renders and splits; `<think>` left in the content is split here, and reasoning is
sent in the form the client requested.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from time import perf_counter
from typing import Literal

import msgspec

from backends.remote import (
    Caller,
    RemoteCall,
    RemoteChanges,
    RemoteChat,
    RemoteContainer,
    RemoteDelta,
    RemoteEvents,
    RemoteRequest,
    RemoteText,
    RemoteUsage,
)
from gateway.answers.answer import Answer
from gateway.answers.parameters import ignored_by_remote, parameters_sent, refuse_ignored
from gateway.answers.remote_parameters import (
    chat_parameters,
    text_parameters,
    thinking_of,
    unmet_by_remote,
)
from gateway.errors import InvalidRequest, translated
from gateway.events import (
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
from gateway.registry import Lease, Waiting
from gateway.request import ChatRequest, GenerationParams, Prompt, TextRequest
from gateway.splitter import FORMATS, Splitter

QUIET = 10.0  # seconds; proxies commonly cut silent connections after 30 or 60
THINK = FORMATS["think_text"]
_OPENS = THINK.reasoning.opens if THINK.reasoning else ()
_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}

Shown = Literal["split", "inline", "hidden"]


class RemoteChoice:
    """One choice of an answer, delta by delta. `raw`: all text is content, as it is."""

    def __init__(self, index: int, *, shown: Shown = "split", raw: bool = False) -> None:
        self._index = index
        self._shown = shown
        self._clear = raw  # content goes out as it is: no reasoning is left to be split off
        self._splitter: Splitter | None = None
        self._held = ""  # the beginning of the content, while it may become a marker
        self._inside = False  # reasoning sent inline is open
        self._calls: list[int] = []
        self.finished = False

    def take(self, remote: RemoteDelta) -> Delta | None:
        """What a delta adds; None where that is held back. After the end nothing counts."""
        if self.finished:
            return None
        if self._clear and not (remote.reasoning or remote.calls or remote.finished):
            if remote.content:
                return Delta(self._index, (Content(remote.content),), remote.logprobs)
            return Delta(self._index, (), remote.logprobs) if remote.logprobs else None
        events = tuple(self._events(remote))
        if not events and not remote.logprobs:
            return None
        return Delta(self._index, events, remote.logprobs)

    def end(self) -> Delta | None:
        """The other server ended the stream without a finish reason."""
        return self.take(RemoteDelta(finished="tool_calls" if self._calls else "stop"))

    def _events(self, remote: RemoteDelta) -> Iterator[Event]:
        if remote.reasoning:
            yield from self._thought(remote.reasoning)
        if remote.content:
            yield from self._said(remote.content)
        for call in remote.calls:
            yield from self._called(call)
        if remote.finished is not None:
            yield from self._ended(remote.finished, remote.stop)

    def _thought(self, text: str) -> Iterator[Event]:
        """The other server splits reasoning off: markers in the content are plain text."""
        if self._splitter is None:
            yield from self._unheld()
            self._clear = self._shown != "inline"
        if self._shown != "inline":
            yield Reasoning(text)
        elif self._inside:
            yield Content(text)
        else:
            self._inside = True
            yield Content(f"<think>\n{text}")

    def _said(self, text: str) -> Iterator[Event]:
        yield from self._closed()
        if self._splitter is not None:
            yield from self._splitter.feed(text)
        elif self._clear:
            yield Content(text)
        else:
            yield from self._begun(self._held + text)

    def _begun(self, text: str) -> Iterator[Event]:
        """The first characters decide: a marker of reasoning, or none, or not decidable yet."""
        begin, self._held = text.lstrip(), ""
        if begin.startswith(_OPENS) and self._shown != "inline":
            self._splitter = Splitter(THINK, in_reasoning=False)
            yield from self._splitter.feed(text)
        elif any(mark.startswith(begin) for mark in _OPENS) and self._shown != "inline":
            self._held = text
        else:
            self._clear = True
            yield Content(text)

    def _called(self, call: RemoteCall) -> Iterator[Event]:
        yield from self._closed()
        yield from self._unheld()
        if call.name:
            self._calls.append(call.index)
            yield ToolOpened(call.index, call.id, call.name)
        if call.arguments:
            yield ArgumentsGrown(call.index, call.arguments)

    def _ended(self, reason: str, stop: str | None) -> Iterator[Event]:
        self.finished = True
        yield from self._closed()
        yield from self._unheld()
        if self._splitter is not None:
            yield from self._splitter.finish("stop")[:-1]
        yield from map(ToolClosed, self._calls)
        finish = _REASONS.get(reason, "stop")
        yield Finished("tool_calls" if self._calls and finish == "stop" else finish, stop=stop)

    def _unheld(self) -> Iterator[Event]:
        held, self._held = self._held, ""
        if held:
            yield Content(held)

    def _closed(self) -> Iterator[Event]:
        if self._inside:
            self._inside = False
            yield Content("\n</think>\n\n")


class RemoteAnswer(Answer):
    """An answer that another server gives."""

    def __init__(
        self,
        lease: Lease,
        ignored: tuple[str, ...],
        choices: Sequence[RemoteChoice],
        events: RemoteEvents,
        asked_at: float,
    ) -> None:
        super().__init__(lease, ignored, (), self._singly())
        self._remote = choices
        self._events = events
        self._usage: RemoteUsage | None = None
        self._asked = asked_at  # by `perf_counter`
        self._first = self._last = 0.0

    async def batches(self) -> AsyncIterator[Sequence[Delta]]:
        """The deltas, those together that arrived together. Raises GatewayError."""
        with translated():
            async for events in self._events:
                self._last = perf_counter()
                self._first = self._first or self._last
                deltas = [delta for event in events if (delta := self._delta(event)) is not None]
                if deltas:
                    yield [await self._judged(delta) for delta in deltas]
        if last := [delta for choice in self._remote if (delta := choice.end()) is not None]:
            yield [await self._judged(delta) for delta in last]

    def usage(self) -> Usage:
        """By the other server's count; the times are ours."""
        usage = self._usage or RemoteUsage()
        return Usage(
            is_counted=self._usage is not None,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            prefill_seconds=max(0.0, self._first - self._asked),
            decode_seconds=self._last - self._first,
        )

    async def _singly(self) -> AsyncIterator[Delta]:
        async for deltas in self.batches():
            for delta in deltas:
                yield delta

    def _delta(self, event: RemoteDelta | RemoteUsage) -> Delta | None:
        if isinstance(event, RemoteUsage):
            self._usage = event
            return None
        return self._remote[event.choice].take(event)


@contextmanager
def reporting_wait(
    on_wait: Callable[[Waiting], None] | None, model: str, quiet: float = QUIET
) -> Iterator[None]:
    """A client whose answer has not begun after `quiet` seconds is sent a comment, before a proxy
    on the way gives up. Until then an error still has a status of its own.
    """
    if on_wait is None:
        yield
        return
    news = Waiting(model=model, position=1, stage="queued")
    timer = asyncio.get_running_loop().call_later(quiet, on_wait, news)
    try:
        yield
    finally:
        timer.cancel()


class LeasedRemote(msgspec.Struct, frozen=True):
    """Where a request is handed on to, and on whose behalf."""

    lease: Lease
    container: RemoteContainer
    caller: Caller


async def remote_chat(
    held: AsyncExitStack, target: LeasedRemote, request: ChatRequest, asked: GenerationParams
) -> Answer:
    """`request` handed on; `held` holds what must be given back. `asked`: with the presets.

    Raises GatewayError.
    """
    remote = RemoteChat(
        messages=request.messages,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        thinking=thinking_of(request),
        parameters=chat_parameters(request, asked, target.lease),
        shape=asked.shape,
        n=asked.n,
        caller=target.caller,
    )
    changes = remote_changes(target, remote, request.answering)
    asked_at = perf_counter()
    with translated():
        events = await held.enter_async_context(target.container.chat(remote))
    choices = [RemoteChoice(index, shown=request.thinking.shown) for index in range(asked.n)]
    return _answer(target.lease, changes, remote, asked, choices, events, asked_at)


async def remote_text(
    held: AsyncExitStack, target: LeasedRemote, request: TextRequest, asked: GenerationParams
) -> Answer:
    """As `remote_chat`. Prompts are echoed here, which takes their text. Raises GatewayError."""
    if request.echo and (asked.logprobs is not None or not all(map(_is_text, request.prompts))):
        text = "echo: not with logprobs or token ids, for a model that runs on another server."
        raise InvalidRequest(text, param="echo")
    prompts = _handed(request)
    remote = RemoteText(
        prompts=prompts,
        parameters=text_parameters(request, asked, target.lease),
        shape=asked.shape,
        n=asked.n,
        caller=target.caller,
    )
    changes = remote_changes(target, remote, request.answering)
    asked_at = perf_counter()
    with translated():
        events = await held.enter_async_context(target.container.complete(remote))
    count = asked.n * len(prompts)
    choices = [RemoteChoice(index, raw=True) for index in range(count)]
    return _answer(target.lease, changes, remote, asked, choices, events, asked_at)


def remote_changes(
    target: LeasedRemote, remote: RemoteRequest, answering: GenerationParams
) -> RemoteChanges:
    """What the server does not apply as it was asked for. Raises InvalidRequest where the client is
    strict.
    """
    changes = target.container.changes(remote)
    if answering.strict:
        refuse_ignored(changes, answering)
    return changes


def _is_text(prompt: Prompt) -> bool:
    return isinstance(prompt, str)


def _handed(request: TextRequest) -> tuple[str | tuple[int, ...], ...]:
    """The prompts, where they are such as other servers take. Raises InvalidRequest."""
    if request.fill is not None:
        text = "input_suffix: The model runs on another server, and its tokens are known there."
        raise InvalidRequest(text, param="input_suffix")
    found = []
    for prompt in request.prompts:
        if not isinstance(prompt, str) and any(isinstance(part, str) for part in prompt):
            text = "prompt: Texts and token ids in turn, and the model runs on another server."
            raise InvalidRequest(text, param="prompt")
        found.append(prompt)
    return tuple(found)  # type: ignore[arg-type]


def _answer(
    lease: Lease,
    changes: RemoteChanges,
    remote: RemoteRequest,
    asked: GenerationParams,
    choices: Sequence[RemoteChoice],
    events: RemoteEvents,
    asked_at: float,
) -> RemoteAnswer:
    ignored = (*ignored_by_remote(changes, asked), *unmet_by_remote(asked))
    answer = RemoteAnswer(lease, ignored, choices, events, asked_at)
    report_changes(answer, changes, remote, asked)
    return answer


def report_changes(
    answer: Answer, changes: RemoteChanges, remote: RemoteRequest, asked: GenerationParams
) -> None:
    """What is returned to the client beside the answer."""
    strict = {"tools[].function.strict"} if isinstance(remote, RemoteChat) else set()
    answer.handed_on = frozenset(strict.union(asked.further) - changes.left_out.keys())
    if remote.shape is not None and not changes.holds_shape:
        answer.relaxed = (remote.shape.field,)
    if asked.reports:
        answer.parameters = parameters_sent(remote, changes, asked)
