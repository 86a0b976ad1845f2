"""Nothing that was said or written is lost: reloads, branches, drafts, addresses."""

import re
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.test_chat import CHAT, bodies, say
from tests.browser.test_real import talk
from tests.hang import HANG

pytestmark = pytest.mark.browser

Shoot: TypeAlias = Callable[[Page, str], None]

STREAM = ("GET", "/v1/stream")
TEXT = "It goes on. " * 30


def message(page: Page) -> Locator:
    return page.get_by_label("Message", exact=True)


def test_an_answer_goes_on_after_a_reload(stand: Stand, open_page: OpenPage) -> None:
    """It is read again from its start, whatever of it was kept."""
    server = stand(answers={CHAT: reports.answer(TEXT, pause=0.05)})
    page = open_page(server.url)
    message(page).fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .markdown")).to_contain_text("It goes")
    server.answers[STREAM] = reports.answer(TEXT)
    page.reload()
    page.get_by_label("What was sent").wait_for()
    expect(page.locator(".answer .markdown")).to_have_text(TEXT.strip())
    names = {where.partition("conv_id=")[2].partition("&")[0] for _, where, _ in server.calls}
    assert len(names - {""}) == 1


def test_what_had_come_stays_where_the_server_has_no_more(
    stand: Stand, open_page: OpenPage
) -> None:
    server = stand(answers={CHAT: reports.answer(TEXT, pause=0.05)})
    page = open_page(server.url)
    message(page).fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .markdown")).to_contain_text("It goes on. It goes on.")
    error = {"message": "There is no stream", "code": "not_found", "param": "conv_id"}
    server.answers[STREAM] = (404, {"error": error})
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("the server no longer has the rest")
    expect(page.locator(".answer .markdown")).to_contain_text("It goes on.")
    expect(page.get_by_label("Send", exact=True)).to_be_visible()


def test_a_broken_connection_is_found_again(stand: Stand, open_page: OpenPage) -> None:
    def broken(body: Any) -> Any:
        for number, chunk in enumerate(reports.answer(TEXT)(body)):
            if number == 20:
                raise ConnectionResetError
            yield chunk

    server = stand(answers={CHAT: broken, STREAM: reports.answer(TEXT)})
    answer = say(open_page(server.url), "Talk")
    expect(answer.locator(".markdown")).to_have_text(TEXT.strip())
    expect(answer.get_by_role("alert")).to_have_count(0)


def test_a_real_answer_goes_on_after_a_reload_and_is_stopped(
    real: str, open_page: OpenPage
) -> None:
    page = open_page(real)
    answer = talk(page, "alpha", "long")
    expect(answer.locator(".markdown strong").first).to_have_text("bold")
    page.reload()
    answer = page.locator(".answer").last
    expect(answer).to_have_attribute("aria-busy", "true")
    expect(answer.locator(".markdown strong").nth(8)).to_have_text("bold")
    page.keyboard.press("Escape")
    expect(answer).to_contain_text("Stopped.")
    page.get_by_role("link", name="Activity").click()
    expect(page.get_by_role("region", name="Requests now")).to_have_count(0)


def test_a_draft_belongs_to_its_conversation(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand(answers={CHAT: reports.answer("Yes.")}).url)
    say(page, "First")
    message(page).fill("a thought for the first")
    page.get_by_label("New conversation").click()
    expect(message(page)).to_have_value("")
    message(page).fill("another for a new one")
    page.get_by_role("button", name="First").first.click()
    expect(message(page)).to_have_value("a thought for the first")
    page.reload()
    expect(message(page)).to_have_value("a thought for the first")
    page.get_by_label("New conversation").click()
    expect(message(page)).to_have_value("another for a new one")


def test_a_conversation_has_an_address(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand(answers={CHAT: reports.answer("Yes.")}).url)
    say(page, "First")
    first = page.url
    assert re.search(r"#/chat/\w+$", first)
    page.get_by_label("New conversation").click()
    say(page, "Second")
    assert page.url != first
    page.go_back()
    page.go_back()
    expect(page.locator(".said-text")).to_have_text(["First"])
    page.reload()
    expect(page.locator(".said-text")).to_have_text(["First"])
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name="Chat").click()
    expect(page.locator(".said-text")).to_have_text(["First"])
    other = open_page(first.partition("#")[0] + "#/chat/unknown")
    expect(message(other)).to_be_visible()
    expect(other.locator(".said")).to_have_count(0)


