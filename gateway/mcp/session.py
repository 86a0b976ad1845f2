"""One MCP server: its session, begun when it is first asked for and again when it was lost, its
tools, its calls.

A failure never ends a request: a call's is a result that the model can read, a list's an error that
names the server.
"""

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import anyio
import httpx2
import mcp_types as types
import msgspec
import structlog
from anyio.abc import TaskGroup
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from config.mcp import McpConfig
from config.product import VERSION
from gateway.constraints.effort import level_sizes, values_in
from gateway.mcp.connections import (
    CLOSED,
    FAILED,
    FORGOTTEN,
    STATUS,
    CommandEnded,
    TooMuch,
    Transport,
    commanded,
    meaning,
    older,
    sieved,
    streaming,
)
from gateway.mcp.mending import LEFT_OUT, why_not
from gateway.terms.tasks import companions

T = TypeVar("T")
Ask: TypeAlias = Callable[[ClientSession], Awaitable[T]]

MOST_PAGES, MOST_LEFT_OUT = 32, 64  # of a list
LONGEST_SCHEMA = 64 << 10  # bytes of a tool's
LONGEST_DESCRIPTION = 4_096  # characters
LONGEST_ERROR = 600
LAST_WORDS = 1.0  # seconds in which a session that was lost may say why
PROBING = 3.0  # seconds in which a server of 2026 answers; others may be silent
LEAVING = 2.0  # seconds that the end of a session may take
LISTENING_AGAIN = 30.0  # seconds after which a server is asked again to tell of changes
UNANSWERED_IN_A_ROW, MOST_UNANSWERED = 2, 32  # calls, after which a session is of no more use
# A failure to list tools is kept so many times as long as it took to come: who asks meanwhile is
# told at once, so a server that hangs holds up a chat now and then, and not each.
KEPT_FAILURE, LONGEST_KEPT = 6.0, 60.0  # seconds at most
NOT_TAKEN = (400, 404, 405)  # by servers of before 2025 (2026-07-28, "Backward Compatibility")
DEEPEST = 32  # values in each other, of a schema: JSON's reader takes 200
WHO = types.Implementation(name="roundhouse", version=VERSION)

log = structlog.get_logger(__name__)


class ServerFailed(Exception):
    """A server can't be asked for its tools. The message says why, for its users."""


class SessionForgotten(ServerFailed):
    """It says that it doesn't know the session: it did nothing."""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its server describes it, and as OpenAI's list has it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Mapping[str, Any] | None = None


class Listing(msgspec.Struct, frozen=True):
    """The tools of a server, and why others of it can't be called, by their names."""

    tools: Sequence[ListedTool] = ()
    left_out: Mapping[str, str] = {}


class ToolResult(msgspec.Struct, frozen=True):
    """What the model is told. `pictures`: as `data:` URLs, for models that see; the text names
    them.
    """

    text: str
    is_error: bool = False
    pictures: tuple[str, ...] = ()


