"""OpenAI's responses API: create, store, continue, run in the background, retrieve.

Each key sees its own: another's response, or an item of one, is not found.
"""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec
from litestar import Request, delete, get, post
from litestar.types import ASGIApp

from backends.remote import Caller
from gateway.access import Access
from gateway.answers.answer import Answer
from gateway.answers.pipeline import OnWait
from gateway.dialects import responses
from gateway.dialects.responses import items, references, stored
from gateway.dialects.responses.wire import Item
from gateway.errors import ContextLengthExceeded, GatewayError, InvalidRequest, NotFound
from gateway.http.auth import caller
from gateway.http.exchange import Exchange, WireOptions, new_id
from gateway.http.plain import Plain
from gateway.http.runs import Run
from gateway.http.services import Services
from gateway.http.sse import SSE, EventStream, ProgressStream, WholeErrand, client_error
from gateway.request import ChatRequest
from gateway.store import KeptItem, KeptResponse

MOST_HOMES = 64  # responses and conversations that are read for one request


async def resolved(
    services: Services, access: Access, exchange: responses.ResponsesExchange
) -> responses.ResponsesExchange:
    """`exchange` with the items that it refers to. Raises NotFound, InvalidRequest."""
    wanted = references.referred(exchange.items)
    if not wanted:
        return exchange
    homes = dict.fromkeys(home for name in wanted if (home := references.home_of(name)))
    if len(homes) > MOST_HOMES:
        text = f"input: Refers to items of more than {MOST_HOMES} responses."
        raise InvalidRequest(text, param="input")
    parts = [part for home in homes for part in await _parts(services, access.owner, home)]
    return await services.bodies.run(lambda _wanted: exchange.resolved(_among(parts, wanted)))


def _among(parts: Sequence[bytes], wanted: Sequence[str]) -> dict[str, Item]:
    names = frozenset(wanted)
    kept = (item for part in parts for item in items.decoded(part))
    return {item["id"]: item for item in kept if item["id"] in names}


async def _parts(services: Services, owner: str, home: str) -> Sequence[bytes]:
    """Arrays of items, as JSON."""
    response = await services.store.get(owner, f"resp_{home}")
    if response is not None:
        return response.input, response.output
    talk = await services.store.items(owner, f"conv_{home}") or ()
    return [msgspec.json.encode([msgspec.Raw(one.item) for one in talk])]


AnyRequest = Request[Any, Any, Any]

NEVER = 1e9  # seconds: no keep-alive comments
KEEPING = 10.0  # seconds to keep what has become of a cancelled run


def fresh_id() -> str:
    """Of the server's own choice: what is kept is found by it."""
    return uuid.uuid4().hex


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
        new_id = references.numbered(name)
        self.input = items.kept(exchange.items, new_id)
        self.reply = responses.ResponsesReply(
            exchange, id=f"resp_{name}", created=self.created, new_id=new_id
        )

    def to_client(self, request: ChatRequest, by: Caller, *, in_background: bool) -> Exchange:
        """As an answer to one client; in the background as a stream for any reader."""
        quiet = NEVER if in_background else self.services.config.server.comment_after
        stream = self.exchange.stream or in_background
        return Exchange(
            lambda on_wait: self._opened(request, on_wait, by),
            lambda answer: self.reply.answered_by(answer.model),
            self.services.failed(self.access, self.reply.failed),
            self.services.account("responses", request.model, by.request_id, self.access),
            msgspec.structs.replace(self.exchange, stream=stream),
            WireOptions(quiet=quiet, keep=None if in_background else self.keep),
        )

    def _opened(
        self, request: ChatRequest, on_wait: OnWait, by: Caller
    ) -> AbstractAsyncContextManager[Answer]:
        def chat(asked: ChatRequest) -> AbstractAsyncContextManager[Answer]:
            return self.services.pipeline.chat(asked, self.access, on_wait, by)

        return _truncating(chat, request) if self.exchange.truncates else chat(request)

    async def keep(self, events: bytes = b"", *, running: bool = False) -> None:
        """In the store, and at the end of its conversation once it is over."""
        reply, exchange, owner = self.reply, self.exchange, self.access.owner
        if exchange.store:
            kept = KeptResponse(
                id=reply.id,
                created=self.created,
                document=reply.document(),
                input=msgspec.json.encode(self.input),
                output=reply.output(),
                previous=exchange.previous,
                events=events,
                running=running,
            )
            await self.services.store.put(owner, kept)
        if exchange.conversation is not None and not running:
            output = items.decoded(reply.output())
            both = stored.ids_and_items([*self.input, *output])
            added = [KeptItem(*one) for one in both]
            await self.services.store.append(owner, exchange.conversation, added)


