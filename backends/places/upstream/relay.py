"""One request to an upstream: replica after replica until an answer begins, then that answer as it
comes; choices that a server left out because it ignores `n` are asked for one by one.

Nothing is read ahead: what the client's side doesn't take is not asked for, and TCP slows the other
server down. Another replica is tried only before the first event was handed on.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import TypeVar

import httpx
import msgspec
from msgspec.structs import replace

from backends.contract.errors import UpstreamError
from backends.contract.remote import (
    HOPS,
    Caller,
    RemoteDelta,
    RemoteEvent,
    RemoteEvents,
    RemoteRequest,
    RemoteText,
    RemoteUsage,
)
from backends.places.upstream.events import EventReader
from backends.places.upstream.faults import (
    Fault,
    Unhealthy,
    broken,
    cut,
    kind_of,
    late,
    too_large,
    unreached,
    warn,
)
from backends.places.upstream.reading import AnswerReader, RemoteReader
from backends.places.upstream.refusals import ELSEWHERE, IN_DOUBT, NO_FAILURES, Cleaner, refusal
from backends.places.upstream.replicas import Balance, Replica
from backends.places.upstream.wire import Question
from config.upstreams import UpstreamConfig

T = TypeVar("T")

MAX_ERROR = 64 << 10  # bytes that are read of an error's body
LONG_BODY = 1 << 20  # bytes; a body that is read beside the event loop
LAST_BYTES = 0.05  # seconds that the end of a connection's body is waited for after [DONE]


class Relay(msgspec.Struct, frozen=True, eq=False):
    """One upstream's."""

    _config: UpstreamConfig
    _client: httpx.AsyncClient
    _balance: Balance
    _cleaner: Cleaner

    @asynccontextmanager
    async def asked(self, question: Question) -> AsyncIterator[RemoteEvents]:
        """The answer, once it has begun. Raises UpstreamError; leaving closes the connection."""

        async def begun(response: httpx.Response) -> tuple[Sequence[RemoteEvent], RemoteEvents]:
            reader = question.reader() if question.reader else AnswerReader(question.choices)
            answer = batches(response, reader, self._config)
            async for events in answer:
                if events:
                    return events, answer
            raise broken("an empty answer")

        async with self._first(question, begun) as (replica, (first, answer)):
            yield self._read(replica, first, answer, question)

    async def whole(self, question: Question, read: Callable[[bytes], T]) -> T:
        """What `read` makes of an answer that is one JSON body; what it raises as `Unhealthy` is
        the other server's fault. Raises UpstreamError.
        """

        async def found(response: httpx.Response) -> T:
            plain(response)
            return await parsed(response, self._config.max_body, read)

        async with self._first(question, found) as (replica, answer):
            self._balance.succeeded(replica, question.caller.key)
            return answer

    @asynccontextmanager
    async def _first(
        self, question: Question, begin: Callable[[httpx.Response], Awaitable[T]]
    ) -> AsyncIterator[tuple[Replica, T]]:
        """The first replica with whose response `begin` succeeds, and what that gave."""
        tried: list[Replica] = []
        error: UpstreamError | None = None
        choose, conversation = self._balance.choose, question.conversation
        while (replica := choose(conversation, tried, question.model)) is not None:
            tried.append(replica)
            async with AsyncExitStack() as held:
                self._balance.began(replica, question.model)
                held.callback(self._balance.ended, replica)
                try:
                    answer = await self._begun(held, replica, question, begin)
                except UpstreamError as failure:
                    self._note_refusal(replica, failure, question)
                    if error is None or not isinstance(failure, Unhealthy):
                        error = failure  # else the refusal before it says more
                    if failure.status not in ELSEWHERE:
                        raise self._cleaner.cleaned(failure) from None
                    continue
                question.caller.served_by(self._config.name, replica.url)
                yield replica, answer
                return
        raise self._cleaner.cleaned(error) if error else self._nobody()

    def _note_refusal(self, replica: Replica, error: UpstreamError, question: Question) -> None:
        """An error before any event."""
        caller = question.caller.key
        if error.status in ELSEWHERE - NO_FAILURES:
            self._note_failure(replica, error, caller, in_doubt=error.status in IN_DOUBT)
        elif error.status not in NO_FAILURES:
            self._balance.succeeded(replica, caller)
        if error.retry_after is not None:
            self._balance.rests(replica, error.retry_after)
        if error.status == httpx.codes.NOT_FOUND and _is_about(error, question.model):
            self._balance.lacks(replica, question.model)

    def _note_break(self, replica: Replica, error: UpstreamError, caller: str) -> None:
        """An error behind some events. What can't be read there may be the request's own doing."""
        if error.code in ("upstream_broken", "upstream_too_large"):
            self._balance.succeeded(replica, caller)
        else:
            self._note_failure(replica, error, caller)

    def _note_failure(
        self, replica: Replica, error: UpstreamError, caller: str, *, in_doubt: bool = False
    ) -> None:
        """The log has besides that the server is out; see `warn`."""
        fault = Fault(kind_of(error), self._cleaner.clean(str(error)))
        before, was_asked = replica.fault, replica.state != "resting"
        self._balance.failed(replica, fault, caller, in_doubt=in_doubt)
        is_out = was_asked and replica.state == "resting"
        what = "an upstream's server gets no requests" if is_out else "an upstream's server fails"
        warn(what, self._config.name, replica.url, fault, None if is_out else before)

    def _nobody(self) -> UpstreamError:
        draining = all(one.draining for one in self._balance.replicas)
        reason = next((one.fault.reason for one in self._balance.replicas if one.fault), None)
        why = "all its servers are draining" if draining else "all its servers are down"
        return UpstreamError(
            f"The upstream {self._config.name!r} is unavailable: {why}"
            + (f" ({reason})" if reason and not draining else ""),
            status=503,
            code="upstream_unavailable",
            retry_after=self._config.probe_interval,
        )

    async def _begun(
        self,
        held: AsyncExitStack,
        replica: Replica,
        question: Question,
        begin: Callable[[httpx.Response], Awaitable[T]],
    ) -> T:
        """What `begin` makes of a response that is no refusal."""
        config, client = self._config, self._client
        base = replica.url.removesuffix("/v1") if question.at_root else replica.url
        url = base + question.path
        headers = {**replica.headers, **self._headers(question.caller)}
        with httpx_errors(config):
            try:
                async with asyncio.timeout(config.first_byte_timeout):
                    streamed = client.stream("POST", url, content=question.body, headers=headers)
                    response = await held.enter_async_context(streamed)
                    if response.status_code != httpx.codes.OK:
                        raise await refused(response)
                    return await begin(response)
            except TimeoutError:
                raise late("begin", config.first_byte_timeout) from None

    def _headers(self, caller: Caller) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if caller.request_id:
            headers["x-request-id"] = caller.request_id
        if caller.hops:
            headers[HOPS] = caller.hops
        headers |= caller.trace
        if self._config.pass_key and caller.key and caller.key.isascii():
            headers |= key_headers(self._config, caller.key)
        return headers

    async def _read(
        self,
        replica: Replica,
        first: Sequence[RemoteEvent],
        answer: RemoteEvents,
        question: Question,
    ) -> RemoteEvents:
        began = time.monotonic()
        self._balance.answers(replica)
        self._balance.returns_to(replica, question.conversation)
        yield first
        try:
            with httpx_errors(self._config):
                while (events := await _next(answer, self._config, began)) is not None:
                    if events:
                        yield events
        except UpstreamError as error:
            self._note_break(replica, error, question.caller.key)
            raise self._cleaner.cleaned(error) from None
        self._balance.succeeded(replica, question.caller.key)


