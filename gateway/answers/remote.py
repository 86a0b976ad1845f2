"""Answers of models that other servers run: a request handed on, and what comes back as our events.

The other server renders and splits; `<think>` left in the content is split here, and reasoning is
sent in the form the client requested.

Requests for models that other servers run: which side splits the answer, the check of its shape,
and chats that are rendered and split here.

A chat is split here where its model has a template and a format of ours: the prompt goes over as a
raw text, and what comes back is read like an engine's output. The other server tokenizes the
prompt, so what a client spells like a control token becomes one.

A request's parameters for another server: OpenAI's names, else vLLM's.

What the client named is handed on, and nothing else: the other server has defaults of its own.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from time import perf_counter
from typing import Any, Literal, TypeAlias

import msgspec

from backends.protocol import Cause, Ended, Generation, Output, Outputs, Piece, Tool
from backends.remote import (
    Caller,
    RemoteCall,
    RemoteChanges,
    RemoteChat,
    RemoteContainer,
    RemoteDelta,
    RemoteEmbedding,
    RemoteEvents,
    RemoteRequest,
    RemoteRerank,
    RemoteText,
    RemoteThinking,
    RemoteUsage,
)
from backends.samplers import Sampling
from gateway.answers.answer import Answer, Choice, merged, stopping
from gateway.answers.constraints import Constraints
from gateway.answers.interpreter import Interpreter
from gateway.answers.parameters import parameters_sent, refuse_unapplied_there, unapplied_there
from gateway.answers.tokens import Tokens
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
from gateway.prompt import RenderedPrompt
from gateway.registry import Lease, Waiting
from gateway.request import (
    ChatRequest,
    EmbeddingRequest,
    GenerationParams,
    Prompt,
    RerankRequest,
    TextRequest,
    Unapplied,
)
from gateway.splitter import FORMATS, Splitter
from gateway.splitter.unparsed import UnparsedCalls

Body: TypeAlias = dict[str, Any]  # JSON, on its way to a body

_MAX_TOKENS = ("max_tokens", "max_completion_tokens")  # OpenAI's older and newer name
_BUDGETS = "thinking_budget"
_SPELLED = {"ban_eos": "ignore_eos"}  # ours that no other server has: vLLM's name
_GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}
_BAN = -100.0  # OpenAI's strongest bias; JSON has no infinity


def chat_parameters(request: ChatRequest, asked: GenerationParams, lease: Lease) -> Body:
    """Everything of a chat but messages, tools, the shape and n. `asked`: with the presets."""
    found = _shared(asked, lease)
    if asked.logprobs is not None:
        found["logprobs"] = True
        found["top_logprobs"] = asked.logprobs
    if asked.stop_in_reasoning:
        found["stop_in_reasoning"] = True
    if request.allow_control_tokens:
        found["allow_control_tokens"] = True
    if request.continue_final:
        found |= _GOES_ON
    elif [one.tool_calls for one in request.messages[-1:] if one.role == "assistant"] == [()]:
        # Some servers would go on from the last message without being asked.
        found |= {"continue_final_message": False, "add_generation_prompt": True}
    return found | _thinking(request)


def template_parameters(request: ChatRequest) -> Body:
    """What templates read, for a prompt without an answer."""
    found = _thinking(request)
    if request.continue_final:
        return found | _GOES_ON
    return found | {"add_generation_prompt": request.opens_turn}


def text_parameters(request: TextRequest, asked: GenerationParams, lease: Lease) -> Body:
    """Everything of a text completion but prompts, the shape and n."""
    found = _shared(asked, lease)
    if asked.logprobs is not None:
        found["logprobs"] = asked.logprobs
    if request.suffix is not None:
        found["suffix"] = request.suffix
    if request.add_bos is not None:
        found["add_bos_token"] = request.add_bos
    return found


def _refuse_local_only(asked: GenerationParams) -> None:
    """Raises InvalidRequest for what takes the model's own vocabulary or samplers."""
    where = "the model runs on another server"
    if asked.sampling.text_biases:
        text = f"logit_bias: Send token ids, because {where}."
        raise InvalidRequest(text, param="logit_bias")
    if asked.after_samplers:
        text = f"post_sampling_probs: Not available, because {where}."
        raise InvalidRequest(text, param="post_sampling_probs")


