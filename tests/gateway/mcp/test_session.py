"""One MCP server: sessions over a command's input and output, and servers that mean ill. A failure
is a result that the model reads, and the next call begins anew.
"""

import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from config.mcp import McpConfig
from gateway.mcp.session import McpServer, ServerFailed
from gateway.terms.tasks import companions
from tests.hang import HANG
from tests.mcp_servers.hostile_http import FORGETTING
from tests.mcp_servers.hostile_http import hostile as hostile_over_http
from tests.served import ROOT

pytestmark = pytest.mark.anyio
NEVER = 3600.0  # seconds


def command(*words: str) -> str:
    return shlex.join((sys.executable, "-m", *words))


def hostile(kind: str, **options: Any) -> McpConfig:
    return McpConfig(
        name="hostile",
        command=command("tests.mcp_servers.hostile", *kind.split()),
        folder=str(ROOT),
        **{"timeout": HANG, "connect_timeout": HANG, **options},
    )


@asynccontextmanager
async def opened(config: McpConfig) -> AsyncIterator[McpServer]:
    async with companions() as tasks:
        yield McpServer(config, tasks)


async def test_a_server_without_faults() -> None:
    async with opened(hostile("none")) as server:
        assert [tool.name for tool in (await server.tools()).tools] == ["call"]
        result = await server.call("call", {})
        assert (result.text, result.is_error) == ("fine", False)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dies", "its command has ended"),
        ("endless line", "sent a message of more than"),
        ("endless notices", "that nobody asked for"),
        ("endless requests", "that nobody asked for"),
        ("foreign answers", "that nobody asked for"),
        ("malformed", "did not answer as it should"),
    ],
)
async def test_what_a_server_does_wrong_is_said_to_the_model(kind: str, reason: str) -> None:
    async with opened(hostile(kind, max_message=1 << 20)) as server:
        result = await server.call("call", {})
        assert result.is_error
        assert reason in result.text
        assert "secret" not in result.text  # what it printed is for the log
        assert [tool.name for tool in (await server.tools()).tools] == [
            "call"
        ]  # in another session


def at(url: str, **options: Any) -> McpConfig:
    times = {"timeout": HANG, "connect_timeout": HANG, **options}
    return McpConfig(name="hostile", url=url, allow_private_addresses=True, **times)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("endless body", "sent a message of more than 1,048,576 bytes"),
        ("endless event", "exceeded the 1048576 byte limit"),
        ("compressed", "sends what is compressed"),
        ("elsewhere", "not followed"),
        ("closes", "not a message"),
        ("a page", "text/html"),
        ("forgets", "404: it doesn't know the session"),
    ],
)
async def test_what_a_server_does_wrong_over_http_is_said_to_the_model(
    kind: str, reason: str
) -> None:
    async with hostile_over_http(kind) as listening:
        async with opened(at(listening.url, max_message=1 << 20)) as server:
            result = await server.call("call", {})
            assert result.is_error
            assert reason in result.text
            assert [tool.name for tool in (await server.tools()).tools] == ["call"]


@pytest.mark.parametrize("kind", ["endless comments", "silence"])
async def test_what_hangs_is_begun_anew(kind: str) -> None:
    """After the second call in a row: each keeps a connection of its session."""
    async with hostile_over_http(kind) as listening:
        async with opened(at(listening.url, timeout=0.2, refresh=0.001)) as server:
            await server.tools()
            for _ in range(2):
                assert "longer than 0.2 seconds" in (await server.call("call", {})).text
            await server.tools()
            assert listening.methods.count("initialize") == 2


async def test_the_stream_of_a_call_that_took_too_long_is_not_read_on() -> None:
    """Nor taken up again: the server had given it a number."""
    async with hostile_over_http("endless comments") as listening:
        async with opened(at(listening.url, timeout=0.2)) as server:
            assert "longer than 0.2 seconds" in (await server.call("call", {})).text
            with anyio.fail_after(HANG):
                while listening.read:
                    await anyio.sleep(0.01)
            await server.tools()
            assert listening.methods.count("initialize") == 1, "the session goes on"
            assert "notifications/cancelled" in listening.methods
            assert listening.methods.count("GET") <= 1


