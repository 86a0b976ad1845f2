"""An answer while it is generated: outputs of its jobs in, deltas and usage out.

A request has one or several choices, each a job of the engine; their deltas are one stream, in the
order in which they come. Nothing here must be given back: the jobs and the lease belong to the
pipeline's context.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from hashlib import sha256

import anyio
import msgspec
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from msgspec.structs import replace

from backends.contract.bounds import bounded
from backends.contract.errors import BackendError
from backends.contract.protocol import (
    Ended,
    Generation,
    Outputs,
    Piece,
    PromptProgress,
    Scored,
    TokenLogprob,
)
from backends.contract.samplers import Sampling
from config.product import VERSION
from config.values import alike
from gateway.answers.constraints import ContentCheck
from gateway.answers.recording import RecordedChoice, RecordedPrompt, Recording, Split, Terms
from gateway.answers.stopping import Splitting
from gateway.answers.turns import TalkTurn
from gateway.registry import Lease
from gateway.terms.errors import GatewayError, translated
from gateway.terms.events import (
    ChoiceReport,
    Content,
    Delta,
    Event,
    Finished,
    Parameters,
    Reasoning,
    ToolClosed,
    Usage,
    joined,
)
from gateway.terms.request import GenerationParams, Unapplied
from gateway.terms.tasks import companions

LONGEST_MARKER = 256  # characters; longer ones are not looked for


class Choice(msgspec.Struct):
    """One job's answer. `params`: what is to be returned besides the text."""

    index: int
    job: Generation
    splitting: Splitting
    prompt: int = 0  # which of the request's prompts it answers
    one_call: bool = False  # the answer is over after its first tool call
    unread: tuple[str, ...] = ()  # markers of calls that its format doesn't read
    shows_markers: bool = False  # some of them stand in its content
    params: GenerationParams = GenerationParams()
    ended: Ended | None = None
    generated: int = 0
    reasoning_tokens: int = 0
    recorded: RecordedChoice | None = None  # where somebody may look at it
    on_read: Callable[[PromptProgress], None] | None = None  # of its prompt
    _phase: type[Event] = Content  # of the newest event
    _logprobs: list[TokenLogprob] = []
    _tokens: list[int] = []  # since the last delta, where they are returned
    _newest: str = ""  # content, as much as holds a marker

    def __post_init__(self) -> None:
        if self.splitting.in_reasoning:
            self._phase = Reasoning

    async def deltas(self, outputs: Outputs) -> AsyncIterator[Delta]:
        """Ends with the delta that holds `Finished`. Where that is before the job's own end, the
        job is ended: its choice has got all it asked for.
        """
        async for output in outputs:
            if isinstance(output, Ended):
                self.ended = output
                yield self._behind(self._last(output))
                return
            if isinstance(output, Scored):
                yield Delta(self.index, (), prompt_logprobs=output.logprobs)
                continue
            if isinstance(output, PromptProgress):
                if self.on_read is not None:
                    self.on_read(output)
                if self.job.reports_progress:
                    yield Delta(self.index, (), progress=output)
                continue
            delta = self._take(output.parts or (output,))
            if delta.events and type(delta.events[-1]) is Finished:
                outputs.stop()
                yield self._behind(delta)
                await self._settle(outputs)
                return
            if delta.events:
                yield self._behind(delta)

    def _behind(self, delta: Delta) -> Delta:
        """With the tokens since the last one."""
        if not self._tokens:
            return delta
        tokens, self._tokens = tuple(self._tokens), []
        return replace(delta, tokens=tokens)

    def _last(self, ended: Ended) -> Delta:
        thought = self._phase is Reasoning and not self.splitting.in_reasoning
        in_answer = self._phase is Content or thought
        is_cut = ended.cause in ("max_tokens", "context_full")
        events = self.splitting.finish("length" if is_cut else "stop")
        finished = events[-1]
        assert isinstance(finished, Finished), "it is always the last"
        events[-1] = replace(finished, stop=ended.stop_string, fault=ended.fault or None)
        if self.recorded is not None:
            self.recorded.end(ended, events)
        if ended.token is not None and self.params.returns_tokens:
            self._tokens.append(ended.token)
        delivered = tuple(self._delivered((), events)) if self._logprobs else ()
        if ended.logprob is not None and (self.params.logprobs_of == "all" or in_answer):
            delivered += (ended.logprob,)
        return Delta(self.index, tuple(events), delivered)

    async def _settle(self, outputs: Outputs) -> None:
        """The job's usage, up to where its answer ended. Output behind that is not counted."""
        try:
            async for output in outputs:
                if isinstance(output, Ended):
                    self.ended = replace(output, completion_tokens=self.generated)
                    if self.recorded is not None:
                        self.recorded.end(self.ended, ())
        except BackendError:
            pass  # the engine broke behind the end: this answer is whole

    def _take(self, pieces: Sequence[Piece]) -> Delta:
        """Piece by piece, however many came together: each token counts for its own phase."""
        events: list[Event] = []
        logprobs: list[TokenLogprob] = []
        for piece in pieces:
            grown, delivered = self._read(piece)
            events += grown
            logprobs += delivered
            if grown and type(grown[-1]) is Finished:
                break
        whole = joined(events) if len(events) > 1 else events
        return Delta(self.index, tuple(whole), tuple(logprobs))

    def _read(self, piece: Piece) -> tuple[Sequence[Event], Sequence[TokenLogprob]]:
        """Its events, and the log probabilities that go with them. Behind the last event that
        counts there is `Finished`.
        """
        events: Sequence[Event] = self.splitting.feed(piece.text)
        if self.one_call and (calls := _first_call(events)):
            events = (*calls, self.splitting.finish("stop")[-1])
        if self.recorded is not None:
            self.recorded.add(piece, events)
        if self.unread and not self.shows_markers:
            self._look(events)
        self._count(piece, events)
        waits = piece.logprobs or self._logprobs
        return events, self._delivered(piece.logprobs, events) if waits else ()

    def _look(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Content):
                self._newest = self._newest[-LONGEST_MARKER:] + event.text
                self.shows_markers |= any(marker in self._newest for marker in self.unread)

    def _count(self, piece: Piece, events: Sequence[Event]) -> None:
        """Tokens whose text is held back count for the phase before."""
        for event in events:
            if type(event) is not Finished:  # isinstance takes several times as long for structs
                self._phase = type(event)
        self.generated += len(piece.tokens)
        if self.params.returns_tokens:
            self._tokens += piece.tokens
        if self._phase is Reasoning:
            self.reasoning_tokens += len(piece.tokens)

    def _delivered(
        self, logprobs: Sequence[TokenLogprob], events: Sequence[Event]
    ) -> Sequence[TokenLogprob]:
        """Log probabilities wait for the content they make; those of markers and reasoning go
        nowhere.
        """
        self._logprobs += logprobs
        if not events:
            return ()
        waited, self._logprobs = self._logprobs, []
        if self.params.logprobs_of == "all":
            return waited
        content = "".join(event.text for event in events if isinstance(event, Content))
        unsaid = self.splitting.unsaid
        delivered = _ending(waited, len(content.encode()) + unsaid)
        # A token that ends in text held back waits for the rest of it.
        held = 0 if isinstance(events[-1], Finished) else len(_ending(delivered, unsaid))
        self._logprobs = delivered[len(delivered) - held :]
        return delivered[: len(delivered) - held]


