"""Answers of models that other servers run: a request handed on, and what comes back as our events.

The other server renders and splits; `<think>` left in the content is split here, and reasoning is
sent in the form the client requested. A chat is split here only where its model has a template and
a format of ours (`split_here`).

Parameters have OpenAI's names, else vLLM's. What the client named is handed on, and nothing else:
the other server has defaults of its own.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from backends.contract.latest import Latest
from backends.contract.protocol import (
    AdapterScale,
    Cause,
    Ended,
    Generation,
    Output,
    Outputs,
    Piece,
)
from backends.contract.remote import (
    Caller,
    RemoteChanges,
    RemoteChat,
    RemoteEmbedding,
    RemoteEvents,
    RemoteRequest,
    RemoteRerank,
    RemoteText,
    RemoteThinking,
    RemoteUsage,
)
from backends.contract.samplers import Sampling
from backends.places.upstream.upstream import UpstreamModel
from config.values import alike
from gateway.answers.answer import Answer, Choice, merged, varied
from gateway.answers.call import Call
from gateway.answers.constraints import Constraints
from gateway.answers.interpreter import Interpreter
from gateway.answers.parameters import parameters_sent, refuse_unapplied_there, unapplied_there
from gateway.answers.recording import RecordedChoice, Recording
from gateway.answers.remote_choice import MOST_HABITS, HabitKey, RemoteChoice, ThinkingHabit
from gateway.answers.tokens import Tokens
from gateway.prompt import RenderedPrompt
from gateway.registry import Lease
from gateway.terms.errors import InvalidRequest, translated
from gateway.terms.events import Delta, Usage
from gateway.terms.request import (
    ChatRequest,
    EmbeddingRequest,
    GenerationParams,
    RerankRequest,
    TextRequest,
)

Body: TypeAlias = dict[str, Any]  # JSON, on its way to a body
Asked = TypeVar("Asked", RemoteChat, RemoteText)

_MAX_TOKENS = ("max_tokens", "max_completion_tokens")  # OpenAI's older and newer name
_BUDGETS = "thinking_budget"
_SPELLED = {"ban_eos": "ignore_eos"}  # ours that no other server has: vLLM's name
_GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}
_BAN = -100.0  # OpenAI's strongest bias; JSON has no infinity


def chat_parameters(request: ChatRequest, params: GenerationParams, lease: Lease) -> Body:
    """Everything of a chat but messages, tools, the shape and n. `params`: with the presets."""
    found = _shared(params, lease)
    if params.logprobs is not None:
        found["logprobs"] = True
        found["top_logprobs"] = params.logprobs
    if params.stop_in_reasoning:
        found["stop_in_reasoning"] = True
    if request.allow_control_tokens:
        found["allow_control_tokens"] = True
    if request.format is not None:
        if (remote := lease.entry.files.remote) is None or not remote.roundhouse:
            text = "Not available, because another server splits the answer."
            raise InvalidRequest.at("answer_format", text)
        found["answer_format"] = request.format
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


def text_parameters(request: TextRequest, params: GenerationParams, lease: Lease) -> Body:
    """Everything of a text completion but prompts, the shape and n."""
    own = {"logprobs": params.logprobs, "suffix": request.suffix, "add_bos_token": request.add_bos}
    return _shared(params, lease) | {name: one for name, one in own.items() if one is not None}


def _refuse_local_only(params: GenerationParams) -> None:
    """Raises InvalidRequest for what takes the model's own vocabulary or samplers."""
    where = "the model runs on another server"
    if params.sampling.text_biases:
        raise InvalidRequest.at("logit_bias", f"Send token ids, because {where}.")
    if params.after_samplers:
        raise InvalidRequest.at("post_sampling_probs", f"Not available, because {where}.")


def _shared(params: GenerationParams, lease: Lease) -> Body:
    _refuse_local_only(params)
    found: Body = dict(params.further)
    if params.slot is not None:
        found["id_slot"] = params.slot
    if params.adapters is not None:
        found["lora"] = [_lora(each) for each in params.adapters]
    sampling = params.sampling.over(lease.entry.sampling.over(Sampling()))
    for name in sorted(params.sampling.named | lease.entry.sampling.named):
        found[_SPELLED.get(name, name)] = _plain(name, getattr(sampling, name))
    if params.max_tokens is not None:
        spelled = params.spelled.get("max_tokens", "max_tokens")
        found[spelled if spelled in _MAX_TOKENS else "max_tokens"] = params.max_tokens
    if params.min_tokens:
        found["min_tokens"] = params.min_tokens
    if params.stop:
        found["stop"] = list(params.stop)
    remote = lease.entry.files.remote
    if params.keep_alive is not None and remote is not None and remote.roundhouse:
        found["keep_alive"] = params.keep_alive
    return found