@pytest.mark.parametrize("kind", FORGETTING)
async def test_a_call_is_repeated_where_the_server_had_forgotten_the_session(kind: str) -> None:
    """As after its restart: it was not carried out. Each says so in another way."""
    async with hostile_over_http(kind) as listening:
        async with opened(at(listening.url)) as server:
            assert (await server.call("call", {})).text == "fine"
            assert listening.methods.count("initialize") == 2


async def test_a_call_that_was_read_and_refused_is_not_repeated() -> None:
    async with hostile_over_http("wrong arguments") as listening:
        async with opened(at(listening.url)) as server:
            assert (await server.call("call", {})).text == "Error: the server says: no city"
            assert [listening.methods.count(name) for name in ("initialize", "tools/call")] == [
                1,
                1,
            ]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("401", r"answered 401: it wants a token \(headers\.Authorization; OAuth"),
        ("403", "answered 403: it refuses this token"),
        ("404", "answered 404: nothing is at this URL"),
        ("429", "answered 429: it gets too many requests"),
        ("503", "answered 503: it is overloaded"),
        ("a page for all", "answered with text/html"),
    ],
)
async def test_failures_of_http_say_what_they_mean(kind: str, reason: str) -> None:
    """The older transport is tried where the server may not know the newer one, and never
    hides what that was told.
    """
    async with hostile_over_http(kind) as listening:
        async with opened(at(listening.url)) as server:
            with pytest.raises(ServerFailed, match=reason):
                await server.tools()
        assert ("GET" in listening.methods) == (kind == "404")
        (agent,) = listening.agents
        assert agent.startswith("roundhouse/")


async def test_an_answer_by_another_name_is_an_answer() -> None:
    """Over HTTP it is known what it answers."""
    async with hostile_over_http("foreign id") as listening:
        async with opened(at(listening.url)) as server:
            assert (await server.call("call", {})).text == "fine"


@pytest.mark.parametrize("how", ["ends", "is taken from the configuration"])
async def test_a_server_is_told_that_its_session_ends(how: str) -> None:
    async with hostile_over_http("none") as listening:
        async with opened(at(listening.url)) as server:
            await server.tools()
            if how != "ends":
                server.close()
                with anyio.fail_after(HANG):
                    while "DELETE" not in listening.methods:
                        await anyio.sleep(0.01)
        assert listening.methods.count("DELETE") == 1


async def test_a_server_is_told_that_its_idle_session_ends() -> None:
    async with hostile_over_http("none") as listening:
        async with opened(at(listening.url, idle=0.05)) as server:
            await server.tools()
            with anyio.fail_after(HANG):
                while "DELETE" not in listening.methods:
                    await anyio.sleep(0.01)


async def test_who_waits_for_a_list_beside_others_is_told_with_them() -> None:
    """A server that hangs holds up ten chats as long as one, and the next ones not at all."""
    found: list[str] = []

    async def ask(server: McpServer) -> None:
        with pytest.raises(ServerFailed) as raised:
            await server.tools()
        found.append(str(raised.value))

    async with opened(hostile("never begins", connect_timeout=1.0)) as server:
        with anyio.fail_after(8):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(ask, server)
            await ask(server)
    assert found == ["it did not answer within 1 seconds"] * 11


async def test_a_call_that_is_never_answered_ends_in_time() -> None:
    async with opened(hostile("never answers", timeout=0.3)) as server:
        await server.tools()
        result = await server.call("call", {})
    assert result.is_error
    assert "longer than 0.3 seconds" in result.text


async def test_a_server_that_never_begins_is_given_up() -> None:
    async with opened(hostile("never begins", connect_timeout=0.3)) as server:
        with pytest.raises(ServerFailed, match=r"within 0\.3 seconds"):
            await server.tools()


async def test_a_server_that_is_silent_to_the_newest_protocol_is_asked_by_an_older_one() -> None:
    async with opened(hostile("silent", connect_timeout=2.0)) as server:
        assert (await server.call("call", {})).text == "fine"