@post(["/v1/responses", "/responses"])
async def create(request: AnyRequest, services: Services) -> ASGIApp:
    """A response to items, and to what they go on from."""
    access = services.authenticator.admit(request.headers)
    exchange = await _read(request, services, access)
    asked = await _asked(services, access, exchange)
    making = _Making(services, access, exchange)
    by = caller(request.headers, new_id(request))
    if not exchange.background:
        return making.to_client(asked, by, in_background=False)
    return await _in_background(making, asked, by)


@post(["/v1/responses/input_tokens", "/responses/input_tokens"])
async def input_tokens(request: AnyRequest, services: Services) -> ASGIApp:
    """How long the prompt of such a response would be, its pictures left out."""
    access = services.authenticator.admit(request.headers)
    exchange = await _read(request, services, access)
    asked = await _asked(services, access, exchange)

    async def whole() -> bytes:
        tokens = await services.wording.encode_chat(asked.model, asked, access)
        return stored.tokens_body(len(tokens))

    return WholeErrand(whole)


async def _read(
    request: AnyRequest, services: Services, access: Access
) -> responses.ResponsesExchange:
    exchange = await services.read(responses.read_response, await request.body())
    return await resolved(services, access, exchange)


async def _asked(
    services: Services, access: Access, exchange: responses.ResponsesExchange
) -> ChatRequest:
    """The whole request, with all that came before it."""
    if exchange.previous is not None:
        parts = await _chain(services, access, exchange.previous)
    elif exchange.conversation is not None:
        parts = await _talk(services, access, exchange.conversation)
    else:
        return exchange.request
    return await services.bodies.run(
        lambda _wanted: exchange.behind([item for part in parts for item in items.decoded(part)])
    )


async def _chain(services: Services, access: Access, name: str) -> Sequence[bytes]:
    chain = await services.store.chain(access.owner, name)
    if chain is None:
        message = f"previous_response_id: There is no response {name!r:.80}."
        raise NotFound(message, param="previous_response_id")
    if chain[-1].running:
        message = "previous_response_id: That response is still running."
        raise InvalidRequest(message, param="previous_response_id")
    return [part for one in chain for part in (one.input, one.output)]


async def _talk(services: Services, access: Access, name: str) -> Sequence[bytes]:
    found = await services.store.items(access.owner, name)
    if found is None:
        message = f"conversation: There is no conversation {name!r:.80}."
        raise NotFound(message, param="conversation")
    return [b"[" + b",".join(one.item for one in found) + b"]"]


@asynccontextmanager
async def _truncating(
    chat: Callable[[ChatRequest], AbstractAsyncContextManager[Answer]], request: ChatRequest
) -> AsyncIterator[Answer]:
    """Where the conversation is too long its beginning is left out: a quarter more at each try."""
    async with AsyncExitStack() as held:
        left: ChatRequest | None = request
        while left is not None:
            request = left
            try:
                answer = await held.enter_async_context(chat(request))
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
    return msgspec.structs.replace(request, messages=(*system, *left))


# ----------------------------------------------------------------------------------- in background