def _shared(asked: GenerationParams, lease: Lease) -> Body:
    _refuse_local_only(asked)
    found: Body = dict(asked.further)
    if asked.slot is not None:
        found["id_slot"] = asked.slot
    sampling = asked.sampling.over(lease.entry.sampling.over(Sampling()))
    for name in sorted(asked.sampling.named | lease.entry.sampling.named):
        found[_SPELLED.get(name, name)] = _plain(name, getattr(sampling, name))
    if asked.max_tokens is not None:
        spelled = asked.spelled.get("max_tokens", "max_tokens")
        found[spelled if spelled in _MAX_TOKENS else "max_tokens"] = asked.max_tokens
    if asked.min_tokens:
        found["min_tokens"] = asked.min_tokens
    if asked.stop:
        found["stop"] = list(asked.stop)
    remote = lease.entry.files.remote
    if asked.keep_alive is not None and remote is not None and remote.roundhouse:
        found["keep_alive"] = asked.keep_alive
    return found


def _plain(name: str, value: Any) -> Any:
    if name != "logit_bias":
        return value
    return {str(token): _BAN if bias == -math.inf else bias for token, bias in value}


def _thinking(request: ChatRequest) -> Body:
    thinking, found = request.thinking, Body()
    variables = dict(request.template_variables)
    if "verbosity" in variables:
        found["verbosity"] = variables.pop("verbosity")
    if thinking.effort is not None:
        found["reasoning_effort"] = thinking.effort
    if thinking.enabled is not None and not (thinking.effort == "none" and not thinking.enabled):
        variables.setdefault("enable_thinking", thinking.enabled)
    if thinking.budget is not None:
        found[_budget_name(request)] = thinking.budget
        if thinking.closing:
            found["reasoning_budget_message"] = thinking.closing
    if variables:
        found["chat_template_kwargs"] = variables
    return found


def _budget_name(request: ChatRequest) -> str:
    return request.answering.spelled.get(_BUDGETS, _BUDGETS)


def thinking_of(request: ChatRequest) -> RemoteThinking:
    """The same for servers that name it differently."""
    thinking = request.thinking
    return RemoteThinking(
        enabled=thinking.enabled,
        effort=thinking.effort,
        budget=thinking.budget,
        budget_name=_budget_name(request),
    )


def embedding_parameters(request: EmbeddingRequest, caller: Caller) -> RemoteEmbedding:
    """Everything of a request for vectors. Fields that only some servers know go over where the
    client sent them.
    """
    found: Body = dict(request.further)
    if request.dimensions is not None:
        found["dimensions"] = request.dimensions
    return RemoteEmbedding(inputs=request.inputs, parameters=found, caller=caller)


def rerank_parameters(request: RerankRequest, caller: Caller) -> RemoteRerank:
    """Everything of a request for scores."""
    return RemoteRerank(
        query=request.query,
        documents=request.documents,
        parameters=request.further,
        caller=caller,
    )


QUIET = 10.0  # seconds; proxies commonly cut silent connections after 30 or 60
THINK = FORMATS["think_text"]
_OPENS = THINK.reasoning.opens if THINK.reasoning else ()
_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}

_CLOSES = THINK.reasoning.closes if THINK.reasoning else ()

Shown = Literal["split", "inline", "hidden"]