def _lora(chosen: AdapterScale) -> Body:
    named = "name" if isinstance(chosen.adapter, str) else "id"
    return {named: chosen.adapter, "scale": chosen.scale}


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
    return alike(RemoteThinking, request.thinking)(budget_name=_budget_name(request))


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
    return alike(RemoteRerank, request)(parameters=request.further, caller=caller)


class RemoteAnswer(Answer):
    """An answer that another server gives."""

    def __init__(
        self,
        lease: Lease,
        choices: Sequence[RemoteChoice],
        events: RemoteEvents,
        asked_at: float,
    ) -> None:
        super().__init__(lease, (), (), self._all())
        self._remote = choices
        self._events = events
        self._usage: RemoteUsage | None = None
        self._recorded: Mapping[int, RecordedChoice] = {}  # by choice, where one may look
        self._asked = asked_at  # by `perf_counter`
        self._first = self._last = 0.0

    async def _all(self) -> AsyncIterator[Delta]:
        async for events in self._events:
            self._last = perf_counter()
            self._first = self._first or self._last
            for event in events:
                if isinstance(event, RemoteUsage):
                    self._usage = event
                elif (delta := self._remote[event.choice].take(event)) is not None:
                    yield self._noted(delta)
        for choice in self._remote:
            if (delta := choice.end()) is not None:
                yield self._noted(delta)

    def record(self, recording: Recording) -> None:
        """As any answer: what the other server has split, and what is split off here."""
        super().record(recording)
        choices = range(len(self._remote))
        self._recorded = {index: recording.choice(0, has_raw=False) for index in choices}

    def _noted(self, delta: Delta) -> Delta:
        if self._recorded:
            self._recorded[delta.choice].more(delta.events)
        return delta

    def _usage_so_far(self) -> Usage:
        """By the other server's count; the times are ours."""
        usage = self._usage or RemoteUsage()
        return alike(Usage, usage)(
            is_counted=self._usage is not None,
            prefill_seconds=max(0.0, self._first - self._asked),
            decode_seconds=self._last - self._first,
        )


class LeasedRemote(msgspec.Struct, frozen=True):
    """Where a request is handed on to, and on whose behalf. `held` holds what must be given back;
    `params` have the presets. All methods raise GatewayError.
    """

    held: AsyncExitStack
    lease: Lease
    container: UpstreamModel
    call: Call[ChatRequest] | Call[TextRequest]

    async def chat(
        self, request: ChatRequest, params: GenerationParams, habit: ThinkingHabit | None = None
    ) -> Answer:
        """A chat that the other server renders and splits."""
        remote = alike(RemoteChat, request)(
            tools=request.callable_tools,
            thinking=thinking_of(request),
            parameters=chat_parameters(request, params, self.lease),
            shape=params.shape,
            n=params.n,
            caller=self.call.caller,
        )
        choices = [
            RemoteChoice(
                index,
                shown=request.thinking.shown,
                tools=request.callable_tools if request.tool_choice != "none" else (),
                whole=not params.streamed,
                habit=habit,
            )
            for index in range(params.n)
        ]
        return await self._answer(self.container.chat, remote, params, choices)

    async def text(self, request: TextRequest, params: GenerationParams) -> Answer:
        """Prompts are echoed here, which takes their text."""
        are_texts = all(isinstance(prompt, str) for prompt in request.prompts)
        if request.echo and (params.logprobs is not None or not are_texts):
            text = "not with logprobs or token ids, for a model that runs on another server."
            raise InvalidRequest.at("echo", text)
        remote = self._raw(request, params)
        count = params.n * len(remote.prompts)
        choices = [RemoteChoice(index, raw=True) for index in range(count)]
        return await self._answer(self.container.complete, remote, params, choices)

    async def split_here(
        self,
        request: ChatRequest,
        params: GenerationParams,
        interpreter: Interpreter,
        rendered: RenderedPrompt,
    ) -> Answer:
        """A chat that is rendered and split here. One request for each choice.

        The prompt goes over as a raw text, and what comes back is read like an engine's output. The
        other server tokenizes the prompt, so what a client spells like a control token becomes one.
        """
        if rendered.pictures:
            text = "images: not for a model elsewhere whose prompts are made here (split: here)."
            raise InvalidRequest(text, param="messages")
        choices, remotes = [], []
        for index in range(params.n):
            splitter = interpreter.splitter(request, params, rendered.framed)
            job = Generation(prompt=())
            choices.append(Choice(index, job, splitter, one_call=request.one_call))
            choice = _varied(params, index)
            raw = TextRequest(model=request.model, prompts=(rendered.text,), answering=choice)
            remotes.append(self._raw(raw, replace(choice, n=1)))
        changes = self._changes(remotes[0])
        outputs: list[Outputs] = []
        with translated():
            for remote in remotes:
                events = await self.held.enter_async_context(self.container.complete(remote))
                outputs.append(RemoteOutputs(events))
        answer = Answer(self.lease, (), choices, await merged(self.held, choices, outputs))
        answer.rendered, answer.split = rendered.text, interpreter.split
        return _reported(answer, remotes[0], changes, params)

    def _raw(self, request: TextRequest, params: GenerationParams) -> RemoteText:
        return RemoteText(
            prompts=_handed(request),
            parameters=text_parameters(request, params, self.lease),
            shape=params.shape,
            n=params.n,
            caller=self.call.caller,
        )

    async def _answer(
        self,
        ask: Callable[[Asked], AbstractAsyncContextManager[RemoteEvents]],
        remote: Asked,
        params: GenerationParams,
        choices: Sequence[RemoteChoice],
    ) -> Answer:
        changes = self._changes(remote)
        asked_at = perf_counter()
        with translated():
            events = await self.held.enter_async_context(ask(remote))
        answer = RemoteAnswer(self.lease, choices, events, asked_at)
        return _reported(answer, remote, changes, params)

    def _changes(self, remote: RemoteRequest) -> RemoteChanges:
        """What the server does not apply as it was asked for. Raises InvalidRequest where the
        client is strict.
        """
        changes, answering = self.container.changes(remote), self.call.request.answering
        if answering.strict:
            refuse_unapplied_there(changes, answering)
        return changes


