"""OpenAI's responses API over a WebSocket: many responses on one connection, each asked for by a
message and answered by messages, which are the events of a stream.

Requests of one lane (`stream_id`) are answered one after the other, lanes side by side. A response
that isn't stored can be gone on from on its own connection. Keys are looked up again for each, and
each waits in line, counts and is logged like a request of its own.
"""

import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup
from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.types import Message, Scope
from msgspec.structs import replace

from gateway.answers.call import Call
from gateway.dialects import responses
from gateway.dialects.responses.socket import (
    Cancel,
    ClientMessage,
    Create,
    Steer,
    error_message,
    messages,
    read_message,
    steer_failed,
)
from gateway.http.auth import caller
from gateway.http.detached import receive_nothing
from gateway.http.errors import headers as error_headers
from gateway.http.holding import LONG_BODY, RequestHolding, held
from gateway.http.remembering import Memory
from gateway.http.request_log import ID_HEADER
from gateway.http.request_record import RequestRecord
from gateway.http.responding import STANDARD, Making, Reading
from gateway.http.services import Services, conversation_of
from gateway.http.sockets import CLOSED, POLICY, RESTARTS
from gateway.http.sse import SSE, client_error
from gateway.keys.access import Access
from gateway.terms.errors import (
    Cancelled,
    GatewayError,
    InvalidKey,
    InvalidRequest,
    QueueFull,
    ShuttingDown,
)
from gateway.terms.request import Unapplied
from gateway.terms.tasks import Signal, companions

MOST_PENDING = 64  # requests of one connection that run or wait for their lane
LINE = 120  # characters of a reason why a connection is closed (RFC 6455, 5.5: 123 bytes)
METHOD, ROUTE = "WEBSOCKET", "/v1/responses"  # as the log names them
SHOWN = ("x-roundhouse-", "x-ratelimit-")  # headers that say something of an answer

log = structlog.get_logger()

AnySocket = WebSocket[Any, Access, Any]


@websocket(["/v1/responses", "/responses"], access="user")
async def converse(socket: AnySocket, services: Services) -> None:
    """Create responses by messages."""
    connection = Connection(socket, services)
    with services.sockets.opened(connection.drain, socket.scope["auth"].owner):
        await socket.accept()
        await connection.run()


class Connection:
    """One socket: its lanes, and what it remembers."""

    def __init__(self, socket: AnySocket, services: Services) -> None:
        self.services = services
        self.headers: Mapping[str, str] = socket.headers
        self.client = socket.scope["client"]
        self.state = socket.scope["state"]
        self.held: RequestHolding = held(socket)
        self.memory = Memory(self.held)
        self._socket = socket
        self._lanes: dict[str | None, deque[_Turn]] = {}
        self._changed = Signal()
        self._draining = False

    async def run(self) -> None:
        """Until the client leaves, or is left."""
        try:
            async with companions() as tasks:
                tasks.start_soon(self._close_in_time)
                while (text := await self._received()) is not None:
                    await self._take(text, tasks)
        finally:
            self.memory.clear()

    def drain(self) -> None:
        """What was asked for may finish; then the connection is closed."""
        self._draining = True
        self._changed.give()

    async def send(self, text: str) -> None:
        """One message. It waits while the client doesn't read, and for the end where it has left:
        whoever receives notices, and cancels.
        """
        try:
            await self._socket.send({"type": "websocket.send", "text": text, "bytes": None})
        except (OSError, WebSocketDisconnect):
            await anyio.sleep_forever()

    async def _received(self) -> bytes | None:
        """The next message; None: the client has left."""
        event: Any = await self._socket.receive()
        if event["type"] != "websocket.receive":
            return None
        text: str | None = event.get("text")
        given: bytes = event.get("bytes") or b"" if text is None else text.encode()
        return given

    async def _take(self, text: bytes, tasks: TaskGroup) -> None:
        room = self.held.apart()
        lane: str | None = None
        message: ClientMessage | None = None
        try:
            if len(text) >= LONG_BODY:
                room.take(len(text))
            message = await self.services.read(read_message, text)
            lane = message.lane if not isinstance(message, Steer) else None
            await self._handle(message, room, tasks)
        except GatewayError as error:
            room.give_back()
            self.failed(message)
            await self.send(error_message(error, lane, error_headers(error)))

    def failed(self, message: ClientMessage | None) -> None:
        """What was to be gone on from is forgotten, as Open Responses has it: a client that tries
        again is told so, and sends the whole conversation.
        """
        if isinstance(message, Create) and message.previous is not None:
            self.memory.forget(message.previous)

    async def _handle(self, message: ClientMessage, room: RequestHolding, tasks: TaskGroup) -> None:
        match message:
            case Create():
                self._queue(_Turn(self, message, room), tasks)
            case Cancel():
                room.give_back()
                self._cancel(message)
            case Steer():
                room.give_back()
                await self.send(steer_failed(message))

    def _queue(self, turn: "_Turn", tasks: TaskGroup) -> None:
        if self._draining:
            raise ShuttingDown("The server is stopping. Open another connection.")
        if sum(map(len, self._lanes.values())) >= MOST_PENDING:
            raise QueueFull(f"{MOST_PENDING} requests of this connection run or wait already.")
        lane = turn.message.lane
        if lane in self._lanes:
            self._lanes[lane].append(turn)
            return
        self._lanes[lane] = deque([turn])
        tasks.start_soon(self._run_lane, lane)

    async def _run_lane(self, lane: str | None) -> None:
        turns = self._lanes[lane]
        while turns:
            try:
                await turns[0].run()
            finally:
                turns.popleft().room.give_back()
        del self._lanes[lane]
        self._changed.give()

    def _cancel(self, message: Cancel) -> None:
        for lane, turns in self._lanes.items():
            for turn in turns:
                if turn.id == message.response or (
                    message.response is None and lane == message.lane
                ):
                    turn.scope.cancel()
                    return
        raise InvalidRequest.at("response_id", "No such response runs here.")

    async def _close_in_time(self) -> None:
        """Once the server stops and nothing runs, or where nothing came for so long."""
        idle = self.services.config.server.socket_idle
        while True:
            if self._draining and not self._lanes:
                await self._close(ShuttingDown("The server is stopping."), RESTARTS)
                return
            with anyio.move_on_after(idle) as waited:
                await self._changed.wait()
            if waited.cancelled_caught and not self._lanes:
                text = f"Nothing was asked for {idle:g} s (server.socket_idle). Connect again."
                await self._close(SocketExpired(text), CLOSED)
                return

    async def _close(self, error: GatewayError, code: int) -> None:
        await self.send(error_message(error))
        await self.close(code, error.message)

    async def close(self, code: int, reason: str) -> None:
        """With a reason for people."""
        with suppress(OSError, WebSocketDisconnect):
            closing: Any = {"type": "websocket.close", "code": code, "reason": reason[:LINE]}
            await self._socket.send(closing)