def _ending(logprobs: list[TokenLogprob], size: int) -> list[TokenLogprob]:
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


class Answer:
    """What a pipeline context gives: the model that answers, the waits before, the answer."""

    def __init__(
        self,
        lease: Lease,
        unapplied: tuple[Unapplied, ...],
        choices: Sequence[Choice],
        source: AsyncIterator[Delta] | None = None,
    ) -> None:
        """`source`: all choices' deltas as they come; None: there are no more."""
        self.lease = lease  # by which its model is held
        self.model = lease.name
        self.backend = lease.container.info.backend
        self.fingerprint = fingerprint(lease)
        self.queued_seconds = lease.queued_seconds
        self.load_seconds = lease.load_seconds
        self.unapplied = unapplied
        self.parameters: Parameters | None = None  # where they are requested
        self.echoes: tuple[str, ...] = ()  # the prompts' texts, where `echo` is set
        self.prompts: tuple[str, ...] = ()  # the same as the model read them
        self.first: Usage | None = None  # of what was needed before: a summary, rounds of tools
        self.turn: TalkTurn | None = None  # its place in its conversation, where that is known
        self.rendered = ""  # the prompt as its template made it
        self.split: Split | None = None  # by which rules the answer is split here
        self._choices = choices
        self._source = source
        self._check: ContentCheck | None = None
        self._contents: dict[int, list[str]] = {}  # by choice, where they are checked

    @property
    def sampling(self) -> Sampling | None:
        """The parameters of its first choice; None where another server samples."""
        return self._choices[0].job.sampling if self._choices else None

    def check_with(self, check: ContentCheck) -> None:
        """Each choice's whole content is checked, unless it was cut or calls tools; its `Finished`
        says how it misses what was asked for. To be said before the first delta.
        """
        self._check = check

    async def deltas(self) -> AsyncIterator[Delta]:
        """All choices' deltas as they come. Raises GatewayError."""
        assert self._source is not None, "one whose rounds are closed is not read"
        with translated():
            async for delta in self._source:
                yield delta if self._check is None else await self._judged(delta, self._check)

    async def _judged(self, delta: Delta, check: ContentCheck) -> Delta:
        content = self._contents.setdefault(delta.choice, [])
        content += [event.text for event in delta.events if isinstance(event, Content)]
        match delta.events:
            case (*before, Finished(reason="stop") as finished):
                fault = await check("".join(content)) or finished.fault
                return replace(delta, events=(*before, replace(finished, fault=fault)))
        return delta

    def tell_reading(self, tell: Callable[[PromptProgress], None]) -> None:
        """`tell` how far its first prompt is, while that takes long."""
        if self._choices:
            self._choices[0].on_read = tell

    def record(self, recording: Recording) -> None:
        """Note it in `recording` from now on: to be said before the first delta."""
        job = self._choices[0].job if self._choices else None
        terms = alike(Terms, self)(max_tokens=job.max_tokens if job else None)
        jobs = {choice.prompt: choice.job for choice in self._choices}
        prompts = [
            RecordedPrompt(tokens=job.prompt, text=self.rendered, images=len(job.images))
            for job in jobs.values()
        ]
        first = recording.answer(terms, prompts)
        for choice in self._choices:
            choice.recorded = recording.choice(first + choice.prompt)

    def prompt_ending(self, characters: int) -> str | None:
        """The last `characters` of the first choice's prompt, as the model reads it; None where
        another server renders it.
        """
        if not self._choices:
            return None
        tokens = self._choices[0].job.prompt[-characters:]
        return self.lease.local.detokenize(tokens)[-characters:]

    def usage(self) -> Usage:
        """Usage so far, with `first`; complete once `deltas` is exhausted. Each of the request's
        prompts counts once, however many choices answer it and however many prompts are equal.
        """
        usage = self._usage_so_far()
        return usage if self.first is None else usage.after(self.first)

    def _usage_so_far(self) -> Usage:
        return _usage(self._choices)

    def report(self, index: int) -> ChoiceReport | None:
        """Of one choice that has ended; None where another server generates it."""
        if not self._choices:
            return None
        choice, info = self._choices[index], self.lease.local.info
        return ChoiceReport(
            usage=_usage((choice,)),
            job=bounded(choice.job, info),
            context_length=info.context_length,
            context_full=choice.ended is not None and choice.ended.cause == "context_full",
            prompt=self.prompts[choice.prompt] if self.prompts else "",
        )