async def _next(
    answer: RemoteEvents, config: UpstreamConfig, began: float
) -> Sequence[RemoteEvent] | None:
    """The next batch; None at the end. While the client reads, nothing is late."""
    stall, left = config.stall_timeout, began + config.total_timeout - time.monotonic()
    try:
        async with asyncio.timeout(min(stall, left)):
            return await anext(answer, None)
    except TimeoutError:
        over = late("end", config.total_timeout) if left < stall else late("go on", stall)
        raise over from None


def _is_about(error: UpstreamError, model: str) -> bool:
    """A 404 that means the model, not the path."""
    return error.code == "model_not_found" or bool(model and model in str(error))


async def batches(
    response: httpx.Response, reader: RemoteReader, config: UpstreamConfig
) -> RemoteEvents:
    """The events of an answer with status 200, all that arrived together, of which there may be
    none: server-sent events or one body, by its content type, whatever was asked for. Raises
    UpstreamError.
    """
    plain(response)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    match kind:
        case "text/event-stream":
            async for events in _streamed(response, reader, config):
                yield events
        case "application/json":
            events = await parsed(response, config.max_body, reader.read)
            if reader.is_whole:
                yield events
        case _:
            what = kind or "a body without a content type"
            raise broken(f"{what} where an answer was expected")
    if not reader.is_whole:
        raise cut()


async def _streamed(
    response: httpx.Response, reader: RemoteReader, config: UpstreamConfig
) -> RemoteEvents:
    sse = EventReader(max_line=config.max_line, max_total=config.max_total)
    parts = body_of(response)
    async for part in parts:
        for events in _events(sse.feed(part), reader):
            yield events
        if reader.is_done:
            await _finish(parts)
            return
    for events in _events(sse.rest(), reader):
        yield events