class SocketExpired(InvalidRequest, code="websocket_connection_limit_reached"):
    """The connection is closed; OpenAI's clients read the code, and open another."""


class _Turn:
    """One response of a connection. `scope` ends it."""

    def __init__(self, connection: Connection, message: Create, room: RequestHolding) -> None:
        self.message = message
        self.room = room
        self.scope = anyio.CancelScope()
        self._connection = connection
        self._services = connection.services
        self._making: Making | None = None
        self._headers: Mapping[str, str] = {}
        self._record = RequestRecord(uuid.uuid4().hex)
        self._record.method, self._record.path = METHOD, ROUTE
        self._record.sent(message.body)

    @property
    def id(self) -> str | None:
        """The response's, once there is one."""
        return self._making.reply.id if self._making is not None else None

    async def run(self) -> None:
        """Answer it, whatever becomes of it. Raises nothing but a cancellation from outside."""
        try:
            with self.scope:
                try:
                    await self._answer()
                except Exception as caught:  # noqa: BLE001 - each is a message to the client
                    await self._fail(client_error(caught, self._record.id))
            if self.scope.cancelled_caught:
                self._record.outcome = "cancelled"
                if self._making is None:
                    await self._fail(Cancelled("The request was cancelled before it was read."))
                else:
                    await self._send_frames(self._making.reply.cancelled())
        finally:
            self._services.metrics.requested(METHOD, ROUTE, self._record.status)
            client = self._connection.client
            self._record.tell(log.info, route=ROUTE, client=client)

    async def _fail(self, error: GatewayError) -> None:
        self._record.status, self._record.outcome = error.status_hint, error.code or error.type
        if self._making is not None:
            error = self._services.redacted(error, self._making.access)
        headers = {ID_HEADER: self._record.id, **error_headers(error)}
        connection = self._connection
        connection.failed(self.message)
        await connection.send(error_message(error, self.message.lane, headers))
        if isinstance(error, InvalidKey):
            await connection.close(POLICY, error.message)

    async def _answer(self) -> None:
        connection, services = self._connection, self._services
        access = services.authenticator.admit(connection.headers)  # it may be gone meanwhile
        reading = Reading(services, access, self.room.take, connection.memory)
        read, talk = await reading.read(self.message.body)
        exchange = self._meant(read)
        making = self._making = Making(services, access, exchange, connection.memory)
        await making.prepare()
        call = Call(
            request=exchange.request,
            access=access,
            caller=caller(connection.headers, self._record.id),
            conversation=conversation_of(connection.headers) or talk or making.reply.id,
        )
        framing = replace(SSE, introduce=self._introduced)
        app = making.to_client(call, self._record, in_background=False, framing=framing)
        scope: Scope = {"type": "http", "state": connection.state}  # type: ignore[assignment]
        await app(scope, receive_nothing, self._send)  # who leaves is noticed by the connection
        if making.reply.has_failed:
            connection.failed(self.message)

    def _meant(self, exchange: responses.ResponsesExchange) -> responses.ResponsesExchange:
        """With what the message says of the socket."""
        unused = (Unapplied(name, "a socket streams") for name in self.message.unused)
        answering = exchange.request.answering
        told = replace(answering, unapplied=(*unused, *answering.unapplied))
        return replace(
            exchange,
            request=replace(exchange.request, answering=told),
            standard=STANDARD in self._connection.headers,
            generates=self.message.generates,
        )

    async def _send(self, message: Message) -> None:
        """What the response would send to a client of its own."""
        if message["type"] == "http.response.start":
            self._record.status = 200
            given = {name.decode(): one.decode("latin-1") for name, one in message["headers"]}
            self._introduced(given)
        elif message["type"] == "http.response.body":
            await self._send_frames(message["body"])

    def _introduced(self, headers: Mapping[str, str]) -> bytes:
        """What would be its headers stands in its first message."""
        named = {name: one for name, one in headers.items() if name.startswith(SHOWN)}
        self._headers = {ID_HEADER: self._record.id, **self._headers, **named}
        return b""

    async def _send_frames(self, frames: bytes) -> None:
        for text in messages(frames, self.message.lane, self._headers):
            self._headers = {}
            await self._connection.send(text)
