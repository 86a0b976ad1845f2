"""OpenAI's responses API: create, store, continue, run in the background, retrieve.

Each key sees its own: another's response, or an item of one, is not found.
"""

import time

import anyio
import msgspec
from litestar import delete, get, post
from litestar.types import ASGIApp
from msgspec.structs import replace

from gateway.answers.call import Call
from gateway.dialects import openai, responses
from gateway.dialects.dialect import DONE
from gateway.dialects.models import InputTokens
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
from gateway.dialects.responses.stored import Deleted, Page
from gateway.http.auth import AnyRequest
from gateway.http.detached import BackgroundAnswer
from gateway.http.exchange import Exchange
from gateway.http.holding import RequestHolding, held
from gateway.http.openapi import DEFAULT, Described, body_type
from gateway.http.request_log import record_of
from gateway.http.request_record import RequestRecord
from gateway.http.responding import STANDARD, Making, Reading
from gateway.http.routes import conversations, responses_socket
from gateway.http.routing import Routes
from gateway.http.services import Services, call_of
from gateway.http.sse import SSE, EventStream, Plain, ProgressStream, attended, client_error
from gateway.keys.store import Part, fresh_id
from gateway.terms.errors import GatewayError, InvalidRequest, NotFound
from gateway.terms.request import ChatRequest

FRAMING = replace(SSE, end=DONE)
KEEPING = 10.0  # seconds to keep what has become of a cancelled run
ONE = "/v1/responses/{response_id:str}"
EVENTS = (Lifecycle, ItemEvent, PartEvent, GrownEvent, WholeEvent, CommandEvent)

api = Routes()


@api(post, ["/v1/responses", "/responses"], access="user")
async def create(request: AnyRequest, services: Services) -> ASGIApp:
    """Create a response to items and to the earlier turns that they continue."""
    reading = Reading(services, request.auth, held(request).take)
    exchange, talk = await reading.read(await request.body())
    exchange = replace(exchange, standard=STANDARD in request.headers)
    making = Making(services, request.auth, exchange)
    await making.prepare()
    call = call_of(request, exchange.request, talk or making.reply.id)
    record = record_of(request)
    if not exchange.background:
        return making.to_client(call, record, in_background=False, framing=FRAMING)
    return await _in_background(making, call, record.apart(), held(request))


@api(post, ["/v1/responses/input_tokens", "/responses/input_tokens"], access="user")
async def input_tokens(request: AnyRequest, services: Services) -> InputTokens:
    """Count the prompt tokens of a response, without images."""
    reading = Reading(services, request.auth, held(request).take)
    exchange, _ = await reading.read(await request.body())
    async with attended(request):
        count = await services.count_tokens(call_of(request, exchange.request), can_approve=True)
    return InputTokens(count)


@api(post, ["/v1/responses/compact", "/responses/compact"], access="user")
async def compact(request: AnyRequest, services: Services) -> ASGIApp:
    """Make a conversation shorter: what users said, and the model's summary of all."""
    reading = Reading(services, request.auth, held(request).take)
    exchange, talk = await reading.read(await request.body())
    if not exchange.request.model:
        raise InvalidRequest.at("model", "Required here.")
    name = fresh_id()
    reply = responses.CompactReply(
        exchange.whole, id=f"resp_{name}", created=int(time.time()), new_id=items.numbered(name)
    )
    call = call_of(request, responses.summary_asked(exchange.request), talk)
    return Exchange(
        services.asking_by(call, "responses", record_of(request)),
        services.pipeline.chat,
        lambda _answer: reply,
        openai.error_event,
    )