def _events(payloads: Sequence[bytes], reader: RemoteReader) -> Iterator[Sequence[RemoteEvent]]:
    """What came before an error is handed on first; what comes behind the end never is."""
    events: list[RemoteEvent] = []
    try:
        for payload in payloads:
            if not reader.is_done:
                events += reader.read(payload)
    except UpstreamError:
        if events:
            yield events
        raise
    yield events


async def _finish(parts: AsyncIterator[bytes]) -> None:
    """Read to the end of the body, if it comes at once: the connection can be used again."""
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(LAST_BYTES):
            async for _ in parts:
                pass


def plain(response: httpx.Response) -> None:
    """Raises Unhealthy for a compressed body: none was asked for, and a few bytes can be many."""
    if (coding := response.headers.get("content-encoding", "identity").lower()) != "identity":
        raise broken(f"a body with the unrequested content coding {coding!r}")


def body_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Piece by piece, all that arrived together at once."""
    assert isinstance(response.stream, httpx.AsyncByteStream), "an asynchronous client's"
    return aiter(response.stream)


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """All of it. Raises Unhealthy past `limit` bytes."""
    found, size = [], 0
    async for part in body_of(response):
        size += len(part)
        if size > limit:
            raise too_large(f"a body of more than {limit} bytes")
        found.append(part)
    return b"".join(found)


async def parsed(response: httpx.Response, limit: int, read: Callable[[bytes], T]) -> T:
    """What `read` makes of a body, beside the event loop where it is long. As `read_body`."""
    body = await read_body(response, limit)
    return read(body) if len(body) < LONG_BODY else await asyncio.to_thread(read, body)


async def refused(response: httpx.Response) -> UpstreamError:
    """The error in a response; of a body that is too long, its status alone."""
    body = b""
    with suppress(UpstreamError, httpx.HTTPError):
        plain(response)
        body = await read_body(response, MAX_ERROR)
    return refusal(response.status_code, response.headers, body)


def key_headers(config: UpstreamConfig, key: str) -> dict[str, str]:
    """The key's header in its protocol."""
    if config.protocol == "anthropic":
        return {"x-api-key": key}
    return {"authorization": f"Bearer {key}"}


@contextmanager
def httpx_errors(config: UpstreamConfig) -> Iterator[None]:
    """Errors of httpx as ours, which name no address."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise late("take a connection", config.connect_timeout) from None
    except (httpx.ConnectError, httpx.ProxyError) as error:
        raise unreached(error) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise cut(f" ({type(error).__name__})") from None


R = TypeVar("R", bound=RemoteRequest)
Ask = Callable[[int], AbstractAsyncContextManager[RemoteEvents]]


@asynccontextmanager
async def with_missing(events: RemoteEvents, count: int, ask: Ask) -> AsyncIterator[RemoteEvents]:
    """`events`, then those of each of `count` choices that had none. `ask`: for one choice, by its
    index; its answer is choice 0 of another request. Leaving closes that request.
    """
    async with AsyncExitStack() as held:
        yield _completed(events, count, ask, held)


async def _completed(
    events: RemoteEvents, count: int, ask: Ask, held: AsyncExitStack
) -> AsyncIterator[Sequence[RemoteEvent]]:
    seen: set[int] = set()
    usage = RemoteUsage()
    async for batch in events:
        seen.update(event.choice for event in batch if isinstance(event, RemoteDelta))
        usage = next((event for event in batch if isinstance(event, RemoteUsage)), usage)
        yield batch
    for index in sorted(set(range(count)) - seen):
        request = await held.enter_async_context(AsyncExitStack())
        async for batch in await request.enter_async_context(ask(index)):
            usage = _sum(usage, batch)
            yield [_as_choice(event, index, usage) for event in batch]
        await request.aclose()


def _sum(usage: RemoteUsage, batch: Sequence[RemoteEvent]) -> RemoteUsage:
    """`usage` with the counts of `batch`: those of the prompt once."""
    for event in batch:
        if isinstance(event, RemoteUsage):
            usage = replace(
                usage,
                prompt_tokens=usage.prompt_tokens or event.prompt_tokens,
                completion_tokens=usage.completion_tokens + event.completion_tokens,
                reasoning_tokens=usage.reasoning_tokens + event.reasoning_tokens,
            )
    return usage


def _as_choice(event: RemoteEvent, index: int, usage: RemoteUsage) -> RemoteEvent:
    return replace(event, choice=index) if isinstance(event, RemoteDelta) else usage


def single(request: R, index: int) -> R:
    """`request` for one choice alone, of a text the `index % n`th answer to one of its prompts; a
    seed counts on, or all choices would be the same.
    """
    prompt, answer = divmod(index, request.n)
    seed = request.parameters.get("seed")
    own = {"seed": seed + answer} if isinstance(seed, int) else {}
    alone = replace(request, n=1, parameters={**request.parameters, **own})
    if isinstance(alone, RemoteText):
        return replace(alone, prompts=(alone.prompts[prompt],))
    return alone
