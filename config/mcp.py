"""MCP servers whose tools this server runs for its models: where they are, who may use which tool,
and the limits of a call.

Times are seconds, sizes are bytes.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from config.errors import Problem, Source
from config.shape import represented
from config.values import (
    HIDDEN,
    NO_HEADER,
    RUNS_CODE,
    AtLeastOne,
    Bytes,
    Name,
    PathText,
    PositiveSeconds,
    Secret,
    command_fault,
    is_header,
    requested,
)

ANY = "*"  # at the end of a URL: whatever begins as it does
OF_A_COMMAND, OF_A_LISTENER = 60.0, 10.0  # seconds to begin in
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class McpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One MCP server."""

    name: Name  # what requests and models call it; it stands before its tools' names
    # of a server that listens; with * at its end: of any that clients name
    url: Annotated[Name, HIDDEN] | None = None
    transport: Literal["auto", "http", "sse"] = "auto"  # sse: servers of before 2025
    headers: dict[Name, Secret] = {}  # of each request to it
    # of one that is started here, and asked
    command: Annotated[str, RUNS_CODE, HIDDEN] | None = None
    env: dict[Name, Secret] = {}  # what the command gets besides PATH, HOME and the like
    folder: PathText | None = None  # where the command is started; None: where this server was
    tools: tuple[Name, ...] = ()  # those that may be called; empty: all
    keys: tuple[Name, ...] = ()  # labels of the keys that may use it; empty: all
    # the tools that run only after their user has allowed the call
    require_approval: Literal["always", "never"] | tuple[Name, ...] = "never"
    allow_private_addresses: bool = False  # it may be on this machine and its network
    connect_timeout: PositiveSeconds | None = None  # None: 10, of a command 60
    timeout: PositiveSeconds = 60.0  # of one call
    idle: PositiveSeconds = 600.0  # after which its session, or its process, is ended
    refresh: PositiveSeconds = 300.0  # between two requests for its tools, at most
    parallel: AtLeastOne = 8  # calls at a time; more wait
    max_message: Bytes = 4 * 1024 * 1024  # of one message of the server; a longer one fails
    max_output: AtLeastOne = 32_768  # characters of a result that the model is shown
    max_tools: AtLeastOne = 128  # that are shown; more are left out

    __repr__ = represented

    @property
    def is_open(self) -> bool:
        """Clients name the server themselves."""
        return self.url is not None and self.url.endswith(ANY)

    @property
    def patience(self) -> float:
        """How long a session may take to begin: a first npx or uvx fetches its program."""
        if self.connect_timeout is not None:
            return self.connect_timeout
        return OF_A_COMMAND if self.command is not None else OF_A_LISTENER

    def serves(self, url: str) -> bool:
        """Whether a client that names `url` means this one."""
        if self.url is None:
            return False
        if self.is_open:
            return url.startswith(self.url.removesuffix(ANY))
        return url.rstrip("/") == self.url.rstrip("/")

    def needs_approval(self, tool: str) -> bool:
        """Whether `tool` runs only after its user has allowed the call."""
        if isinstance(self.require_approval, str):
            return self.require_approval == "always"
        return tool in self.require_approval


def check_servers(servers: tuple[McpConfig, ...], labels: Sequence[str], source: Source) -> None:
    """`labels`: of the API keys. Raises ConfigError, which never quotes a secret."""
    source.refuse_twins("mcp", (server.name for server in servers))
    for index, server in enumerate(servers):
        source.refuse(f"$.mcp[{index}]", _problems(server, labels))


def _problems(server: McpConfig, labels: Sequence[str]) -> Iterator[Problem]:
    """What is inconsistent, and where."""
    if not _NAME.fullmatch(server.name):
        yield "name", "expected letters, digits, - and _, 64 at most: tools are called by it"
    if (server.url is None) == (server.command is None):
        yield "url", "expected either the `url` of a server that listens, or a `command`"
    if server.url is not None:
        yield from _problems_of_url(server.url)
    if server.command is not None and (problem := command_fault(lambda: words(server))):
        yield "command", problem
    if server.headers and server.is_open and not urlsplit(server.url or "").netloc.strip(ANY):
        yield "headers", "any server that a client names would get them"
    for name, value in server.headers.items():
        if not is_header(name, value):
            yield f"headers.{name}", NO_HEADER
    for k, label in enumerate(server.keys):
        if label not in labels:
            yield f"keys[{k}]", f"no key has the label {label!r}"


def _problems_of_url(url: str) -> Iterator[Problem]:
    begun = url.removesuffix(ANY)
    is_any = begun != url and begun.endswith("://")
    try:
        parts = requested(f"{begun}any" if is_any else begun)
    except ValueError as error:
        yield "url", str(error)
        return
    if begun != url and not (is_any or parts.path):
        yield "url", "write a / before the *, else other hosts begin so, too"
    if parts.username is not None or parts.password is not None:
        yield "url", "a URL holds no secrets here; write `headers` instead"


def words(server: McpConfig) -> tuple[str, ...]:
    """The command line, as it is executed. No shell reads it."""
    return tuple(shlex.split(server.command or ""))
