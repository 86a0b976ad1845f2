"""An answer while it is generated: outputs of the jobs in, deltas out, and the count of what it
cost.

It holds nothing that must be given back: the jobs and the lease belong to the pipeline's context.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from backends.errors import BackendError
from backends.protocol import Ended, Generation, Output, Piece, Scored, TokenLogprob
from gateway.answer import Delta, Usage
from gateway.errors import GatewayError
from gateway.events import (
    Content,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ToolClosed,
    joined,
)
from gateway.registry import Lease
from gateway.trouble import translated

BACKLOG = 64  # deltas of several choices that may wait for a slow client


class Splitting(Protocol):
    """A `gateway.splitter.Splitter`, or `Unsplit`."""

    def feed(self, text: str) -> list[Event]: ...

    def finish(self, reason: FinishReason) -> list[Event]: ...


class Unsplit:
    """Raw text: all of it is content."""

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self, reason: FinishReason) -> list[Event]:
        return [Finished(reason)]


class Choice:
    """One job's answer."""

    def __init__(
        self,
        index: int,
        job: Generation,
        splitting: Splitting,
        *,
        prompt: int = 0,
        one_call: bool = False,
    ) -> None:
        self.index = index
        self.prompt = prompt  # which of the request's prompts it answers
        self.job = job
        self.ended: Ended | None = None
        self.generated = 0
        self.reasoning_tokens = 0
        self._splitting = splitting
        self._one_call = one_call  # the answer is over after its first tool call
        self._reasoning = False
        self._logprobs: list[TokenLogprob] = []

    async def deltas(self, outputs: AsyncIterator[Output]) -> AsyncIterator[Delta]:
        """Ends with the delta that holds `Finished`."""
        async for output in outputs:
            if isinstance(output, Ended):
                self.ended = output
                yield Delta(self.index, tuple(self._splitting.finish(_reason(output))))
                return
            if isinstance(output, Scored):
                yield Delta(self.index, (), prompt_logprobs=output.logprobs)
                continue
            delta = self._take(output.parts or (output,))
            if self._one_call and (calls := _first_call(delta.events)):
                finished = self._splitting.finish("stop")
                yield Delta(self.index, (*calls, *finished), delta.logprobs)
                return
            if delta.events:
                yield delta

    def _take(self, pieces: Sequence[Piece]) -> Delta:
        """Piece by piece, however many came together: each token counts for its own phase."""
        events: list[Event] = []
        logprobs: list[TokenLogprob] = []
        for piece in pieces:
            grown = self._splitting.feed(piece.text)
            self._count(piece, grown)
            logprobs += self._spoken(piece, grown)
            events += grown
        if len(pieces) > 1:
            events = joined(events)
        return Delta(self.index, tuple(events), tuple(logprobs))

    def _count(self, piece: Piece, events: Sequence[Event]) -> None:
        """Tokens whose text is held back count for the phase before."""
        for event in events:
            self._reasoning = isinstance(event, Reasoning)
        self.generated += len(piece.tokens)
        if self._reasoning:
            self.reasoning_tokens += len(piece.tokens)

    def _spoken(self, piece: Piece, events: Sequence[Event]) -> Sequence[TokenLogprob]:
        """Log probabilities wait for the content they make; those of markers and reasoning go
        nowhere.
        """
        if not events:
            self._logprobs += piece.logprobs
            return ()
        waited, self._logprobs = [*self._logprobs, *piece.logprobs], []
        content = "".join(event.text for event in events if isinstance(event, Content))
        return _ending(waited, len(content.encode()))


def _ending(logprobs: Sequence[TokenLogprob], size: int) -> Sequence[TokenLogprob]:
    """The last tokens, as many as it takes for `size` bytes of text."""
    start = len(logprobs)
    while start and size > 0:
        start -= 1
        size -= len(logprobs[start].chosen.text)
    return logprobs[start:]


def _first_call(events: Sequence[Event]) -> Sequence[Event]:
    """Up to the end of the first tool call; nothing when none ends here."""
    for number, event in enumerate(events, 1):
        if isinstance(event, ToolClosed):
            return events[:number]
    return ()


def _reason(ended: Ended) -> FinishReason:
    return "length" if ended.cause in ("max_tokens", "context_full") else "stop"


class Streams:
    """The deltas of several choices as they come, in one stream. `tasks` outlives them."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._send, self._receive = anyio.create_memory_object_stream[Delta | Exception](BACKLOG)

    def add(self, choice: Choice, outputs: AsyncIterator[Output]) -> None:
        self._tasks.start_soon(self._forward, choice, outputs, self._send.clone())

    async def _forward(
        self,
        choice: Choice,
        outputs: AsyncIterator[Output],
        send: anyio.abc.ObjectSendStream[Delta | Exception],
    ) -> None:
        async with send:
            try:
                async for delta in choice.deltas(outputs):
                    await send.send(delta)
            # the reader raises it, as with one choice
            except (BackendError, GatewayError) as error:
                await send.send(error)

    def close(self) -> None:
        """No more is read."""
        self._send.close()
        self._receive.close()

    async def deltas(self) -> AsyncIterator[Delta]:
        self._send.close()
        async for item in self._receive:
            if isinstance(item, Exception):
                raise item
            yield item


class Answer:
    """What a pipeline context gives: who answers, what it took to get there, the answer."""

    def __init__(
        self,
        lease: Lease,
        ignored: tuple[str, ...],
        choices: Sequence[Choice],
        source: AsyncIterator[Delta],
    ) -> None:
        self.model = lease.name
        self.backend = lease.container.info.backend
        self.queued_seconds = lease.queued_seconds
        self.load_seconds = lease.load_seconds
        self.ignored = ignored  # sampling parameters that this engine lacks
        self.echoes: tuple[str, ...] = ()  # the prompts' texts, where they are wanted back
        self._choices = choices
        self._source = source

    async def deltas(self) -> AsyncIterator[Delta]:
        """All choices' deltas as they come. Raises GatewayError."""
        with translated():
            async for delta in self._source:
                yield delta

    def usage(self) -> Usage:
        """What it cost so far; complete once `deltas` is exhausted. Each of the request's prompts
        counts once, however many choices answer it and however many prompts are equal.
        """
        ended = [choice.ended for choice in self._choices if choice.ended]
        return Usage(
            prompt_tokens=self._prompt_tokens(),
            cached_tokens=self._cached_tokens(),
            completion_tokens=sum(_completion_tokens(choice) for choice in self._choices),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self._choices),
            prefill_seconds=max((end.prefill for end in ended), default=0.0),
            decode_seconds=max((end.decode for end in ended), default=0.0),
            queue_seconds=max((end.queued for end in ended), default=0.0),
        )

    def _prompt_tokens(self) -> int:
        counts = {
            choice.prompt: choice.ended.prompt_tokens if choice.ended else len(choice.job.prompt)
            for choice in self._choices
        }
        return sum(counts.values())

    def _cached_tokens(self) -> int:
        """By prompt, of the choice that found least: the others found what it computed."""
        counts: dict[int, int] = {}
        for choice in self._choices:
            if choice.ended:
                found = choice.ended.cached_tokens
                counts[choice.prompt] = min(found, counts.get(choice.prompt, found))
        return sum(counts.values())


def _completion_tokens(choice: Choice) -> int:
    return choice.ended.completion_tokens if choice.ended else choice.generated
