"""One MCP server: its session, begun when it is first asked for and again when it was lost, its
tools, its calls.

A failure never ends a request: a call's is a result that the model can read, a list's an error that
names the server.
"""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import anyio
import httpx2
import mcp_types as types
import msgspec
import structlog
from anyio.abc import TaskGroup
from mcp.client.client import Client
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError

from config.mcp import McpConfig
from gateway.mcp.connections import (
    CLOSED,
    CommandEnded,
    TooMuch,
    Transport,
    commanded,
    older,
    sieved,
    streaming,
)

T = TypeVar("T")

MOST_PAGES = 32  # of a list
LONGEST_SCHEMA = 64 << 10  # bytes of a tool's
LONGEST_DESCRIPTION = 4_096  # characters
LONGEST_ERROR = 600
LAST_WORDS = 1.0  # seconds in which a session that was lost may say why
LEAVING = 2.0  # seconds that the end of an idle session may take
UNANSWERED_IN_A_ROW, MOST_UNANSWERED = 2, 32  # calls, after which a session is of no more use
# A failure to list tools is kept so many times as long as it took to come: who asks meanwhile is
# told at once, so a server that hangs holds up a chat now and then, and not each.
KEPT_FAILURE = 6.0
DEEPEST = 32  # objects in each other, of a schema

log = structlog.get_logger(__name__)


class ServerFailed(Exception):
    """A server can't be asked for its tools. The message says why, for its users."""


class SessionForgotten(ServerFailed):
    """It says that it doesn't know the session: it did nothing."""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    annotations: Mapping[str, Any] | None = None

    @property
    def reads_only(self) -> bool:
        """By its server's own word."""
        return bool(self.annotations and self.annotations.get("readOnlyHint"))


class ToolResult(msgspec.Struct, frozen=True):
    """What the model is told."""

    text: str
    is_error: bool = False


class McpServer:
    """One server, for all requests. `tasks` outlives every call."""

    def __init__(self, config: McpConfig, tasks: TaskGroup) -> None:
        self.config = config
        self._tasks = tasks
        self._session: _Session | None = None
        self._calls = anyio.Semaphore(config.parallel)
        self._listing = anyio.Lock()
        self._listed: Sequence[ListedTool] = ()
        self._good_until = -math.inf
        self._failed: ServerFailed | None = None
        self._failed_until = -math.inf

    def close(self) -> None:
        """Its session ends; a call that is under way fails."""
        if self._session is not None:
            self._session.end("it was closed")

    async def tools(self) -> Sequence[ListedTool]:
        """Those that may be called. Raises ServerFailed."""
        asked = time.monotonic()
        async with self._listing:
            if self._failed is not None and self._failed_until > asked:
                raise ServerFailed(str(self._failed))
            if time.monotonic() >= self._good_until:
                self._listed, good = await self._list_or_fail()
                self._good_until = time.monotonic() + good
            return self._listed

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Never raises but for a cancellation."""
        async with self._calls:
            began = time.monotonic()
            result = await self._call(tool, arguments)
        log.info(
            "tool called",
            server=self.config.name,
            tool=tool,
            failed=result.is_error,
            seconds=round(time.monotonic() - began, 3),
        )
        return result

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            found = await self._asked(
                self.config.timeout, lambda client: client.call_tool(tool, dict(arguments))
            )
        except TimeoutError:
            text = f"Error: the tool took longer than {self.config.timeout:g} seconds."
            return ToolResult(text, is_error=True)
        except ServerFailed as error:
            return ToolResult(f"Error: {error}", is_error=True)
        return _result(found, self.config.max_output)

    async def _list_or_fail(self) -> tuple[Sequence[ListedTool], float]:
        began = time.monotonic()
        self._failed = None
        try:
            return await self._list()
        except ServerFailed as error:
            now = time.monotonic()
            self._failed, self._failed_until = error, now + KEPT_FAILURE * (now - began)
            raise

    async def _list(self) -> tuple[Sequence[ListedTool], float]:
        """The tools, and for how many seconds they are good."""
        try:
            return await self._asked(self.config.connect_timeout + self.config.timeout, self._pages)
        except TimeoutError:
            raise ServerFailed("it did not list its tools in time") from None

    async def _pages(self, client: Client) -> tuple[Sequence[ListedTool], float]:
        found: dict[str, ListedTool] = {}
        left_out: list[str] = []
        good, cursor = self.config.refresh, None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            for tool in page.tools:
                listed = self._listed_tool(tool)
                if listed is None or (len(found) >= self.config.max_tools):
                    left_out.append(tool.name[:64])
                else:
                    found.setdefault(listed.name, listed)
            good = min(good, page.ttl_ms / 1000) if page.ttl_ms else good
            cursor = page.next_cursor
            if cursor is None or len(found) >= self.config.max_tools:
                break
        if left_out:
            log.warning("tools left out", server=self.config.name, tools=left_out[:16])
        return tuple(found.values()), good

    def _listed_tool(self, tool: types.Tool) -> ListedTool | None:
        """None where it may not be called, or can't be shown."""
        allowed = not self.config.tools or tool.name in self.config.tools
        if not allowed or not _is_shown(tool.name, tool.input_schema):
            return None
        hints = tool.annotations
        return ListedTool(
            name=tool.name,
            description=(tool.description or "")[:LONGEST_DESCRIPTION],
            schema=tool.input_schema,
            annotations=hints.model_dump(by_alias=True, exclude_none=True) if hints else None,
        )

    async def _asked(self, seconds: float, ask: Callable[[Client], Awaitable[T]]) -> T:
        """What the server answers within `seconds`; it is asked once more where it has forgotten
        the session, as after a restart, since it did nothing then. Raises as `_opened`.
        """
        with suppress(SessionForgotten):
            async with self._opened(seconds) as client:
                return await ask(client)
        async with self._opened(seconds) as client:
            return await ask(client)

    @asynccontextmanager
    async def _opened(self, seconds: float) -> AsyncIterator[Client]:
        """A session for as long as the context, which may take so long. Raises TimeoutError, and
        ServerFailed, also for what the server answers otherwise than it should, or not at all.
        """
        session = self._session
        if session is None or session.is_over:
            session = self._session = _Session(self.config, self._changed)
            self._tasks.start_soon(session.run)
        with session.used(), anyio.move_on_after(seconds) as patience:
            client = await session.begun()
            try:
                yield client
            except Exception as error:
                if _is_closed(error):
                    with anyio.move_on_after(LAST_WORDS):
                        await session.over.wait()  # it knows why
                if _is_lost(error):
                    session.end(reason_of(error))
                kind = SessionForgotten if _is_forgotten(error) else ServerFailed
                raise kind(session.why_over or reason_of(error)) from error
            session.answered()
        if patience.cancelled_caught:
            session.unanswered()
            raise TimeoutError

    def _changed(self) -> None:
        """It says that its tools are others now."""
        self._good_until = -math.inf


