"""Anthropic's routes: messages, and how many tokens one would have."""

from litestar import post
from litestar.types import ASGIApp

from gateway.dialects import anthropic
from gateway.dialects.anthropic.reply import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Count,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageWhole,
    Ping,
)
from gateway.dialects.anthropic.request import MessagesWire
from gateway.dialects.dialect import body
from gateway.dialects.parameters import SamplingWire
from gateway.http.auth import AnyRequest
from gateway.http.exchange import Exchange, ignoring
from gateway.http.openapi import DEFAULT, USER, Described, body_type
from gateway.http.request_log import record_of
from gateway.http.routing import Routes
from gateway.http.services import Services, call_of
from gateway.http.sse import SSE, Framing, Plain, attended, comment
from gateway.mcp.rounds import AnswerInRounds
from gateway.terms.request import all_unapplied

# A comment for people; its clients keep time by pings.
PINGS = Framing(SSE.media_type, anthropic.PING, lambda text: comment(text) + anthropic.PING)

api = Routes()


@api(post, "/v1/messages", access="user")
async def messages(request: AnyRequest, services: Services) -> ASGIApp:
    """Generate the next message of a conversation."""
    exchange = await services.read(anthropic.read_messages, await request.body())
    request_id = record_of(request).id
    return Exchange(
        services.asking(request, "messages", exchange.request),
        lambda call: services.chat(call, "calls"),
        lambda answer: anthropic.MessagesReply(
            exchange,
            id=f"msg_{request_id}",
            model=answer.model,
            prompt_tokens=answer.usage().prompt_tokens,
            served=answer.served if isinstance(answer, AnswerInRounds) else {},
        ),
        anthropic.error_event,
        framing=PINGS,
        rates=anthropic.DIALECT.rate_headers,
        headers={anthropic.ID_HEADER: request_id},
    )


@api(post, "/v1/messages/count_tokens", status_code=200, access="user")
async def count_tokens(request: AnyRequest, services: Services) -> ASGIApp:
    """Count the prompt tokens of a request. Images are not counted, because only the loaded model
    can determine their tokens; the response lists them as ignored.
    """
    asked = (await services.read(anthropic.read_messages, await request.body())).request
    async with attended(request):
        found = anthropic.Count(await services.count_tokens(call_of(request, asked)))
    unapplied = all_unapplied("images") if asked.has_images else ()
    headers = {anthropic.ID_HEADER: record_of(request).id, **ignoring(unapplied)}
    return Plain(body(found), headers=headers)


MESSAGES = body_type(
    "MessagesRequest",
    "A conversation to continue, in Anthropic's format.",
    (MessagesWire, SamplingWire),
    names={"max_tokens": ("max_tokens",), "stop": ("stop_sequences",)},
)

api[messages] = Described(
    takes=MESSAGES,
    gives=(MessageWhole,),
    events=(MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, Ping),
    examples={
        "A conversation": {
            "model": DEFAULT,
            "max_tokens": 8,
            "system": "Be brief.",
            "messages": USER,
        }
    },
)
api[count_tokens] = Described(
    takes=MESSAGES,
    gives=(Count,),
    examples={"A conversation": {"model": DEFAULT, "messages": USER}},
)
