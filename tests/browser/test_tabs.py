"""Several tabs of one browser, with a profile on disk as every user has: nothing that is kept
disappears, and no tab takes another's connections.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser import reports
from tests.browser.conftest import Stand, arguments_of, program
from tests.browser.test_chat import CHAT, say
from tests.browser.test_conversations import message
from tests.hang import HANG

pytestmark = pytest.mark.browser

NewTab: TypeAlias = Callable[[str], Page]
LARGE = "All work and no play. " * 82_000  # 1.8 MB, within what a file may have
FILE = {"name": "large.txt", "mimeType": "text/plain", "buffer": LARGE.encode()}
STREAM = ("GET", "/v1/stream")

# No tab of a headless browser is hidden; a test says which one is.
HIDING = """
    window.isHidden = false;
    Object.defineProperty(document, "hidden", { get: () => window.isHidden });
    window.hide = (value) => {
        window.isHidden = value;
        document.dispatchEvent(new Event("visibilitychange"));
    };
"""


@pytest.fixture
def profile(chromium: Browser, tmp_path: Path) -> Iterator[BrowserContext]:
    context = chromium.browser_type.launch_persistent_context(
        tmp_path / "profile", **arguments_of(program()), viewport={"width": 1440, "height": 900}
    )
    context.add_init_script(HIDING)
    yield context
    context.close()


@pytest.fixture
def new_tab(profile: BrowserContext) -> Iterator[NewTab]:
    faults = []

    def opened(url: str) -> Page:
        page = profile.new_page()
        page.set_default_timeout(HANG * 1000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        return page

    yield opened
    assert not faults


def seen(tab: Page) -> None:
    """The user looks at this one alone."""
    for other in tab.context.pages:
        if other.url != "about:blank":
            other.evaluate("value => hide(value)", other != tab)


def test_a_large_conversation_and_a_large_draft_are_there_after_a_reload(
    stand: Stand, new_tab: NewTab
) -> None:
    page = new_tab(stand(answers={CHAT: reports.answer("Yes.")}).url)
    say(page, "A small one")
    page.get_by_label("New conversation").click()
    page.get_by_label("Files to send").set_input_files(FILE)  # type: ignore[arg-type]
    expect(page.locator(".composer .file")).to_contain_text("1 line")
    say(page, "A large one")
    page.get_by_label("Files to send").set_input_files(FILE)  # type: ignore[arg-type]
    expect(page.locator(".composer .file")).to_contain_text("1 line")
    for _ in range(5):
        page.reload()
        expect(page.locator(".list-item")).to_have_count(2)
        expect(page.locator(".said-text")).to_have_text(["A large one"])
        expect(page.locator(".composer .file")).to_contain_text("1 line")


BROKEN = """() => {
    const read = IDBObjectStore.prototype.get;
    IDBObjectStore.prototype.get = function (id) {
        const request = read.call(this, id);
        if (id === localStorage.broken) this.transaction.abort();
        return request;
    };
}"""


def test_what_can_t_be_read_is_said_and_hides_nothing_else(stand: Stand, new_tab: NewTab) -> None:
    page = new_tab(stand(answers={CHAT: reports.answer("Yes.")}).url)
    say(page, "Broken")
    page.evaluate("() => { localStorage.broken = location.hash.split('/').at(-1); }")
    page.get_by_label("New conversation").click()
    say(page, "Whole")
    page.add_init_script(f"({BROKEN})()")
    page.reload()
    expect(page.get_by_text("A conversation can’t be read")).to_be_visible()
    expect(page.locator(".list-item")).to_have_count(1)
    expect(page.locator(".list-item")).to_contain_text("Whole")


def test_a_hidden_tab_holds_no_connection(stand: Stand, new_tab: NewTab) -> None:
    """Six of them are all that a browser allows."""
    server = stand()
    tabs: list[Page] = []
    for _ in range(8):
        tabs.append(new_tab(f"{server.url}#/models"))
        expect(tabs[-1].locator(".model-name").first).to_be_visible()
        seen(tabs[-1])
    server.snapshot = reports.snapshot(models=[reports.model("another")])
    seen(tabs[0])
    expect(tabs[0].get_by_role("button", name="another", exact=True)).to_be_visible()
    expect(tabs[0].locator(".lost-notice")).to_have_count(0)


def test_one_tab_reads_an_answer_and_the_others_see_it(stand: Stand, new_tab: NewTab) -> None:
    go_on = threading.Event()

    def written(body: Any) -> Iterator[Any]:
        begun = list(reports.answer("It begins, ")(body))
        yield from begun[:-2]
        assert go_on.wait(HANG)
        yield from reports.answer("and ends.")(body)

    server = stand(answers={CHAT: written})
    first, second = new_tab(server.url), new_tab(server.url)
    expect(message(second)).to_be_visible()
    message(first).fill("Talk")
    first.keyboard.press("Enter")
    expect(first.locator(".answer .markdown")).to_contain_text("It begins")
    second.get_by_role("button", name="Talk").first.click()  # it was begun elsewhere
    expect(second.locator(".answer")).to_have_attribute("aria-busy", "true")
    third = new_tab(first.url)
    expect(third.locator(".answer")).to_have_attribute("aria-busy", "true")
    go_on.set()
    for tab in (first, second, third):
        expect(tab.locator(".answer .markdown")).to_have_text("It begins, and ends.")
        expect(tab.locator(".answer")).to_have_attribute("aria-busy", "false")
    assert not [where for _, where, _ in server.calls if "/v1/stream" in where]


def test_another_tab_reads_on_where_the_first_is_closed(stand: Stand, new_tab: NewTab) -> None:
    server = stand(answers={CHAT: reports.answer("It goes on. " * 30, pause=0.05)})
    first, second = new_tab(server.url), new_tab(server.url)
    message(first).fill("Talk")
    first.keyboard.press("Enter")
    expect(first.locator(".answer .markdown")).to_contain_text("It goes on.")
    second.get_by_role("button", name="Talk").first.click()
    expect(second.locator(".answer")).to_have_attribute("aria-busy", "true")
    server.answers[STREAM] = reports.answer("The whole of it.")
    first.close()
    expect(second.locator(".answer .markdown")).to_have_text("The whole of it.")


def test_an_answer_is_stopped_from_another_tab(stand: Stand, new_tab: NewTab) -> None:
    server = stand(answers={CHAT: reports.answer("word " * 50_000, pause=0.01)})
    first, second = new_tab(server.url), new_tab(server.url)
    message(first).fill("Talk")
    first.keyboard.press("Enter")
    second.get_by_role("button", name="Talk").first.click()
    second.get_by_label("Stop").click()
    for tab in (first, second):
        expect(tab.locator(".ending")).to_have_text("Stopped.")


def test_a_further_tab_has_the_key_until_it_is_forgotten(
    real_with_keys: str, new_tab: NewTab
) -> None:
    first = new_tab(real_with_keys)
    first.get_by_label("API key of this server").fill("a-users-key")
    first.get_by_text("Open", exact=True).click()
    expect(message(first)).to_be_visible()
    second = new_tab(real_with_keys)
    expect(message(second)).to_be_visible()
    second.get_by_label("Forget the key").click()
    for tab in (first, second):
        expect(tab.get_by_label("API key of this server")).to_be_visible()