class McpServer:
    """One server, for all requests. `tasks` outlives every call."""

    def __init__(self, config: McpConfig, tasks: TaskGroup) -> None:
        self.config = config
        self._tasks = tasks
        self._session: _Session | None = None
        self._calls = anyio.Semaphore(config.parallel)
        self._listing = anyio.Lock()
        self._listed: Listing | ServerFailed = Listing()
        self._good_until = -math.inf
        self._changes = 0  # that its server told

    def close(self) -> None:
        """Its session ends; a call that is under way fails."""
        if self._session is not None:
            self._session.end("it was closed")

    async def tools(self) -> Listing:
        """Those that may be called. Raises ServerFailed."""
        asked = time.monotonic()
        async with self._listing:
            if asked >= self._good_until:
                began, changes = time.monotonic(), self._changes
                try:
                    seconds = self.config.patience + self.config.timeout
                    late = "it did not list its tools in time"
                    self._listed, good = await self._asked(seconds, late, self._pages)
                except ServerFailed as error:
                    self._listed = error
                    good = min(KEPT_FAILURE * (time.monotonic() - began), LONGEST_KEPT)
                if changes == self._changes:  # what changed meanwhile may not be in the list
                    self._good_until = time.monotonic() + good
            if isinstance(self._listed, ServerFailed):
                raise ServerFailed(str(self._listed)) from self._listed
            return self._listed

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Never raises but for a cancellation."""
        async with self._calls:
            began, seconds = time.monotonic(), self.config.timeout
            late = f"the tool took longer than {seconds:g} seconds."
            try:
                found = await self._asked(
                    seconds, late, lambda client: self._answer(client, tool, dict(arguments))
                )
                result = _result(found, self.config.max_output)
            except ServerFailed as error:
                result = ToolResult(f"Error: {error}", is_error=True)
        log.info(
            "tool called",
            server=self.config.name,
            tool=tool,
            failed=result.is_error,
            seconds=round(time.monotonic() - began, 3),
        )
        return result

    async def _answer(
        self, client: ClientSession, tool: str, arguments: dict[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        try:
            return await client.call_tool(tool, arguments, allow_input_required=True)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
            await self._pages(client)  # the list says which arguments it wants in headers, too
            return await client.call_tool(tool, arguments, allow_input_required=True)

    async def _pages(self, client: ClientSession) -> tuple[Listing, float]:
        """The tools, and for how many seconds they are good."""
        found: dict[str, ListedTool] = {}
        left_out: dict[str, str] = {}
        good, cursor, seen = self.config.refresh, "", {""}  # an empty cursor is none
        while len(seen) <= MOST_PAGES and len(left_out) < MOST_LEFT_OUT:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await client.list_tools(params=params)
            for tool in page.tools:
                if self.config.tools and tool.name not in self.config.tools:
                    continue
                listed = _listed(tool)
                if isinstance(listed, ListedTool) and len(found) >= self.config.max_tools:
                    listed = f"there are more than {self.config.max_tools} (max_tools)"
                if isinstance(listed, str):
                    left_out.setdefault(tool.name[:64], listed)
                else:
                    found.setdefault(listed.name, listed)
            if "ttl_ms" in page.model_fields_set:
                good = min(good, page.ttl_ms / 1000)
            cursor = page.next_cursor or ""
            if cursor in seen:
                break
            seen.add(cursor)
        if left_out:
            log.warning("tools left out", server=self.config.name, tools=left_out)
        return Listing(tuple(found.values()), left_out), good

    async def _asked(self, seconds: float, late: str, ask: Ask[T]) -> T:
        """What the server answers within `seconds`; it is asked once more where it has forgotten
        the session, as after a restart, since it did nothing then. Raises as `_answered`.
        """
        with suppress(SessionForgotten):
            return await self._answered(seconds, late, ask)
        return await self._answered(seconds, late, ask)

    async def _answered(self, seconds: float, late: str, ask: Ask[T]) -> T:
        """What is answered within `seconds` once a session has begun. Raises ServerFailed: `late`,
        or for what the server answers otherwise than it should, or not at all.
        """
        session = self._session
        if session is None or session.is_over:
            session = self._session = _Session(self.config, self._changed)
            self._tasks.start_soon(session.run)
        with session.used():
            client = await session.begun()
            with anyio.move_on_after(seconds):
                try:
                    found = await ask(client)
                except Exception as error:
                    if _is_closed(error):
                        with anyio.move_on_after(LAST_WORDS):
                            await session.over.wait()  # it knows why
                    if _is_lost(error):
                        session.end(reason_of(error))
                    kind = SessionForgotten if _data(error).get(FORGOTTEN) is True else ServerFailed
                    raise kind(session.why_over or reason_of(error)) from error
                session.answered()
                return found
        session.unanswered()
        raise ServerFailed(late)

    def _changed(self) -> None:
        """It says that its tools are others now."""
        self._changes += 1
        self._good_until = -math.inf


class _Client(ClientSession):
    """The library's, which would hold results to their server's own schemas: on the event loop,
    however long a pattern takes.
    """

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """It stays as it is."""

    async def begin(self, patience: float) -> None:
        """By the protocol of 2026, or by that of before where the server is silent to it."""
        with (
            suppress(MCPError, ValidationError, RuntimeError),
            anyio.move_on_after(min(PROBING, patience / 2)),
        ):
            await self.discover()
            return
        try:
            await self.initialize()
        except RuntimeError as error:
            raise ServerFailed(f"{error}") from error
        except MCPError as error:  # it began so slowly that it read the other question first
            if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await self.discover()


class _Session:
    """A session in a task of its own, since a library's context must end where it began."""

    def __init__(self, config: McpConfig, changed: Any) -> None:
        self._config = config
        self._changed = changed
        self._scope = anyio.CancelScope(shield=True)  # its server is told, however it ends
        self._begun = anyio.Event()
        self._idle = anyio.CancelScope(deadline=anyio.current_time() + config.idle)
        self._client: _Client | None = None
        self._users = 0
        self._in_a_row = self._unanswered = 0  # calls that took too long
        self.over = anyio.Event()
        self.why_over = ""
        self._why_lost = ""  # where it was before it began

    @property
    def is_over(self) -> bool:
        """Nobody begins to use it any more."""
        return self._idle.cancel_called

    async def begun(self) -> _Client:
        """Once it is. Raises ServerFailed where it can't be."""
        await self._begun.wait()
        if self._client is None:
            raise ServerFailed(self.why_over)
        return self._client

    @contextmanager
    def used(self) -> Iterator[None]:
        """It isn't idle meanwhile."""
        self._users += 1
        self._idle.deadline = math.inf
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._idle.deadline = anyio.current_time() + self._config.idle

    def answered(self) -> None:
        """Its server does what it should."""
        self._in_a_row = 0

    def unanswered(self) -> None:
        """A call took too long. What hangs stays so, and each such call may keep a connection."""
        self._in_a_row, self._unanswered = self._in_a_row + 1, self._unanswered + 1
        if self._in_a_row >= UNANSWERED_IN_A_ROW or self._unanswered >= MOST_UNANSWERED:
            self.end("it did not answer")

    def end(self, why: str) -> None:
        """It ends soon."""
        self.why_over = self.why_over or why
        if self._client is None:
            self._scope.cancel()
        self._idle.cancel()

    async def run(self) -> None:
        """To its end, on every path."""
        try:
            async with companions() as tasks:
                tasks.start_soon(self._until_cancelled)
                try:
                    with self._scope:
                        await self._through(_transports(self._config))
                except Exception as error:  # noqa: BLE001 - those who wait for it are told
                    self.why_over = self.why_over or self._why_lost or reason_of(error)
        finally:
            self.end("it was closed")
            self.over.set()
            self._begun.set()
            log.debug("session ended", server=self._config.name, reason=self.why_over)

    async def _through(self, transports: Sequence[Transport]) -> None:
        """By the first of them that the server takes. Where it takes none, what it said first
        counts.
        """
        first: Exception | None = None
        for transport in transports:
            try:
                await self._kept(transport)
            except Exception as error:
                first = first or error
                refused = _data(error).get(STATUS) in NOT_TAKEN
                if transport is transports[-1] or not refused or self._begun.is_set():
                    raise first from error
                self._why_lost = ""
            else:
                return

    async def _kept(self, transport: Transport) -> None:
        seconds = self._config.patience
        with anyio.move_on_after(seconds) as patience:
            async with (
                sieved(transport, self._lost) as sieve,
                _Client(dispatcher=sieve, message_handler=self._told, client_info=WHO) as client,
            ):
                await client.begin(seconds)
                patience.deadline = math.inf
                self._client = client
                self._begun.set()
                log.debug(
                    "session begun", server=self._config.name, protocol=client.protocol_version
                )
                await self._through_use(client, patience)
        if patience.cancelled_caught and self._client is None:
            raise ServerFailed(f"it did not answer within {seconds:g} seconds")

    async def _through_use(self, client: _Client, patience: anyio.CancelScope) -> None:
        async with companions() as tasks:
            offered = client.server_capabilities
            if client.discover_result is not None and offered and offered.tools:  # as it is mended
                tasks.start_soon(self._listen, client)
            try:
                with self._idle:
                    await anyio.sleep_forever()
                self.end("it was idle")
            finally:
                patience.deadline = anyio.current_time() + LEAVING

    async def _until_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self.end("it was closed")

    async def _listen(self, client: _Client) -> None:
        while True:
            try:
                async with listen(client, tools_list_changed=True) as changes:
                    self._changed()  # as they may have before it told
                    async for _ in changes:
                        self._changed()
            except SubscriptionLost:
                self._changed()  # as they may have meanwhile
            except MCPError:
                return  # it doesn't, though it said so
            await anyio.sleep(LISTENING_AGAIN)

    def _lost(self, why: str) -> None:
        """Its connection has ended. Before it has begun, the library sees that too."""
        if self._begun.is_set():
            self.end(why)
        elif why != CLOSED:
            self._why_lost = why

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