class RemoteChoice:
    """One choice of an answer, delta by delta. `raw`: all text is content, as it is. `tools`: calls
    of them are looked for in the content, too. `whole`: it is delivered at its end, so that the end
    of reasoning counts without its beginning, which some templates write into the prompt.
    """

    def __init__(
        self,
        index: int,
        *,
        shown: Shown = "split",
        raw: bool = False,
        tools: Sequence[Tool] = (),
        whole: bool = False,
    ) -> None:
        self._index = index
        self._shown = shown
        self._whole = whole
        self._unparsed = UnparsedCalls(tools) if tools else None
        self._clear = raw  # content goes out as it is: no reasoning is left to be split off
        self._splitter: Splitter | None = None
        self._held = ""  # the beginning of the content, while it may become a marker
        self._kept: list[str] = []  # of a whole answer, until it is known whether it is reasoning
        self._inside = False  # reasoning sent inline is open
        self._calls: list[int] = []
        self.finished = False

    def take(self, remote: RemoteDelta) -> Delta | None:
        """What a delta adds; None where that is held back. After the end nothing counts."""
        if self.finished:
            return Delta(self._index, (), further=remote.further) if remote.further else None
        if (
            self._clear
            and self._unparsed is None
            and not (remote.reasoning or remote.calls or remote.finished or remote.further)
        ):
            if remote.content:
                return Delta(self._index, (Content(remote.content),), remote.logprobs)
            return Delta(self._index, (), remote.logprobs) if remote.logprobs else None
        events = tuple(self._events(remote))
        if not (events or remote.logprobs or remote.further or self._kept):
            return None
        return Delta(self._index, events, remote.logprobs, further=remote.further)

    def end(self) -> Delta | None:
        """The other server ended the stream without a finish reason."""
        return self.take(RemoteDelta(finished="tool_calls" if self._calls else "stop"))

    def _events(self, remote: RemoteDelta) -> Iterator[Event]:
        for event in self._split(remote):
            if self._unparsed is None:
                yield event
            else:
                yield from self._parsed(self._unparsed, event)

    def _parsed(self, unparsed: UnparsedCalls, event: Event) -> Iterator[Event]:
        """A server that parses calls itself writes none into its content."""
        match event:
            case Content(text):
                yield from unparsed.feed(text)
            case ToolOpened():
                self._unparsed = None
                yield from (*unparsed.finish(), event)
            case Finished(reason):
                yield from unparsed.finish()
                called = unparsed.called and reason == "stop"
                yield msgspec.structs.replace(event, reason="tool_calls") if called else event
            case _:
                yield event

    def _split(self, remote: RemoteDelta) -> Iterator[Event]:
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
        elif self._kept:
            self._kept.append(text)
        else:
            yield from self._begun(self._held + text)

    def _begun(self, text: str) -> Iterator[Event]:
        """The first characters decide: a marker of reasoning, or none, or not decidable yet."""
        begin, self._held = text.lstrip(), ""
        if begin.startswith(_OPENS) and self._shown != "inline":
            self._splitter = Splitter(THINK, in_reasoning=False)
            yield from self._splitter.feed(text)
        elif self._shown != "inline" and any(mark.startswith(begin) for mark in _OPENS):
            self._held = text
        elif self._shown != "inline" and self._whole:
            self._kept.append(text)
        else:
            self._clear = True
            yield Content(text)

    def _called(self, call: RemoteCall) -> Iterator[Event]:
        yield from self._closed()
        yield from self._unheld()
        if call.name:
            self._calls.append(call.index)
            yield ToolOpened(call.index, call.id, call.name, call.further)
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
        held, self._held = "".join((self._held, *self._kept)), ""
        self._kept.clear()
        if any(mark in held for mark in _CLOSES):
            self._splitter = Splitter(THINK, in_reasoning=True)
            yield from self._splitter.feed(held)
        elif held:
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
        unapplied: tuple[Unapplied, ...],
        choices: Sequence[RemoteChoice],
        events: RemoteEvents,
        asked_at: float,
    ) -> None:
        super().__init__(lease, unapplied, (), self._singly())
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
            further=usage.further,
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
    choices = [
        RemoteChoice(
            index,
            shown=request.thinking.shown,
            tools=request.tools if request.tool_choice != "none" else (),
            whole=not asked.streamed,
        )
        for index in range(asked.n)
    ]
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
        refuse_unapplied_there(changes, answering)
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
    unapplied = unapplied_there(remote, changes, asked)
    answer = RemoteAnswer(lease, unapplied, choices, events, asked_at)
    if asked.reports:
        answer.parameters = parameters_sent(remote, changes, asked, unapplied)
    return answer