class _Session:
    """A session in a task of its own, since a library's context must end where it began."""

    def __init__(self, config: McpConfig, changed: Any) -> None:
        self._config = config
        self._changed = changed
        self._scope = anyio.CancelScope()
        self._begun = anyio.Event()
        self._client: Client | None = None
        self._users = 0
        self._in_a_row = self._unanswered = 0  # calls that took too long
        self._last = time.monotonic()
        self.is_over = False
        self.over = anyio.Event()
        self.why_over = ""
        self._why_lost = ""  # where it was before it began

    async def begun(self) -> Client:
        """Once it is. Raises ServerFailed where it can't be."""
        await self._begun.wait()
        if self._client is None:
            raise ServerFailed(self.why_over or "it was closed")
        return self._client

    @contextmanager
    def used(self) -> Iterator[None]:
        """It isn't idle meanwhile."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._last = time.monotonic()

    def answered(self) -> None:
        """Its server does what it should."""
        self._in_a_row = 0

    def unanswered(self) -> None:
        """A call took too long. What hangs stays so, and each such call may keep a connection."""
        self._in_a_row, self._unanswered = self._in_a_row + 1, self._unanswered + 1
        if self._in_a_row >= UNANSWERED_IN_A_ROW or self._unanswered >= MOST_UNANSWERED:
            self.end("it did not answer")

    def end(self, why: str) -> None:
        """It ends soon; nobody begins to use it any more."""
        self.is_over = True
        self.why_over = self.why_over or why
        self._scope.cancel()

    async def run(self) -> None:
        """To its end, on every path."""
        try:
            with self._scope:
                await self._through(_transports(self._config))
        except Exception as error:  # noqa: BLE001 - those who wait for it are told
            self.why_over = self.why_over or self._why_lost or reason_of(error)
        finally:
            self.is_over = True
            self.over.set()
            self._begun.set()
            log.debug("session ended", server=self._config.name, reason=self.why_over)

    async def _through(self, transports: Sequence[Transport]) -> None:
        """By the first of them that the server takes."""
        for number, transport in enumerate(transports, 1):
            try:
                await self._kept(transport)
            except Exception as error:
                if number == len(transports) or not _is_refused(error) or self._begun.is_set():
                    raise
                self._why_lost = ""
            else:
                return

    async def _kept(self, transport: Transport) -> None:
        patience = anyio.CancelScope(deadline=anyio.current_time() + self._config.connect_timeout)
        with patience:
            async with Client(
                sieved(transport, self._lost), message_handler=self._told, cache=None
            ) as client:
                patience.deadline = math.inf
                self._client = client
                self._begun.set()
                log.debug(
                    "session begun", server=self._config.name, protocol=client.protocol_version
                )
                await self._until_idle()
                self.is_over, self.why_over = True, "it was idle"
                patience.deadline = anyio.current_time() + LEAVING  # its server is told
        if patience.cancelled_caught and self._client is None:
            raise ServerFailed(f"it did not answer within {self._config.connect_timeout:g} seconds")

    def _lost(self, why: str) -> None:
        """Its connection has ended. Before it has begun, the library sees that too."""
        if self._begun.is_set():
            if not self.is_over:
                self.end(why)
        elif why != CLOSED:
            self._why_lost = why

    async def _until_idle(self) -> None:
        while self._users or time.monotonic() - self._last < self._config.idle:
            left = self._last + self._config.idle - time.monotonic()
            await anyio.sleep(left if left > 0 else self._config.idle)

    async def _told(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed()


def _transports(config: McpConfig) -> Sequence[Transport]:
    if config.command is not None:
        return (commanded(config),)
    kinds = {"auto": (streaming, older), "http": (streaming,), "sse": (older,)}
    return [kind(config) for kind in kinds[config.transport]]


def _leaf(error: BaseException) -> BaseException:
    """The first of a group's: task groups wrap what their tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_closed(error: Exception) -> bool:
    """The library's own word for a connection that has ended, which doesn't say why."""
    leaf = _leaf(error)
    return isinstance(leaf, MCPError) and leaf.message == "Connection closed"