def _data(error: Exception) -> Mapping[str, Any]:
    """What an error of JSON-RPC has to say for programs."""
    leaf = _leaf(error)
    return leaf.data if isinstance(leaf, MCPError) and isinstance(leaf.data, dict) else {}


def _is_lost(error: Exception) -> bool:
    """The session is of no more use: another is begun for the next call."""
    broken = httpx2.TransportError | TooMuch | CommandEnded | anyio.BrokenResourceError
    return isinstance(_leaf(error), broken) or _data(error).get(FORGOTTEN) is True


def reason_of(error: BaseException) -> str:
    """Why, in one line that clients and models may read."""
    leaf = _leaf(error)
    match leaf:
        case TooMuch():
            return f"the server {leaf}"
        case MCPError(code=types.PARSE_ERROR):
            text = "the server did not answer as it should (not a message)"
        case MCPError(code=code, message=str(message)):
            text = message if code == FAILED else f"the server says: {message}"
            text = " ".join((text, *_pages_to_open(leaf.data)))
        case httpx2.HTTPStatusError():
            text = meaning(leaf.response.status_code)
        case httpx2.ConnectError() if str(leaf).startswith("its "):
            text = str(leaf)
        case httpx2.TimeoutException():
            text = "the server did not answer in time"
        case httpx2.TransportError():
            text = "the server can't be reached, or broke off"
        case ServerFailed() | CommandEnded():
            text = str(leaf)
        case ValidationError():
            text = f"the server did not answer as it should ({why_not(leaf)})"
        case _:
            text = f"the server did not answer as it should ({type(leaf).__name__})"
    return " ".join(text.split())[:LONGEST_ERROR]