class RemoteOutputs:
    """The events of one raw answer as an engine's outputs, without token ids."""

    def __init__(self, events: RemoteEvents) -> None:
        self._outputs = self._read(events)
        self._stopped = False

    def __aiter__(self) -> AsyncIterator[Output]:
        return self._outputs

    async def __anext__(self) -> Output:
        return await anext(self._outputs)

    def stop(self) -> None:
        """See `Outputs.stop`: no more is read."""
        self._stopped = True

    def offer(self, take: Callable[[Piece], bool], flush: Callable[[], None]) -> None:
        """See `Outputs.offer`: there is no direct path here."""

    async def _read(self, events: RemoteEvents) -> AsyncIterator[Output]:
        usage, finished, stop = RemoteUsage(), "stop", None
        async for batch in events:
            for event in batch:
                if isinstance(event, RemoteUsage):
                    usage = event
                    continue
                if event.content or event.logprobs:
                    yield Piece(event.content, (), event.logprobs)
                if event.finished is not None:
                    finished, stop = event.finished, event.stop
                if self._stopped:
                    break
            if self._stopped:
                break
        yield Ended(
            cause="stopped" if self._stopped else _cause(finished, stop),
            stop_string=stop,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )


def _cause(finished: str, stop: str | None) -> Cause:
    if stop is not None:
        return "stop_string"
    return "max_tokens" if finished == "length" else "end_token"


async def split_here(
    held: AsyncExitStack,
    target: LeasedRemote,
    request: ChatRequest,
    asked: GenerationParams,
    prompt: tuple[Interpreter, RenderedPrompt],
) -> Answer:
    """One request for each choice; `held` holds them. Raises GatewayError."""
    interpreter, rendered = prompt
    if rendered.pictures:
        text = "images: not for a model elsewhere whose prompts are made here (split: here)."
        raise InvalidRequest(text, param="messages")
    choices = [
        Choice(
            index,
            Generation(prompt=()),
            stopping(interpreter.splitter(request, rendered.framed), request, asked),
            one_call=request.one_call,
        )
        for index in range(asked.n)
    ]
    remotes = [
        _request(rendered.text, request, _varied(asked, index), target) for index in range(asked.n)
    ]
    changes = remote_changes(target, remotes[0], request.answering)
    outputs: list[Outputs] = []
    with translated():
        for remote in remotes:
            events = await held.enter_async_context(target.container.complete(remote))
            outputs.append(RemoteOutputs(events))
    source = await merged(held, choices, outputs)
    unapplied = unapplied_there(remotes[0], changes, asked)
    answer = Answer(target.lease, unapplied, choices, source)
    if asked.reports:
        answer.parameters = parameters_sent(remotes[0], changes, asked, unapplied)
    return answer


def _request(
    text: str, request: ChatRequest, asked: GenerationParams, target: LeasedRemote
) -> RemoteText:
    raw = TextRequest(model=request.model, prompts=(text,), answering=asked)
    parameters = text_parameters(raw, asked, target.lease)
    return RemoteText(
        prompts=(text,),
        parameters=parameters,
        shape=asked.shape,
        caller=target.caller,
    )


def _varied(asked: GenerationParams, index: int) -> GenerationParams:
    """Stop strings are found here, in the content alone; several choices count on from one seed."""
    values = asked.sampling.values
    if values.seed is not None and index:
        values = msgspec.structs.replace(values, seed=values.seed + index)
    sampling = msgspec.structs.replace(asked.sampling, values=values)
    return msgspec.structs.replace(asked, stop=(), sampling=sampling)


class RemotePipeline:
    """One per server. What an answer holds is held by `held`; all raise GatewayError."""

    def __init__(self, tokens: Tokens, constraints: Constraints) -> None:
        self._tokens = tokens
        self._constraints = constraints

    async def chat(
        self,
        held: AsyncExitStack,
        target: LeasedRemote,
        request: ChatRequest,
        asked: GenerationParams,
    ) -> Answer:
        """`asked`: with the presets."""
        if target.container.splits:
            answer = await remote_chat(held, target, request, asked)
        else:
            raw = await self._tokens.rendered(request, target.lease)
            answer = await split_here(held, target, request, asked, raw)
        if request.thinking.shown != "inline":  # what has reasoning in it has no such shape
            self._check(answer, asked)
        return answer

    async def text(
        self,
        held: AsyncExitStack,
        target: LeasedRemote,
        request: TextRequest,
        asked: GenerationParams,
    ) -> Answer:
        """`asked`: with the presets."""
        answer = await remote_text(held, target, request, asked)
        self._check(answer, asked)
        return answer

    def _check(self, answer: Answer, asked: GenerationParams) -> None:
        if (check := self._constraints.remote(asked.shape)) is not None:
            answer.check_with(check)