async def test_a_command_may_take_a_minute_to_begin() -> None:
    """The first time npx and uvx fetch it."""
    assert (McpConfig(name="x", command="npx x").patience, hostile("none").patience) == (60, HANG)
    assert McpConfig(name="x", url="https://example.com/mcp").patience == 10


async def test_a_command_that_is_not_there() -> None:
    async with opened(McpConfig(name="x", command="npxx -y server")) as server:
        with pytest.raises(ServerFailed, match="its command was not found: npxx"):
            await server.tools()


async def test_a_malformed_tool_takes_no_other_with_it() -> None:
    async with opened(hostile("malformed tools")) as server:
        listing = await server.tools()
        assert (await server.call("whole", {})).text == "fine"
    assert [tool.name for tool in listing.tools] == [
        *("whole", "missing", "null", "empty", "no type", "php", "number"),
    ]
    assert [
        tool.input_schema for tool in listing.tools if "properties" not in tool.input_schema
    ] == [{"type": "object"}] * 6
    assert set(listing.left_out) == {"hopeless", ""}
    assert "properties.a" in listing.left_out["hopeless"]


async def test_names_and_titles_keep_their_meaning() -> None:
    async with opened(hostile("titles")) as server:
        listing = await server.tools()
    assert {tool.name: tool.description for tool in listing.tools} == {
        "日本": "Weather of Japan: By city.",
        "données": "données",
        "get_time": "",
    }
    assert listing.left_out == {"later": "it has to be run as a task, which isn't done here"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("structured alone", '{"x":1}'),
        ("structured and null", '{"x":1}'),
        ("null error", "fine"),
        ("unknown part", '{"type":"hologram","depth":3}\nfine'),
        ("scant beginning", "fine"),
        ("progress", "fine"),
        ("empty cursor", "fine"),
    ],
)
async def test_what_is_slightly_off_keeps_its_text(kind: str, text: str) -> None:
    async with opened(hostile(kind)) as server:
        assert [tool.name for tool in (await server.tools()).tools] == ["call"]
        result = await server.call("call", {})
        assert (result.text, result.is_error) == (text, False)


async def test_a_version_that_is_not_known_is_said() -> None:
    async with opened(hostile("unknown version")) as server:
        with pytest.raises(ServerFailed, match="1999-01-01"):
            await server.tools()


async def test_a_page_that_the_server_wants_opened_is_told() -> None:
    async with opened(hostile("log in first")) as server:
        result = await server.call("call", {})
    assert result.text == "Error: the server says: Log in. (open https://example.com/login)"


@pytest.mark.parametrize("kind", ["long once", "long once, as Python writes"])
async def test_a_message_that_is_too_long_costs_its_call_alone(kind: str) -> None:
    async with opened(hostile(kind, max_message=1 << 20)) as server:
        before = children()
        result = await server.call("call", {})
        assert "sent a message of more than 1,048,576 bytes" in result.text
        started = children() - before
        assert (await server.call("call", {})).text == "fine"
        assert started <= children(), "the process stays"


async def test_tools_that_no_prompt_can_have_are_left_out() -> None:
    async with opened(hostile("names")) as server:
        assert [tool.name for tool in (await server.tools()).tools] == [
            "one tool",
            "one.tool",
            "one_tool",
        ]
    for kind in ("long schema", "deep schema"):
        async with opened(hostile(kind)) as server:
            assert [tool.name for tool in (await server.tools()).tools] == ["small"]


async def test_lists_are_bounded() -> None:
    async with opened(hostile("many", max_tools=7)) as server:
        listing = await server.tools()
        assert len(listing.tools) == 7
        assert "max_tools" in listing.left_out["t7"]
    async with opened(hostile("one cursor")) as server:
        assert [tool.name for tool in (await server.tools()).tools] == ["t1", "t2"]
    async with opened(hostile("endless pages")) as server:
        assert 1 <= len((await server.tools()).tools) <= 128


async def test_a_result_is_not_held_to_a_servers_own_schema() -> None:
    """Its pattern would take years, on the event loop."""
    async with opened(hostile("slow pattern")) as server:
        await server.tools()
        result = await server.call("call", {})
    assert not result.is_error
    assert "aaaa" in result.text