def _usage(choices: Sequence[Choice]) -> Usage:
    """Where the engine failed behind a choice's end, its times are unknown. What was cached of a
    prompt is what the choice found that found least: the others reuse what it computed.
    """
    ended = [choice.ended for choice in choices if choice.ended]
    prompts = {
        choice.prompt: choice.ended.prompt_tokens if choice.ended else len(choice.job.prompt)
        for choice in choices
    }
    found = [(choice.prompt, choice.ended.cached_tokens) for choice in choices if choice.ended]
    cached = dict(sorted(found, reverse=True))  # of each prompt the last counts
    return Usage(
        prompt_tokens=sum(prompts.values()),
        cached_tokens=sum(cached.values()),
        kept_tokens=max((end.kept_tokens for end in ended), default=0),
        kept_in=next((end.kept_in for end in ended if end.kept_in), ""),
        completion_tokens=sum(
            [one.ended.completion_tokens if one.ended else one.generated for one in choices]
        ),
        reasoning_tokens=sum(choice.reasoning_tokens for choice in choices),
        drafted_tokens=sum(end.drafted_tokens for end in ended),
        accepted_tokens=sum(end.accepted_tokens for end in ended),
        marked=sum(choice.shows_markers for choice in choices),
        prefill_seconds=max((end.prefill for end in ended), default=0.0),
        decode_seconds=max((end.decode for end in ended), default=0.0),
        queue_seconds=max((end.queued for end in ended), default=0.0),
    )


