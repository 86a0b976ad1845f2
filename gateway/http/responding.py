"""One response of the responses API on its way, whichever way its client came: the request and what
it goes on from are read, its answer is a stream or whole, and is kept at its end.

Knows no route and no connection.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from gateway.answers.answer import Answer
from gateway.answers.call import Call
from gateway.dialects import responses
from gateway.dialects.responses import items, stored
from gateway.http.exchange import Exchange
from gateway.http.remembering import Memory
from gateway.http.request_record import RequestRecord
from gateway.http.services import LONG_BODY, Services
from gateway.http.sse import BARE, SSE, Framing
from gateway.keys.access import Access
from gateway.keys.store import KeptItem, KeptResponse, KeptTurn, Room, fresh_id
from gateway.mcp.rounds import AnswerInRounds
from gateway.terms.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    NotFound,
    PreviousNotFound,
)
from gateway.terms.events import Usage
from gateway.terms.request import ChatRequest

MOST_HOMES = 64  # responses and conversations that are read for one request
STANDARD = "openresponses-version"  # the header of clients that want the standard's own events


class Reading(msgspec.Struct, frozen=True):
    """A request's body, and all that it goes on from. `room` takes what that holds; `memory`: what
    the client's connection has of it.
    """

    services: Services
    access: Access
    room: Room
    memory: Memory | None = None

    async def read(self, body: bytes) -> tuple[responses.ResponsesExchange, str]:
        """The whole request; and what its conversation is called: by its own name, or as the first
        response of its chain; "" where it begins one. Raises PreviousNotFound, NotFound,
        InvalidRequest, TooLarge.
        """
        services = self.services
        asked = await services.read(responses.read_response, body)
        wanted = items.referred(asked.items)
        named = await self._named(wanted) if wanted else ()
        parts, talk = await self._before(asked)

        def whole(_: object) -> responses.ResponsesExchange:
            return asked.after(items.history(parts), items.among(named, wanted))

        is_long = bool(named or parts)
        return await (services.bodies.run(whole) if is_long else services.read(whole, body)), talk

    async def _named(self, wanted: Sequence[str]) -> Sequence[bytes]:
        """What the items of these ids are kept in."""
        homes = dict.fromkeys(home for name in wanted if (home := items.home_of(name)))
        if len(homes) > MOST_HOMES:
            text = f"Refers to items of more than {MOST_HOMES} responses."
            raise InvalidRequest.at("input", text)
        names = [f"{kind}_{home}" for home in homes for kind in ("resp", "conv")]
        return await self.services.store.named(
            self.access.owner, names, frozenset(wanted), self.room
        )

    async def _before(self, asked: responses.ResponsesExchange) -> tuple[Sequence[bytes], str]:
        if asked.previous is not None:
            return await self._chain(asked.previous)
        if asked.conversation is not None:
            return await self._talk(asked.conversation), asked.conversation
        return (), ""

    async def _chain(self, name: str) -> tuple[Sequence[bytes], str]:
        """What a response goes on from and itself; and the first of these."""
        recent = self.memory.chain(name) if self.memory is not None else ()
        asked = recent[0][1].previous if recent else name
        first, chain = recent[0][0] if recent else "", [turn for _, turn in recent]
        if asked is not None:
            stored_ = await self.services.store.chain(self.access.owner, asked, self.room)
            if stored_ is None:
                raise PreviousNotFound(name)
            if stored_[-1].running:
                raise InvalidRequest.at("previous_response_id", "That response is still running.")
            first = (stored_[1].previous or asked) if len(stored_) > 1 else asked
            chain = [*stored_, *chain]
        return [part for one in chain for part in (one.input, one.output)], first

    async def _talk(self, name: str) -> Sequence[bytes]:
        found = await self.services.store.items(self.access.owner, name, self.room)
        if found is None:
            raise NotFound.at("conversation", f"Conversation {name!r:.80} not found.")
        return [b"[" + b",".join(one.item for one in found) + b"]"]


async def _summary(services: Services, call: Call[ChatRequest]) -> tuple[str, Usage]:
    """The model's own, of the whole conversation, and what it took. Raises GatewayError."""
    asked = call.of(responses.summary_asked(call.request))
    async with services.pipeline.chat(asked) as answer:
        said = [delta async for delta in answer.deltas()]
        usage = answer.usage()
    return responses.summary_of(said), usage


Chat: TypeAlias = Callable[[Call[ChatRequest]], AbstractAsyncContextManager[Answer]]


@asynccontextmanager
async def _truncating(chat: Chat, call: Call[ChatRequest]) -> AsyncIterator[Answer]:
    """Where the conversation is too long its beginning is left out: a quarter more at each try."""
    async with AsyncExitStack() as held:
        answer: Answer | None = None
        while answer is None:
            try:
                answer = await held.enter_async_context(chat(call))
            except ContextLengthExceeded:
                shorter = _shortened(call.request)
                if shorter is None:
                    raise
                call = call.of(shorter)
        yield answer


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


class Making:
    """One response on its way. `memory`: where it is kept if it isn't stored."""

    def __init__(
        self,
        services: Services,
        access: Access,
        exchange: responses.ResponsesExchange,
        memory: Memory | None = None,
    ) -> None:
        self._memory = memory
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
        self,
        call: Call[ChatRequest],
        record: RequestRecord,
        *,
        in_background: bool,
        framing: Framing = SSE,
    ) -> Exchange[ChatRequest]:
        """As an answer to one client; in the background, where `call` asks for a stream, for any
        reader.
        """
        return Exchange(
            self.services.asking_by(call, "responses", record),
            self._opened,
            lambda answer: self.reply.answered_by(answer.model, answer.sampling),
            self.reply.failed,
            framing=BARE if in_background else framing,
            keep=None if in_background else self.keep,
        )

    @asynccontextmanager
    async def _opened(self, call: Call[ChatRequest]) -> AsyncIterator[Answer]:
        chat = partial(self.services.chat, shown="calls", can_approve=True)
        first: Usage | None = None
        if not self.exchange.generates:
            answering = replace(call.request.answering, max_tokens=0)  # the prompt stays cached
            call = call.of(replace(call.request, answering=answering))
        elif await self._is_long(call):
            summary, first = await _summary(self.services, call)
            self.reply.compacted(summary)
            call = call.of(self.exchange.compacted(summary))
        opened = _truncating(chat, call) if self.exchange.truncates else chat(call)
        async with opened as answer:
            answer.first = first
            if isinstance(answer, AnswerInRounds):
                self.reply.serves(answer.served, answer.listed)
            yield answer

    async def _is_long(self, call: Call[ChatRequest]) -> bool:
        """The conversation is to be made shorter first."""
        threshold = self.exchange.compact_threshold
        if self.exchange.compacts or threshold is None:
            return self.exchange.compacts
        return await self.services.count_tokens(call, can_approve=True) > threshold

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
        elif self._memory is not None and not running:
            turn = KeptTurn(
                previous=exchange.previous, running=False, input=self.input, output=reply.output()
            )
            self._memory.keep(reply.id, turn)
        if exchange.conversation is not None and not running:
            output = items.decoded(reply.output())
            both = stored.ids_and_items([*self.items, *output])
            added = [KeptItem(*one) for one in both]
            await self.services.store.append(owner, exchange.conversation, added)