def _pages_to_open(asked: Any) -> Iterator[str]:
    """Pages that a server wants its user to visit first, as to log in there."""
    match asked:
        case {"elicitations": [*pages]}:
            for page in pages:
                if isinstance(page, dict) and "url" in page:
                    yield f"(open {page['url']})"


def _listed(tool: types.Tool) -> ListedTool | str:
    """The tool, or why no prompt can have it."""
    if why := (tool.meta or {}).get(LEFT_OUT):
        return str(why)
    name, schema = tool.name, tool.input_schema
    if not name or len(name) > 128 or not name.isprintable():
        return "its name is empty, too long, or not printable"
    too_deep = len(level_sizes(schema, values_in)) > DEEPEST
    if too_deep or len(msgspec.json.encode(schema)) > LONGEST_SCHEMA:
        return "its schema is too long, or too deep"
    hints = tool.annotations
    title = tool.title or (hints and hints.title) or name
    said = tool.description or ""
    if _plain(title) != _plain(name) or not name.isascii():
        said = f"{title}: {said}" if said else title
    return ListedTool(
        name=name,
        description=said[:LONGEST_DESCRIPTION],
        input_schema=schema,
        annotations=hints.model_dump(by_alias=True, exclude_none=True) if hints else None,
    )


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def _result(found: types.CallToolResult | types.InputRequiredResult, most: int) -> ToolResult:
    """Its parts are texts and pictures by now (`mended`)."""
    if isinstance(found, types.InputRequiredResult):
        asked = (found.input_requests or {}).values()
        pages = [ask.model_dump(by_alias=True)["params"] for ask in asked]
        text = "Error: it asks its user first, which isn't possible here"
        said = " ".join((text, *_pages_to_open({"elicitations": pages})))
        return ToolResult(said[:LONGEST_ERROR], is_error=True)
    images = [part for part in found.content if isinstance(part, types.ImageContent)]
    text = "\n".join(map(_text, found.content))
    if len(text) > most:
        text = f"{text[:most]}\n[… {len(text) - most:,} more characters are left out]"
    pictures = tuple(f"data:{part.mime_type};base64,{part.data}" for part in images)
    return ToolResult(text, found.is_error, pictures)


def _text(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent():
            return f"(image: {part.mime_type})"
    return ""