def fingerprint(lease: Lease) -> str:
    """OpenAI's `system_fingerprint`: answers to one seed may differ where it does.

    `fp_` and a digest of this server's version, the backend and its build, the model's files and
    options.
    """
    info, entry, files = lease.container.info, lease.entry, lease.entry.files
    loaded = (files.format, files.size_bytes, entry.created, entry.options)
    facts = (VERSION, info.backend, info.build, info.context_length, lease.name, *loaded)
    return f"fp_{sha256(msgspec.json.encode(facts)).hexdigest()[:12]}"


def varied(sampling: Sampling, variant: int) -> Sampling:
    """Several choices with one seed would all be the same: each counts on from it."""
    if sampling.seed is None or not variant:
        return sampling
    return msgspec.structs.replace(sampling, seed=sampling.seed + variant)


BACKLOG = 64  # deltas of several choices that may wait for a slow client


async def merged(
    held: AsyncExitStack, choices: Sequence[Choice], outputs: Sequence[Outputs]
) -> AsyncIterator[Delta]:
    """The deltas of all choices, of which each has its outputs; they end with `held`."""
    for one in outputs:  # before the contexts wait for each job in turn: all end at one step
        held.callback(one.stop)
    if len(choices) == 1:
        return choices[0].deltas(outputs[0])
    tasks = await held.enter_async_context(companions())
    send, receive = anyio.create_memory_object_stream[Delta | Exception](BACKLOG)
    held.callback(receive.close)
    with send:
        for choice, stream in zip(choices, outputs, strict=True):
            tasks.start_soon(_forward, choice, stream, send.clone())
    return _received(receive)


async def _forward(
    choice: Choice, outputs: Outputs, send: ObjectSendStream[Delta | Exception]
) -> None:
    async with send:
        try:
            async for delta in choice.deltas(outputs):
                await send.send(delta)
        except (BackendError, GatewayError) as error:  # the reader raises it, as with one choice
            await send.send(error)


async def _received(items: ObjectReceiveStream[Delta | Exception]) -> AsyncIterator[Delta]:
    async for item in items:
        if isinstance(item, Exception):
            raise item
        yield item