def test_an_earlier_answer_is_made_anew_and_what_followed_stays(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    server = stand(answers={CHAT: reports.answer("One.")})
    page = open_page(server.url)
    first = say(page, "Hello")
    say(page, "Go on")
    server.answers[CHAT] = reports.answer("Two.")
    first = page.locator(".answer").first
    first.get_by_label("Answer by another model").click()
    page.get_by_label("Search models").fill("gemma")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .markdown")).to_have_text(["Two."])
    page.get_by_label("What was sent").wait_for()
    other = bodies(server)[-1]["model"]
    assert "gemma" in other
    expect(first.locator(".answer-model")).to_have_text(other)
    shoot(page, "branches")
    first.get_by_label("Version before").click()
    expect(page.locator(".answer .markdown")).to_have_text(["One.", "One."])
    expect(page.locator(".said-text")).to_have_text(["Hello", "Go on"])


def test_a_conversation_is_forked(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand(answers={CHAT: reports.answer("Yes.")}).url)
    say(page, "Hello")
    say(page, "Go on")
    page.locator(".answer").first.get_by_label("Fork from here").click()
    expect(page.locator(".said-text")).to_have_text(["Hello"])
    expect(page.locator(".list-item")).to_have_count(2)
    say(page, "Elsewhere")
    page.locator(".list-item").nth(1).click()
    expect(page.locator(".said-text")).to_have_text(["Hello", "Go on"])


def test_what_is_sent_to_a_lost_server_stays_where_it_was_written(
    stand: Stand, open_page: OpenPage
) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url)
    message(page).fill("Hello")
    server.is_away = True
    server.hang_up()
    notice, composer = page.locator(".lost-notice"), page.locator(".composer")
    expect(notice).to_be_visible()
    bottom, top = notice.bounding_box(), composer.bounding_box()
    assert bottom is not None
    assert top is not None
    assert bottom["y"] + bottom["height"] <= top["y"]
    page.keyboard.press("Enter")
    expect(page.get_by_text("Your message stays here.")).to_be_visible()
    expect(message(page)).to_have_value("Hello")
    server.is_away = False
    expect(notice).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_contain_text("Yes.")


def test_what_a_connection_broke_off_is_gone_on_with(stand: Stand, open_page: OpenPage) -> None:
    def broken(body: Any) -> Any:
        yield from list(reports.answer("One two")(body))[:-2]
        raise ConnectionResetError

    error = {"message": "There is no stream", "code": "not_found", "param": "conv_id"}
    server = stand(answers={CHAT: broken, STREAM: (404, {"error": error})})
    page = open_page(server.url)
    message(page).fill("Count")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The connection broke here")
    server.answers[CHAT] = reports.answer(" three")
    alert.get_by_role("button", name="Continue").click()
    expect(page.locator(".answer .markdown")).to_have_text("One two three")
    expect(alert).to_have_count(0)


NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined });"


def test_code_is_copied_where_the_page_has_no_clipboard(stand: Stand, open_page: OpenPage) -> None:
    """As over plain HTTP on a LAN."""
    server = stand(answers={CHAT: reports.answer("```python\nprint(1)\n```\n")})
    page = open_page("about:blank")
    page.add_init_script(NO_CLIPBOARD)
    page.goto(server.url)
    answer = say(page, "Code")
    page.evaluate(
        "document.addEventListener('copy', () => { window.copied = `${getSelection()}`; })"
    )
    answer.locator(".snippet").get_by_text("Copy", exact=True).click()
    expect(answer.locator(".snippet button").last).to_have_text("Copied")
    assert page.evaluate("window.copied").strip() == "print(1)"


def test_what_an_answer_waits_for_and_takes_is_shown_while_it_comes(
    stand: Stand, open_page: OpenPage
) -> None:
    reading, on = threading.Event(), threading.Event()

    def answered(body: Any) -> Any:
        assert body["stream_options"]["continuous_usage_stats"]
        assert body["return_progress"]
        progress = {"total": 4000, "cache": 0, "processed": 1000, "time_ms": 5.0}
        yield {"choices": [], "prompt_progress": progress}
        assert reading.wait(HANG)
        for number in range(3):
            delta = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
            yield {"choices": [delta], "usage": reports.usage(10 * number + 1)}
            time.sleep(0.02)
        assert on.wait(HANG)
        yield from reports.answer("the end")(body)

    page = open_page(stand(answers={CHAT: answered}).url)
    message(page).fill("Read this")
    page.keyboard.press("Enter")
    expect(page.locator(".thinking-now")).to_have_text(
        re.compile("Reading the prompt 25 % of 4.000")
    )
    reading.set()
    expect(page.locator(".speed")).to_contain_text("tok/s")
    expect(page.get_by_label("Context", exact=True)).to_have_attribute("aria-valuenow", "833")
    on.set()
    page.get_by_label("What was sent").wait_for()
    expect(page.locator(".speed")).to_contain_text("61.2 tok/s")


def test_conversations_are_found_by_what_was_said_and_pinned(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    server = stand(answers={CHAT: reports.answer("The capital is Bern.")})
    page = open_page(server.url)
    say(page, "Where?")
    page.get_by_label("New conversation").click()
    server.answers[CHAT] = reports.answer("Nothing of that kind.")
    say(page, "What?")
    expect(page.locator(".list-day")).to_have_text(["Today"])
    page.keyboard.press("Control+k")
    page.keyboard.type("bern capital")
    expect(page.locator(".list-item")).to_have_count(1)
    expect(page.locator(".list-item")).to_contain_text("Where?")
    page.get_by_label("Actions for Where?").click()
    page.get_by_text("Pin", exact=True).click()
    page.get_by_label("Search conversations").fill("")
    expect(page.locator(".list-day")).to_have_text(["Pinned", "Today"])
    page.reload()
    expect(page.locator(".list-item").first).to_contain_text("Where?")
    shoot(page, "conversations")