async def test_results_are_cut_and_what_is_no_text_is_named() -> None:
    async with opened(hostile("long", max_output=100)) as server:
        result = await server.call("call", {})
        assert result.text == "x" * 100 + "\n[… 99,900 more characters are left out]"
    async with opened(hostile("other parts")) as server:
        result = await server.call("call", {})
        assert result.text == "(image: image/png)\na: file:///a\ninside"


async def test_an_allowed_list_is_all_that_may_be_called() -> None:
    async with opened(hostile("many", tools=("t3", "t9"))) as server:
        assert [tool.name for tool in (await server.tools()).tools] == ["t3", "t9"]


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def test_nothing_is_left_of_a_command() -> None:
    before = children()
    async with opened(hostile("never answers", timeout=NEVER)) as server:
        await server.tools()
        assert children() - before
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.call, "call", {})
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert not children() - before


@pytest.mark.parametrize("steps", range(0, 60, 6))
async def test_who_leaves_leaves_a_server_that_works(steps: int) -> None:
    """A caller is cancelled at any await: opening, listing, calling."""
    async with opened(hostile("none")) as server:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.tools)
                tasks.start_soon(server.call, "call", {})
                for _ in range(steps):
                    await anyio.sleep(0.002)
                scope.cancel()
        assert (await server.call("call", {})).text == "fine"
        assert [tool.name for tool in (await server.tools()).tools] == ["call"]


async def test_an_idle_session_ends_and_another_begins() -> None:
    before = children()
    async with opened(hostile("none", idle=0.05)) as server:
        await server.call("call", {})
        with anyio.fail_after(HANG):
            while children() - before:
                await anyio.sleep(0.01)
        assert (await server.call("call", {})).text == "fine"


async def test_private_addresses_are_refused_unless_configured() -> None:
    async with opened(McpConfig(name="x", url="http://127.0.0.1:9/mcp")) as server:
        with pytest.raises(ServerFailed, match="address is private"):
            await server.tools()
        result = await server.call("call", {})
    assert "address is private" in result.text


async def test_what_changes_while_tools_are_listed_is_listed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed, pages = 0, McpServer._pages  # noqa: SLF001

    async def interrupted(server: McpServer, client: Any) -> Any:
        nonlocal listed
        listed += 1
        found = await pages(server, client)
        if listed == 1:
            server._changed()  # noqa: SLF001 - as where it is told between the list and its end
        return found

    monkeypatch.setattr(McpServer, "_pages", interrupted)
    async with opened(hostile("none", refresh=NEVER)) as server:
        for expected in (1, 2, 2):
            await server.tools()
            assert listed == expected


@pytest.mark.parametrize("good_for", ["0", "3600000"])  # the latter: it must tell
@pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
async def test_tools_of_a_server_of_2026_that_are_others_now_are_seen(
    transport: str, good_for: str
) -> None:
    async with honest(transport, {"GOOD_FOR": good_for}, refresh=NEVER) as server:
        names = {tool.name for tool in (await server.tools()).tools}
        assert "grown" not in names
        assert (await server.call("grow", {})).text == "grown"
        with anyio.fail_after(HANG):
            while {tool.name for tool in (await server.tools()).tools} != {*names, "grown"}:
                await anyio.sleep(0.01)


@asynccontextmanager
async def honest(
    transport: str, variables: dict[str, str], **options: Any
) -> AsyncIterator[McpServer]:
    """The SDK's own server, as a command or over HTTP."""
    line = command("tests.mcp_servers.honest", transport)
    if transport == "stdio":
        times = {"timeout": HANG, "connect_timeout": HANG, **options}
        config = McpConfig(name="honest", command=line, folder=str(ROOT), env=variables, **times)
        async with opened(config) as server:
            yield server
        return
    there = os.environ | variables
    async with await anyio.open_process(shlex.split(line), cwd=ROOT, env=there) as process:
        assert process.stdout is not None
        try:
            url = (await process.stdout.receive()).decode().strip()
            async with opened(at(url, **options)) as server:
                yield server
        finally:
            process.kill()