def _reported(
    answer: Answer, remote: RemoteRequest, changes: RemoteChanges, params: GenerationParams
) -> Answer:
    """With what the other server does not apply."""
    answer.unapplied = unapplied_there(remote, changes, params)
    if params.reports:
        answer.parameters = parameters_sent(remote, changes, params, answer.unapplied)
    return answer


def _handed(request: TextRequest) -> tuple[str | tuple[int, ...], ...]:
    """The prompts, where they are such as other servers take. Raises InvalidRequest."""
    if request.fill is not None:
        text = "The model runs on another server, and its tokens are known there."
        raise InvalidRequest.at("input_suffix", text)
    found = []
    for prompt in request.prompts:
        if not isinstance(prompt, str) and any(isinstance(part, str) for part in prompt):
            text = "Texts and token ids in turn, and the model runs on another server."
            raise InvalidRequest.at("prompt", text)
        found.append(prompt)
    return tuple(found)  # type: ignore[arg-type]


class RemoteOutputs(AsyncIterator[Output]):
    """The events of one raw answer as an engine's outputs, without token ids."""

    def __init__(self, events: RemoteEvents) -> None:
        self._outputs = self._read(events)
        self._stopped = False

    async def __anext__(self) -> Output:
        return await anext(self._outputs)

    def stop(self) -> None:
        """See `Outputs.stop`: no more is read."""
        self._stopped = True

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
        cause = "stopped" if self._stopped else _cause(finished, stop)
        yield alike(Ended, usage)(cause=cause, stop_string=stop)


def _cause(finished: str, stop: str | None) -> Cause:
    if stop is not None:
        return "stop_string"
    return "max_tokens" if finished == "length" else "end_token"


def _varied(params: GenerationParams, index: int) -> GenerationParams:
    """Stop strings are found here, in the content alone; several choices count on from one seed."""
    sampling = replace(params.sampling, values=varied(params.sampling.values, index))
    return replace(params, stop=(), sampling=sampling)


class RemotePipeline(msgspec.Struct, frozen=True):
    """One per server. `params`: with the presets; all raise GatewayError."""

    tokens: Tokens
    constraints: Constraints
    _habits: Latest[HabitKey, None] = msgspec.field(default_factory=partial(Latest, MOST_HABITS))

    async def answer(
        self, target: LeasedRemote, request: ChatRequest | TextRequest, params: GenerationParams
    ) -> Answer:
        """By the other server, or with what its model writes."""
        check = self.constraints.remote(params.shape)
        if isinstance(request, TextRequest):
            answer = await target.text(request, params)
        elif target.container.splits:
            answer = await target.chat(request, params, self._habit(target, request))
        else:
            raw = await self.tokens.rendered(request, target.lease)
            answer = await target.split_here(request, params, *raw)
        # What has reasoning in it has no such shape.
        inline = isinstance(request, ChatRequest) and request.thinking.shown == "inline"
        if check is not None and not inline:
            answer.check_with(check)
        return answer

    def _habit(self, target: LeasedRemote, request: ChatRequest) -> ThinkingHabit:
        """Of a key's requests alone: a client can make a model write any tag."""
        thinking = request.thinking
        key = target.call.caller.key
        kind = (key, target.lease.name, thinking.enabled, thinking.effort == "none")
        return ThinkingHabit(self._habits, kind)
