"""Chat streams that are taken up again: begun with the header `X-Conversation-Id`, read from any
place by the key that began them.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.types import ASGIApp
from msgspec import Meta

from gateway.dialects.frames import body
from gateway.dialects.llamaserver import wire
from gateway.errors import InvalidRequest, NotFound
from gateway.http.plain import Plain
from gateway.http.services import Services
from gateway.http.streams import KeptStreamResponse, checked_name

AnyRequest = Request[Any, Any, Any]

MOST_NAMED = 1_000  # conversations in one question


class Lookup(msgspec.Struct, frozen=True):
    """Conversations that the caller knows. There is no list of those it doesn't."""

    conversation_ids: Annotated[list[str], Meta(max_length=MOST_NAMED)]


class StreamWire(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that can be read. Times are Unix time; 0: not yet."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


def _number(text: str, param: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequest(f"{param}: Expected a number from 0 on.", param=param)
    return int(text)


@get("/v1/stream")
async def resume(request: AnyRequest, services: Services, conv_id: str = "") -> ASGIApp:
    """A conversation's stream, from byte `from` or event number `from_event` on, to its end."""
    access = services.authenticator.admit(request.headers)
    stream = services.streams.of(access.owner, checked_name(conv_id, "conv_id"))
    if stream is None:
        raise NotFound("There is no stream of that conversation, or no more.", param="conv_id")
    if (event := request.query_params.get("from_event")) is not None:
        return KeptStreamResponse(stream, stream.place_of(_number(event, "from_event")))
    place = _number(request.query_params.get("from") or "0", "from")
    stream.check(place)
    return KeptStreamResponse(stream, place)


@delete("/v1/stream", status_code=204)
async def stop(request: AnyRequest, services: Services, conv_id: str = "") -> None:
    """End a conversation's stream and forget it; harmless where there is none."""
    access = services.authenticator.admit(request.headers)
    services.streams.stop(access.owner, checked_name(conv_id, "conv_id"))


@post("/v1/streams/lookup", status_code=200)
async def lookup(request: AnyRequest, services: Services) -> ASGIApp:
    """Which of these conversations have a stream that can be read."""
    access = services.authenticator.admit(request.headers)
    asked = wire.read(await request.body(), Lookup)
    found: Sequence[StreamWire] = [
        StreamWire(
            conversation_id=stream.name[1],
            is_done=bool(stream.ended_at),
            total_bytes=stream.size,
            started_at=int(stream.began_at),
            completed_at=int(stream.ended_at),
        )
        for stream in services.streams.named(access.owner, asked.conversation_ids)
    ]
    return Plain(body(found))


ROUTES = (resume, stop, lookup)
