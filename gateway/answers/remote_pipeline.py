"""Requests for models that other servers run: which side splits the answer, the check of its shape,
and chats that are rendered and split here.

A chat is split here where its model has a template and a format of ours: the prompt goes over as a
raw text, and what comes back is read like an engine's output. The other server tokenizes the
prompt, so what a client spells like a control token becomes one.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import msgspec

from backends.protocol import Cause, Ended, Generation, Output, Outputs, Piece
from backends.remote import RemoteEvents, RemoteText, RemoteUsage
from gateway.answers.answer import Answer, Choice
from gateway.answers.choices import merged
from gateway.answers.constraints import Constraints
from gateway.answers.interpreter import Interpreter
from gateway.answers.parameters import ignored_by_remote
from gateway.answers.remote import (
    LeasedRemote,
    remote_changes,
    remote_chat,
    remote_text,
    report_changes,
)
from gateway.answers.remote_parameters import text_parameters
from gateway.answers.stopping import stopping
from gateway.answers.tokens import Tokens
from gateway.errors import InvalidRequest, translated
from gateway.prompt import RenderedPrompt
from gateway.request import ChatRequest, GenerationParams, TextRequest


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
    answer = Answer(target.lease, ignored_by_remote(changes, asked), choices, source)
    report_changes(answer, changes, remotes[0], asked)
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
