"""Blocks of code: coloured while they are written, wrapped, downloaded; an answer as written."""

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.test_chat import CHAT, say
from tests.browser.test_conversations import message
from tests.hang import HANG

pytestmark = pytest.mark.browser

Shoot: TypeAlias = Callable[[Page, str], None]
LONG = "print('" + "a long line of code " * 20 + "')\n"
ANSWER = f"Here **it** is.\n\n```python\n{LONG}```\n"


def test_code_is_coloured_while_it_is_written(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    go_on = threading.Event()

    def written(body: Any) -> Any:
        yield from list(reports.answer("```python\ndef area(side):\n    return 'x'\n")(body))[:-2]
        while not go_on.is_set():  # each piece draws it anew
            yield {"choices": [{"index": 0, "delta": {"content": "# more\n"}}]}
            go_on.wait(0.05)
        yield from reports.answer("```\n")(body)

    page = open_page(stand(answers={CHAT: written}).url)
    message(page).fill("Code")
    page.keyboard.press("Enter")
    code = page.locator(".snippet code")
    expect(code.locator(".hljs-keyword").first).to_have_text("def")
    expect(code.locator(".hljs-comment").nth(1)).to_be_attached()
    assert page.get_by_label("Stop").is_visible()
    shoot(page, "code-live")
    go_on.set()
    page.get_by_label("What was sent").wait_for(timeout=HANG * 1000)
    expect(code.locator(".hljs-keyword").first).to_have_text("def")


def test_code_is_wrapped_and_downloaded(stand: Stand, open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(stand(answers={CHAT: reports.answer(ANSWER)}).url, width=390)
    answer = say(page, "Code")
    pre = answer.locator(".snippet pre")
    wide = "it => it.scrollWidth > it.clientWidth"
    assert pre.evaluate(wide)
    wrap = answer.get_by_role("button", name="Wrap")
    wrap.click()
    expect(wrap).to_have_attribute("aria-pressed", "true")
    assert not pre.evaluate(wide)
    shoot(page, "code-wrapped")
    with page.expect_download() as download:
        answer.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "code.py"
    assert download.value.path().read_text() == LONG
    page.reload()  # it stays as it was chosen
    expect(page.get_by_role("button", name="Wrap")).to_have_attribute("aria-pressed", "true")


def test_an_answer_is_shown_as_it_was_written(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(stand(answers={CHAT: reports.answer(ANSWER)}).url)
    answer = say(page, "Code")
    answer.get_by_label("Show as written").click()
    assert answer.locator(".as-written").inner_text() == ANSWER
    expect(answer.locator(".markdown")).to_have_count(0)
    shoot(page, "as-written")
    answer.get_by_label("Show as written").click()
    expect(answer.locator(".markdown strong")).to_have_text("it")