async def _in_background(making: _Making, asked: ChatRequest, by: Caller) -> ASGIApp:
    """It begins, and its client gets the queued response at once, or its stream."""
    services, reply = making.services, making.reply
    run = Run(making.access.owner, reply.document)
    run.take(reply.queued())
    document = reply.document()
    exchange = making.to_client(asked, by, in_background=True)
    failed = services.failed(making.access, reply.failed)

    async def work() -> None:
        with run.scope:
            try:
                await run.collect(exchange)
            except Exception as error:  # noqa: BLE001 - whoever asks for the response is told
                run.take(failed(client_error(error)))
        if run.scope.cancelled_caught:
            reply.cancel()
        with anyio.move_on_after(KEEPING, shield=True):
            await _kept(making, run)

    async with services.runs.beginning(reply.id, run):
        await making.keep(running=True)
        services.runs.begin(reply.id, work)
    return _following(services, run, 0) if making.exchange.stream else Plain(document)


async def _kept(making: _Making, run: Run) -> None:
    try:
        await making.keep(run.events() if making.exchange.stream else b"")
    except GatewayError as error:
        client_error(error)  # no client waits for it: a later reader gets what was stored before


def _following(services: Services, run: Run, start: int) -> ASGIApp:
    async def send_events(events: EventStream) -> None:
        await events.begin()
        async for frames in run.read(start):
            await events.write(frames)

    return ProgressStream(
        send_events, lambda _error: b"", quiet=services.config.server.comment_after
    )


@post("/v1/responses/{response_id:str}/cancel")
async def cancel(request: AnyRequest, services: Services, response_id: str) -> ASGIApp:
    """End one that runs in the background; one that is over is returned as it is."""
    access = services.authenticator.admit(request.headers)
    run = services.runs.of(access.owner, response_id)
    if run is not None:

        async def whole() -> bytes:
            run.scope.cancel()
            await run.ended.wait()
            return run.document()

        return WholeErrand(whole)
    kept = await _found(services, access, response_id)
    if not msgspec.json.decode(kept.document)["background"]:
        raise InvalidRequest("Only a response in the background can be cancelled.")
    return Plain(kept.document)


# ------------------------------------------------------------------------------------------- kept


@get("/v1/responses/{response_id:str}")
async def retrieve(
    request: AnyRequest,
    services: Services,
    response_id: str,
    stream: bool = False,  # noqa: FBT001, FBT002 - a parameter of the query
    starting_after: int = -1,
) -> ASGIApp:
    """A response as it is now; or its events, from the one behind `starting_after` on."""
    access = services.authenticator.admit(request.headers)
    run = services.runs.of(access.owner, response_id)
    if run is not None:
        return _following(services, run, starting_after + 1) if stream else Plain(run.document())
    kept = await _found(services, access, response_id)
    if not stream:
        return Plain(kept.document)
    if not kept.events:
        message = "stream: Only a streamed response in the background can be read again as events."
        raise InvalidRequest(message, param="stream")
    left = kept.events.split(b"\n\n")[max(0, starting_after + 1) :]
    return Plain(b"\n\n".join(left), media_type=SSE.media_type.encode())


@delete("/v1/responses/{response_id:str}", status_code=200)
async def remove(request: AnyRequest, services: Services, response_id: str) -> ASGIApp:
    """Forget a response; one that runs is ended first."""
    access = services.authenticator.admit(request.headers)
    run = services.runs.of(access.owner, response_id)

    async def whole() -> bytes:
        if run is not None:
            run.scope.cancel()
            await run.ended.wait()
        if not await services.store.remove(access.owner, response_id):
            raise _missing(response_id)
        return stored.deleted_body(response_id, "response")

    return WholeErrand(whole)


@get("/v1/responses/{response_id:str}/input_items")
async def input_items(request: AnyRequest, services: Services, response_id: str) -> ASGIApp:
    """What a response was asked with, not what it went on from."""
    access = services.authenticator.admit(request.headers)
    wanted = stored.read_page(dict(request.query_params))
    kept = await _found(services, access, response_id)
    return Plain(stored.page_body(stored.ids_and_items(items.decoded(kept.input)), wanted))


async def _found(services: Services, access: Access, name: str) -> KeptResponse:
    kept = await services.store.get(access.owner, name)
    if kept is None:
        raise _missing(name)
    return kept


def _missing(name: str) -> NotFound:
    return NotFound(f"There is no response {name!r:.80}.")


ROUTES = (create, input_tokens, cancel, retrieve, remove, input_items)