async def _in_background(
    making: Making, call: Call[ChatRequest], record: RequestRecord, request_holds: RequestHolding
) -> ASGIApp:
    """It begins, and its client gets the queued response at once, or its stream."""
    services, reply = making.services, making.reply
    run = BackgroundAnswer(making.access.owner, reply.id, reply.document)
    run.take(reply.queued())
    document = reply.document()
    streamed = call.request.answering.streamed
    answering = replace(call.request.answering, streamed=True)
    call = call.of(replace(call.request, answering=answering))  # its events are there as they come
    exchange = making.to_client(call, record, in_background=True)

    async def work() -> None:
        try:
            await run.collect(exchange)
            if run.error is not None:
                error = services.redacted(client_error(run.error), making.access)
                run.take(reply.failed(error))
            if run.scope.cancelled_caught:
                reply.cancelled()  # whoever reads its events sees them end
            with anyio.move_on_after(KEEPING, shield=True):
                try:
                    await making.keep(run.sent() if streamed else b"")
                except GatewayError as error:  # a later reader gets what was stored before
                    client_error(error)
        finally:
            mine.give_back()

    with services.background.admitted(run):
        await making.keep(running=True)
        mine = request_holds.moved()
        services.background.begin(run, work)
    return _following(services, run, 0) if streamed else Plain(document)


def _following(services: Services, run: BackgroundAnswer, event: int) -> ASGIApp:
    async def send_events(events: EventStream) -> bytes:
        await events.begin()
        async for frames in run.read(await run.place_once_there(event)):
            await events.write(frames)
        return DONE

    return ProgressStream(
        send_events, lambda _error: b"", quiet=services.config.server.comment_after
    )


@api(post, f"{ONE}/cancel", access="user", gives=(ResponseWire,))
async def cancel(request: AnyRequest, services: Services, response_id: str) -> ASGIApp:
    """Cancel a response that runs in the background. A finished response is returned unchanged."""
    run = services.background.find(request.auth.owner, response_id)
    if run is not None:
        async with attended(request):
            run.scope.cancel()
            await run.ended.wait()
        return Plain(run.document())
    document = await _part(request, services, response_id, "document")
    if not msgspec.json.decode(document)["background"]:
        raise InvalidRequest("Only a response in the background can be cancelled.")
    return Plain(document)


@api(get, ONE, access="user", gives=(ResponseWire,), events=EVENTS)
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
        message = "Only a streamed response in the background can be read again as events."
        raise InvalidRequest.at("stream", message)
    left = events.split(b"\n\n")[max(0, starting_after + 1) :]
    return Plain(b"\n\n".join(left) + DONE, media_type=SSE.media_type.encode())


@api(delete, ONE, status_code=200, access="user")
async def remove(request: AnyRequest, services: Services, response_id: str) -> Deleted:
    """Delete a response. A running response is cancelled first."""
    run = services.background.find(request.auth.owner, response_id)
    async with attended(request):
        if run is not None:
            run.scope.cancel()
            await run.ended.wait()
        if not await services.store.remove(request.auth.owner, response_id):
            raise _missing(response_id)
    return Deleted(id=response_id, object="response")


@api(get, f"{ONE}/input_items", access="user", query=stored.PageQuery)
async def input_items(request: AnyRequest, services: Services, response_id: str) -> Page:
    """List the input items of a response, without earlier turns."""
    wanted = stored.read_page(dict(request.query_params))
    given = items.decoded(await _part(request, services, response_id, "input"))
    return stored.page(stored.ids_and_items(given), wanted)


async def _part(request: AnyRequest, services: Services, name: str, part: Part) -> bytes:
    kept = await services.store.part(request.auth.owner, name, part, held(request).take)
    if kept is None:
        raise _missing(name)
    return kept


def _missing(name: str) -> NotFound:
    return NotFound(f"Response {name!r:.80} not found.")


RESPONSE = body_type(
    "Request",
    "Items to answer, and the earlier turns that they continue.",
    (items.CreateWire, SamplingWire),
)
QUESTION = {"A question": {"model": DEFAULT, "input": "Say hello."}}

api[create] = Described(
    takes=RESPONSE,
    gives=(ResponseWire,),
    events=EVENTS,
    examples={
        "A question": {"model": DEFAULT, "input": "Say hello.", "max_output_tokens": 8},
        "A stream": {
            "model": DEFAULT,
            "input": "Say hello.",
            "max_output_tokens": 8,
            "stream": True,
        },
    },
)
api[input_tokens] = Described(takes=RESPONSE, gives=(InputTokens,), examples=QUESTION)
api[compact] = Described(takes=RESPONSE, gives=(CompactedWire,), examples=QUESTION)
api.update(conversations.api)

SOCKETS = (responses_socket.converse,)
