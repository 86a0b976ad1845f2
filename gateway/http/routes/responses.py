"""OpenAI's responses API: create, store, continue, run in the background, retrieve.

Each key sees its own: another's response, or an item of one, is not found.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import anyio
import msgspec
from litestar import delete, get, post
from litestar.types import ASGIApp
from msgspec.structs import replace

from gateway.access import Access
from gateway.answers.answer import Answer
from gateway.answers.call import Call
from gateway.dialects import responses
from gateway.dialects.parameters import SamplingWire
from gateway.dialects.responses import items, stored
from gateway.dialects.responses.answer_items import (
    CommandEvent,
    GrownEvent,
    ItemEvent,
    PartEvent,
    WholeEvent,
)
from gateway.dialects.responses.compaction import CompactedWire
from gateway.dialects.responses.reply import Lifecycle, ResponseWire
from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    NotFound,
)
from gateway.events import Usage
from gateway.http.auth import AnyRequest, caller
from gateway.http.detached import BackgroundAnswer
from gateway.http.exchange import Exchange, WireOptions
from gateway.http.holding import RequestHolding, held
from gateway.http.openapi import DEFAULT, Body, Described, Routes
from gateway.http.request_record import RequestLine, line_of
from gateway.http.routes import conversations
from gateway.http.services import LONG_BODY, Services, call_of
from gateway.http.sse import SSE, EventStream, Plain, ProgressStream, WholeErrand, client_error
from gateway.request import ChatRequest
from gateway.store import KeptItem, KeptResponse, Part, Room, fresh_id

MOST_HOMES = 64  # responses and conversations that are read for one request
NEVER = 1e9  # seconds: no keep-alive comments
KEEPING = 10.0  # seconds to keep what has become of a cancelled run


class _Making:
    """One response on its way."""

    def __init__(
        self, services: Services, access: Access, exchange: responses.ResponsesExchange
    ) -> None:
        self.services = services
        self.access = access
        self.exchange = exchange
        self.created = int(time.time())
        name = fresh_id()
        new_id = items.numbered(name)
        self.items = items.kept(exchange.items, new_id)
        self.reply = responses.ResponsesReply(
            exchange, id=f"resp_{name}", created=self.created, new_id=new_id
        )

    async def prepare(self) -> None:
        """Before anything is generated: a request that could not be kept is refused. Raises
        TooLarge.
        """
        self.input = await self.services.bodies.run(lambda _wanted: msgspec.json.encode(self.items))
        if self.exchange.store and len(self.input) >= LONG_BODY:
            await self.services.store.check(self.access.owner, len(self.input))

    def to_client(
        self, call: Call[ChatRequest], line: RequestLine, *, in_background: bool
    ) -> Exchange[ChatRequest]:
        """As an answer to one client; in the background as a stream for any reader."""
        quiet = NEVER if in_background else self.services.config.server.comment_after
        stream = self.exchange.stream or in_background
        return Exchange(
            self._opened,
            call,
            lambda answer: self.reply.answered_by(answer.model),
            self.services.failed(self.access, self.reply.failed),
            self.services.account("responses", call.request.model, line, self.access),
            replace(self.exchange, stream=stream),
            WireOptions(quiet=quiet, keep=None if in_background else self.keep),
        )

    @asynccontextmanager
    async def _opened(self, call: Call[ChatRequest]) -> AsyncIterator[Answer]:
        chat = self.services.pipeline.chat
        first: Usage | None = None
        if await self._is_long(call):
            summary, first = await _summary(chat, call)
            self.reply.compacted(summary)
            call = call.of(self.exchange.compacted(summary))
        opened = _truncating(chat, call) if self.exchange.truncates else chat(call)
        async with opened as answer:
            answer.first = first
            yield answer

    async def _is_long(self, call: Call[ChatRequest]) -> bool:
        """The conversation is to be made shorter first."""
        threshold = self.exchange.compact_threshold
        if self.exchange.compacts or threshold is None:
            return self.exchange.compacts
        request, tokenizers = call.request, self.services.tokenizers
        count = await tokenizers.count_chat(request.model, request, self.access, call.caller)
        return count > threshold

    async def keep(self, events: bytes = b"", *, running: bool = False) -> None:
        """In the store, and at the end of its conversation once it is over."""
        reply, exchange, owner = self.reply, self.exchange, self.access.owner
        if exchange.store:
            kept = KeptResponse(
                id=reply.id,
                created=self.created,
                document=reply.document(),
                input=self.input,
                output=reply.output(),
                previous=exchange.previous,
                events=events,
                running=running,
            )
            await self.services.store.put(owner, kept)
        if exchange.conversation is not None and not running:
            output = items.decoded(reply.output())
            both = stored.ids_and_items([*self.items, *output])
            added = [KeptItem(*one) for one in both]
            await self.services.store.append(owner, exchange.conversation, added)


@post(["/v1/responses", "/responses"], access="user")
async def create(request: AnyRequest, services: Services) -> ASGIApp:
    """Create a response to items and to the earlier turns that they continue."""
    read = await _read(request, services, request.auth)
    exchange, talk = await _asked(request, services, request.auth, read)
    making = _Making(services, request.auth, exchange)
    await making.prepare()
    call = call_of(request, exchange.request, talk or making.reply.id)
    line = line_of(request)
    if not exchange.background:
        return making.to_client(call, line, in_background=False)
    return await _in_background(making, call, line.apart(), held(request))


@post(["/v1/responses/input_tokens", "/responses/input_tokens"], access="user")
async def input_tokens(request: AnyRequest, services: Services) -> ASGIApp:
    """Count the prompt tokens of a response, without images."""
    exchange = await _read(request, services, request.auth)
    asked = (await _asked(request, services, request.auth, exchange))[0].request

    async def whole() -> bytes:
        by = caller(request.headers, line_of(request).id)
        return stored.tokens_body(
            await services.tokenizers.count_chat(asked.model, asked, request.auth, by)
        )

    return WholeErrand(whole)


@post(["/v1/responses/compact", "/responses/compact"], access="user")
async def compact(request: AnyRequest, services: Services) -> ASGIApp:
    """Make a conversation shorter: what users said, and the model's summary of all."""
    read = await _read(request, services, request.auth)
    exchange, talk = await _asked(request, services, request.auth, read)
    name = fresh_id()
    reply = responses.CompactReply(
        exchange.whole, id=f"resp_{name}", created=int(time.time()), new_id=items.numbered(name)
    )
    call = call_of(request, responses.summary_asked(exchange.request), talk)
    return Exchange(
        services.pipeline.chat,
        call,
        lambda _answer: reply,
        services.failed(request.auth, reply.failed),
        services.account("responses", call.request.model, line_of(request), request.auth),
        replace(exchange, stream=False),
        WireOptions(quiet=services.config.server.comment_after),
    )