def _is_forgotten(error: Exception) -> bool:
    """The server doesn't know the session; the library's own word for its status, 404."""
    leaf = _leaf(error)
    return isinstance(leaf, MCPError) and leaf.message == "Session terminated"


def _is_lost(error: Exception) -> bool:
    """The session is of no more use: another is begun for the next call."""
    leaf = _leaf(error)
    if isinstance(leaf, MCPError):
        return leaf.code == types.CONNECTION_CLOSED or _is_forgotten(error)
    return isinstance(
        leaf, httpx2.TransportError | TooMuch | CommandEnded | anyio.BrokenResourceError
    )


def _is_refused(error: Exception) -> bool:
    """The server may speak the older transport."""
    leaf = _leaf(error)
    return isinstance(leaf, MCPError | httpx2.HTTPStatusError)


def reason_of(error: BaseException) -> str:
    """Why, in one line that clients and models may read."""
    leaf = _leaf(error)
    match leaf:
        case TooMuch():
            return f"the server {leaf}"
        case MCPError(code=types.PARSE_ERROR):
            text = "the server did not answer as it should (not a message)"
        case MCPError(message=str(message)):
            text = f"the server says: {message}"
        case httpx2.HTTPStatusError():
            text = f"the server answered {leaf.response.status_code}"
        case httpx2.ConnectError() if str(leaf).startswith("its "):
            text = str(leaf)
        case httpx2.TimeoutException():
            text = "the server did not answer in time"
        case httpx2.TransportError():
            text = "the server can't be reached, or broke off"
        case ServerFailed() | CommandEnded():
            text = str(leaf)
        case _:
            text = f"the server did not answer as it should ({type(leaf).__name__})"
    return " ".join(text.split())[:LONGEST_ERROR]


def _is_shown(name: str, schema: Mapping[str, Any]) -> bool:
    """Whether a prompt can have such a tool."""
    if not name or len(name) > 128 or not name.isprintable() or _depth(schema) > DEEPEST:
        return False
    return len(msgspec.json.encode(schema)) <= LONGEST_SCHEMA


def _depth(value: Any) -> int:
    """How many objects and lists stand in each other; at most one more than is allowed."""
    depth, layer = 0, [value]
    while layer and depth <= DEEPEST:
        inside: list[Any] = []
        for each in layer:
            if isinstance(each, dict):
                inside += each.values()
            elif isinstance(each, list):
                inside += each
        layer, depth = inside, depth + 1
    return depth


def _result(found: types.CallToolResult, most: int) -> ToolResult:
    """Texts as they are; of what a model can't read, what it is."""
    text = "\n".join(map(_text, found.content))
    if not found.content and found.structured_content is not None:
        text = msgspec.json.encode(found.structured_content).decode()
    if len(text) > most:
        text = f"{text[:most]}\n[… {len(text) - most:,} more characters are left out]"
    return ToolResult(text, is_error=found.is_error)


def _text(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return f"({part.type}: {part.mime_type})"
        case types.ResourceLink():
            return f"{part.name}: {part.uri}"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.EmbeddedResource():
            return f"(a file: {part.resource.uri})"
