"""Tools of MCP servers in a chat: chosen, asked about before they run, and what they said."""

import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import Held, OpenPage, Stand
from tests.browser.standin import StandIn
from tests.browser.test_chat import CHAT, bodies
from tests.browser.test_pages import check
from tests.hang import HANG
from tests.promises.test_mcp import LINES, script
from tests.served import ROOT, served

pytestmark = pytest.mark.browser

Shoot = Callable[[Page, str], None]
TOOLS, CALL = ("GET", "/v1/admin/mcp/tools"), ("POST", "/v1/admin/mcp/call")
MARK = "<img src=x onerror=alert(1)>"


def tool(name: str, **more: Any) -> dict[str, Any]:
    described = {"description": f"Finds pages {MARK}", "parameters": {"type": "object"}}
    return {"name": name, "function": f"search__{name}", **described, "asks": False,
            "reads_only": True, **more}  # fmt: skip


def calls(*names: str) -> dict[str, Any]:
    """A delta that calls tools."""
    return {
        "tool_calls": [
            {"index": index, "id": f"call_{index}", "type": "function",
             "function": {"name": name, "arguments": '{"q": "Bern"}'}}
            for index, name in enumerate(names)
        ]
    }  # fmt: skip


def answering(*names: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Calls tools until there is a result, then says what it was."""

    def stream(body: Any) -> Iterator[dict[str, Any]]:
        last = body["messages"][-1]
        told = last["role"] == "tool"
        delta = {"content": f"It said: {last['content']}"} if told else calls(*names)
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        finish = "stop" if told else "tool_calls"
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}

    return stream


@pytest.fixture
def server(stand: Stand) -> StandIn:
    return stand(
        answers={
            TOOLS: {"server": "search", "tools": [tool("find"), tool("buy", asks=True)]},
            CALL: {"text": "Rain.", "is_error": False},
            CHAT: answering("search__find"),
        }
    )


def choose(page: Page) -> None:
    page.get_by_label("Tools", exact=True).click()
    page.get_by_role("menuitem", name="search").click()
    expect(page.get_by_label("Tools: search")).to_be_visible()


def ask(page: Page) -> None:
    page.get_by_label("Message", exact=True).fill("The weather?")
    page.keyboard.press("Enter")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_call_runs_once_its_user_allows_it(
    width: int, theme: str, server: StandIn, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(server.url, width=width, theme=theme)
    choose(page)
    ask(page)
    waiting = page.get_by_label("Call of find")
    expect(waiting).to_contain_text(MARK)
    assert page.locator("#app img").count() == 0
    assert not [one for one in server.calls if one[1] == CALL[1]]
    check(page)
    shoot(page, f"tools-asks-{width}-{theme}")
    waiting.get_by_text("Run", exact=True).click()
    expect(page.locator(".answer").last).to_contain_text("It said: Rain.")
    expect(page.get_by_label("Result", exact=True)).to_have_text("Rain.")
    order = {"server": "search", "tool": "find", "arguments": {"q": "Bern"}}
    assert server.sent(*CALL) == [order]
    first, second = bodies(server)
    named = [one["function"]["name"] for one in first["tools"]]
    assert named == ["search__find", "search__buy"]
    told = {"role": "tool", "tool_call_id": "call_0", "content": "Rain."}
    assert second["messages"][-1] == told
    shoot(page, f"tools-ran-{width}-{theme}")


def test_a_tool_runs_unasked_after_it_was_allowed_and_only_here(
    server: StandIn, open_page: OpenPage
) -> None:
    page = open_page(server.url, panel=True)
    choose(page)
    ask(page)
    page.get_by_text("Run, and don’t ask again").click()
    expect(page.get_by_text("It said: Rain.")).to_have_count(1)
    ask(page)
    expect(page.get_by_text("It said: Rain.")).to_have_count(2)
    assert len(server.sent(*CALL)) == 2
    page.get_by_text("runs unasked").click()
    ask(page)
    expect(page.get_by_label("Call of find").get_by_text("Run", exact=True)).to_be_visible()
    page.get_by_label("New conversation").click()
    expect(page.get_by_label("Tools: search")).to_be_visible()  # the choice goes on, the leave not
    ask(page)
    expect(page.get_by_label("Call of find").get_by_text("Run", exact=True)).to_be_visible()


def test_a_call_is_refused(server: StandIn, open_page: OpenPage) -> None:
    server.answers[CHAT] = answering("search__buy")
    page = open_page(server.url)
    choose(page)
    ask(page)
    waiting = page.get_by_label("Call of buy")
    expect(waiting.get_by_text("don’t ask again")).to_have_count(0)  # its server's owner said so
    waiting.get_by_text("Don’t run").click()
    expect(page.get_by_text("It said: The user did not allow this call.")).to_be_visible()
    assert not [one for one in server.calls if one[1] == CALL[1]]


def test_tools_that_are_chosen_and_used_at_once_are_sent(
    server: StandIn, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    lists = Held(page, "**/v1/admin/mcp/tools*")
    choose(page)
    with page.expect_request("**/v1/admin/mcp/tools*"):
        ask(page)
    expect(page.get_by_label("Message", exact=True)).to_have_value("The weather?")
    assert not [one for one in server.calls if one[1] == CHAT[1]]
    lists.let_go()
    page.get_by_label("Call of find").wait_for()
    assert len(server.sent(*CHAT)[0]["tools"]) == 2


SAID = """I will look.

```json
{"name": "search__find", "parameters": {"q": "Bern"}}
```"""


def test_an_answer_that_reads_like_a_call_becomes_one(
    server: StandIn, open_page: OpenPage, shoot: Shoot
) -> None:
    again = answering("search__find")

    def stream(body: Any) -> Iterator[dict[str, Any]]:
        told = body["messages"][-1]["role"] == "tool"
        yield from again(body) if told else reports.answer(SAID)(body)

    server.answers[CHAT] = stream
    page = open_page(server.url)
    choose(page)
    ask(page)
    expect(page.get_by_text("This looks like a call of find")).to_be_visible()
    shoot(page, "looks-like-a-call")
    page.get_by_text("Run it", exact=True).click()
    expect(page.get_by_text("It said: Rain.")).to_be_visible()
    assert server.sent(*CALL)[0]["arguments"] == {"q": "Bern"}
    asked = server.sent(*CHAT)[-1]["messages"][-2]
    assert asked["tool_calls"][0]["function"]["name"] == "search__find"


def test_own_functions_and_several_calls_go_together(server: StandIn, open_page: OpenPage) -> None:
    server.answers[CHAT] = answering("search__find", "weather", "search__buy")
    page = open_page(server.url, panel=True)
    choose(page)
    page.get_by_label("Functions, as OpenAI lists them").fill(json.dumps([{"name": "weather"}]))
    ask(page)
    send = page.get_by_text("Send results")
    expect(send).to_be_disabled()
    page.get_by_text("Run all 2").click()
    page.get_by_label("Result of weather").fill("sun")
    send.click()
    expect(page.locator(".answer").last).to_contain_text("It said: Rain.")
    results = [one for one in bodies(server)[-1]["messages"] if one["role"] == "tool"]
    assert [one["content"] for one in results] == ["Rain.", "sun", "Rain."]


def test_what_may_have_run_already_asks_after_a_reload(
    server: StandIn, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    choose(page)
    ask(page)
    page.get_by_text("Run, and don’t ask again").click()
    expect(page.get_by_text("It said: Rain.")).to_be_visible()
    has_come, left = threading.Event(), threading.Event()

    def never(_body: Any) -> Iterator[object]:
        has_come.set()
        left.wait(HANG)
        return iter(())

    server.answers[CALL] = never
    ask(page)
    expect(page.get_by_label("find runs")).to_be_visible()
    assert has_come.wait(HANG)
    page.reload()
    left.set()
    waiting = page.get_by_label("Call of find")
    expect(waiting.get_by_text("Run", exact=True)).to_be_visible()
    assert len(server.sent(*CALL)) == 2


def test_a_server_that_cant_be_asked_says_so(server: StandIn, open_page: OpenPage) -> None:
    server.answers[TOOLS] = (424, {"error": {"message": "The MCP server search failed."}})
    page = open_page(server.url)
    page.get_by_label("Tools", exact=True).click()
    page.get_by_role("menuitem", name="search").click()
    expect(page.get_by_text("The MCP server search failed.")).to_be_visible()
    expect(page.get_by_label("Tools: search")).to_have_count(0)


def test_what_the_server_ran_within_an_answer_is_shown(stand: Stand, open_page: OpenPage) -> None:
    def stream(_body: Any) -> Iterator[dict[str, Any]]:
        ran = {"index": 0, "type": "mcp", "server_label": "search", "name": f"find{MARK}",
               "arguments": "{}", "output": f"Rain. {MARK}", "is_error": False}  # fmt: skip
        for delta in ({"executed_tools": [ran]}, {"content": "It rains."}):
            yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

    page = open_page(stand(answers={CHAT: stream}).url)
    ask(page)
    page.locator("summary", has_text=f"find{MARK}").click()
    expect(page.get_by_label("Result", exact=True)).to_have_text(f"Rain. {MARK}")
    expect(page.locator(".answer")).to_contain_text("It rains.")
    page.reload()
    expect(page.locator("summary", has_text="find")).to_be_visible()
    assert page.locator("#app img").count() == 0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[str]:
    """A server with a model that calls a tool; the address of its page."""
    command = f"{shlex.quote(sys.executable)} -m tests.mcp_servers.honest stdio"
    settings = {
        "models": [script(tmp_path, "caller", LINES)],
        "mcp": [{"name": "honest", "command": command, "folder": str(ROOT), "tools": ["add"]}],
    }
    with served(tmp_path, settings) as server:
        yield f"{server.url}/ui/"


def test_a_tool_of_a_real_server_answers_a_real_chat(
    running: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(running)
    page.get_by_label("Tools", exact=True).click()
    page.get_by_role("menuitem", name="honest").click()
    expect(page.get_by_label("Tools: honest")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("Please add.")
    page.keyboard.press("Enter")
    page.get_by_label("Call of add").get_by_text("Run", exact=True).click()
    expect(page.get_by_text("It is five.")).to_be_visible()
    shoot(page, "tools-real")