async def _read(
    request: AnyRequest, services: Services, access: Access
) -> responses.ResponsesExchange:
    """With the items that it refers to. Raises NotFound, InvalidRequest, TooLarge."""
    exchange = await services.read(responses.read_response, await request.body())
    wanted = items.referred(exchange.items)
    if not wanted:
        return exchange
    homes = dict.fromkeys(home for name in wanted if (home := items.home_of(name)))
    if len(homes) > MOST_HOMES:
        text = f"input: Refers to items of more than {MOST_HOMES} responses."
        raise InvalidRequest(text, param="input")
    names = [f"{kind}_{home}" for home in homes for kind in ("resp", "conv")]
    room = held(request).take
    parts = await services.store.named(access.owner, names, frozenset(wanted), room)
    return await services.bodies.run(lambda _wanted: exchange.resolved(items.among(parts, wanted)))


async def _asked(
    request: AnyRequest,
    services: Services,
    access: Access,
    exchange: responses.ResponsesExchange,
) -> tuple[responses.ResponsesExchange, str]:
    """With the whole request: all that came before it, too; and what its conversation is called: by
    its own name, or as the first response of its chain; "" where it begins one.
    """
    room = held(request).take
    if exchange.previous is not None:
        parts, talk = await _chain(services, access, exchange.previous, room)
    elif exchange.conversation is not None:
        talk = exchange.conversation
        parts = await _talk(services, access, talk, room)
    else:
        return exchange, ""
    whole = await services.bodies.run(lambda _wanted: exchange.after(items.history(parts)))
    return whole, talk


async def _chain(
    services: Services, access: Access, name: str, room: Room
) -> tuple[Sequence[bytes], str]:
    """What a response goes on from and itself; and the first of these."""
    chain = await services.store.chain(access.owner, name, room)
    if chain is None:
        message = f"previous_response_id: Response {name!r:.80} not found."
        raise NotFound(message, param="previous_response_id")
    if chain[-1].running:
        message = "previous_response_id: That response is still running."
        raise InvalidRequest(message, param="previous_response_id")
    first = (chain[1].previous or name) if len(chain) > 1 else name
    return [part for one in chain for part in (one.input, one.output)], first


async def _talk(services: Services, access: Access, name: str, room: Room) -> Sequence[bytes]:
    found = await services.store.items(access.owner, name, room)
    if found is None:
        message = f"conversation: Conversation {name!r:.80} not found."
        raise NotFound(message, param="conversation")
    return [b"[" + b",".join(one.item for one in found) + b"]"]


async def _summary(
    chat: Callable[[Call[ChatRequest]], AbstractAsyncContextManager[Answer]],
    call: Call[ChatRequest],
) -> tuple[str, Usage]:
    """The model's own, of the whole conversation, and what it took. Raises GatewayError."""
    async with chat(call.of(responses.summary_asked(call.request))) as answer:
        said = [delta async for deltas in answer.batches() for delta in deltas]
        usage = answer.usage()
    if not (summary := responses.summary_of(said)):
        raise InternalError("The model wrote no summary.")
    return summary, usage


@asynccontextmanager
async def _truncating(
    chat: Callable[[Call[ChatRequest]], AbstractAsyncContextManager[Answer]],
    call: Call[ChatRequest],
) -> AsyncIterator[Answer]:
    """Where the conversation is too long its beginning is left out: a quarter more at each try."""
    async with AsyncExitStack() as held:
        left: ChatRequest | None = call.request
        while left is not None:
            request = left
            try:
                answer = await held.enter_async_context(chat(call.of(request)))
            except ContextLengthExceeded:
                left = _shortened(request)
                if left is None:
                    raise
            else:
                yield answer
                return


def _shortened(request: ChatRequest) -> ChatRequest | None:
    """Without the oldest quarter of the turns; None where only the last turn is left."""
    system = [message for message in request.messages if message.role == "system"]
    turns = [message for message in request.messages if message.role != "system"]
    left = turns[max(1, len(turns) // 4) :]
    while left and left[0].role == "tool":  # its call is gone
        left = left[1:]
    if not left:
        return None
    return replace(request, messages=(*system, *left))


# ----------------------------------------------------------------------------------- in background


async def _in_background(
    making: _Making, call: Call[ChatRequest], line: RequestLine, request_holds: RequestHolding
) -> ASGIApp:
    """It begins, and its client gets the queued response at once, or its stream."""
    services, reply = making.services, making.reply
    run = BackgroundAnswer(making.access.owner, reply.id, reply.document)
    run.take(reply.queued())
    document = reply.document()
    exchange = making.to_client(call, line, in_background=True)
    failed = services.failed(making.access, reply.failed)

    async def work() -> None:
        try:
            await run.collect(exchange)
            if run.error is not None:
                run.take(failed(client_error(run.error)))
            if run.scope.cancelled_caught:
                reply.cancel()
            with anyio.move_on_after(KEEPING, shield=True):
                await _kept(making, run)
        finally:
            mine.give_back()

    with services.background.admitted(run):
        await making.keep(running=True)
        mine = request_holds.moved()
        services.background.begin(run, work)
    return _following(services, run, 0) if making.exchange.stream else Plain(document)


async def _kept(making: _Making, run: BackgroundAnswer) -> None:
    try:
        await making.keep(run.sent() if making.exchange.stream else b"")
    except GatewayError as error:
        client_error(error)  # no client waits for it: a later reader gets what was stored before


def _following(services: Services, run: BackgroundAnswer, event: int) -> ASGIApp:
    async def send_events(events: EventStream) -> None:
        await events.begin()
        async for frames in run.read(await run.place_once_there(event)):
            await events.write(frames)

    return ProgressStream(
        send_events, lambda _error: b"", quiet=services.config.server.comment_after
    )


@post("/v1/responses/{response_id:str}/cancel", access="user")
async def cancel(request: AnyRequest, services: Services, response_id: str) -> ASGIApp:
    """Cancel a response that runs in the background. A finished response is returned unchanged."""
    run = services.background.find(request.auth.owner, response_id)
    if run is not None:

        async def whole() -> bytes:
            run.scope.cancel()
            await run.ended.wait()
            return run.document()

        return WholeErrand(whole)
    document = await _part(request, services, response_id, "document")
    if not msgspec.json.decode(document)["background"]:
        raise InvalidRequest("Only a response in the background can be cancelled.")
    return Plain(document)


# ------------------------------------------------------------------------------------------- kept


@get("/v1/responses/{response_id:str}", access="user")
async def retrieve(
    request: AnyRequest,
    services: Services,
    response_id: str,
    stream: bool = False,  # noqa: FBT001, FBT002 - a parameter of the query
    starting_after: int = -1,
) -> ASGIApp:
    """Get a response in its current state, or its events after `starting_after`."""
    run = services.background.find(request.auth.owner, response_id)
    if run is not None:
        event = max(0, starting_after + 1)
        return _following(services, run, event) if stream else Plain(run.document())
    if not stream:
        return Plain(await _part(request, services, response_id, "document"))
    events = await _part(request, services, response_id, "events")
    if not events:
        message = "stream: Only a streamed response in the background can be read again as events."
        raise InvalidRequest(message, param="stream")
    left = events.split(b"\n\n")[max(0, starting_after + 1) :]
    return Plain(b"\n\n".join(left), media_type=SSE.media_type.encode())


@delete("/v1/responses/{response_id:str}", status_code=200, access="user")
async def remove(request: AnyRequest, services: Services, response_id: str) -> ASGIApp:
    """Delete a response. A running response is cancelled first."""
    run = services.background.find(request.auth.owner, response_id)

    async def whole() -> bytes:
        if run is not None:
            run.scope.cancel()
            await run.ended.wait()
        if not await services.store.remove(request.auth.owner, response_id):
            raise _missing(response_id)
        return stored.deleted_body(response_id, "response")

    return WholeErrand(whole)


@get("/v1/responses/{response_id:str}/input_items", access="user")
async def input_items(request: AnyRequest, services: Services, response_id: str) -> ASGIApp:
    """List the input items of a response, without earlier turns."""
    wanted = stored.read_page(dict(request.query_params))
    given = items.decoded(await _part(request, services, response_id, "input"))
    return Plain(stored.page_body(stored.ids_and_items(given), wanted))


async def _part(request: AnyRequest, services: Services, name: str, part: Part) -> bytes:
    kept = await services.store.part(request.auth.owner, name, part, held(request).take)
    if kept is None:
        raise _missing(name)
    return kept


def _missing(name: str) -> NotFound:
    return NotFound(f"Response {name!r:.80} not found.")


RESPONSE = Body(
    name="ResponsesRequest",
    about="Items to answer, and the earlier turns that they continue.",
    shapes=(items.CreateWire, SamplingWire),
)
_RESPONSE_EVENTS = (
    Lifecycle,
    ItemEvent,
    PartEvent,
    GrownEvent,
    WholeEvent,
    CommandEvent,
)

ROUTES: Routes = {
    create: Described(
        takes=RESPONSE,
        gives=(ResponseWire,),
        events=_RESPONSE_EVENTS,
        examples={
            "A question": {"model": DEFAULT, "input": "Say hello.", "max_output_tokens": 8},
            "A stream": {
                "model": DEFAULT,
                "input": "Say hello.",
                "max_output_tokens": 8,
                "stream": True,
            },
        },
    ),
    input_tokens: Described(
        takes=RESPONSE,
        gives=(stored.InputTokens,),
        examples={"A question": {"model": DEFAULT, "input": "Say hello."}},
    ),
    compact: Described(
        takes=RESPONSE,
        gives=(CompactedWire,),
        examples={"A question": {"model": DEFAULT, "input": "Say hello."}},
    ),
    cancel: Described(gives=(ResponseWire,)),
    retrieve: Described(gives=(ResponseWire,), events=_RESPONSE_EVENTS),
    remove: Described(gives=(stored.Deleted,)),
    input_items: Described(gives=(stored.Page,), query=stored.PageQuery),
    **conversations.ROUTES,
}
