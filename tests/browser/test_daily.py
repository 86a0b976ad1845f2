"""What makes the chat quick to use: titles by the model, keys, sentences to begin with."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.test_chat import CHAT, bodies, say
from tests.browser.test_conversations import message
from tests.browser.test_pages import check
from tests.browser.test_real import talk

pytestmark = pytest.mark.browser

Shoot: TypeAlias = Callable[[Page, str], None]


def wish_titles(page: Page) -> None:
    page.get_by_label("All conversations").click()
    page.get_by_role("menuitem", name="Titles by the model").click()


def test_a_title_is_asked_for_once_the_model_is_idle(stand: Stand, open_page: OpenPage) -> None:
    busy, idle = (reports.model("one", state="loaded", in_use=count) for count in (1, 0))
    server = stand(reports.snapshot(models=[busy]), {CHAT: reports.answer("It is Bern.")})
    page = open_page(server.url)
    wish_titles(page)
    say(page, "Which city is the capital of Switzerland?")
    named = page.locator(".list-item .cut").first
    expect(named).to_have_text("Which city is the capital of Switzerland?")
    assert len(bodies(server)) == 1
    said = {"message": {"role": "assistant", "content": '"Capital of **Switzerland**."\nMore'}}
    server.answers[CHAT] = {"choices": [said]}
    server.tell("model", idle)
    expect(named).to_have_text("Capital of Switzerland")
    asked = bodies(server)[-1]
    assert "It is Bern." in asked["messages"][0]["content"]
    assert asked["max_tokens"] <= 32
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    server.tell("model", busy)
    server.tell("model", idle)
    server.answers[CHAT] = reports.answer("It is.")
    say(page, "Really?")
    assert len(bodies(server)) == 3  # one title, and it is kept
    page.reload()
    expect(named).to_have_text("Capital of Switzerland")


def test_no_title_is_asked_for_unless_it_is_wished(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url)
    say(page, "One")
    say(page, "Two")
    assert [body["stream"] for body in bodies(server)] == [True, True]


def test_a_real_model_writes_a_title(real: str, open_page: OpenPage) -> None:
    page = open_page(real)
    wish_titles(page)
    talk(page, "alpha", "Hello").get_by_label("What was sent").wait_for()
    expect(page.locator(".list-item .cut").first).to_have_text("Hello from the script")


def test_keys_are_listed_and_work(stand: Stand, open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(stand(answers={CHAT: reports.answer("Yes.")}).url, width=390)
    say(page, "What?")  # in a text, a question mark is one
    page.locator(".thread").focus()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text("Ctrl+K")
    check(page)
    shoot(page, "keys")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.locator(".thread").focus()
    page.keyboard.press("/")
    expect(message(page)).to_be_focused()
    expect(message(page)).to_have_value("")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".said")).to_have_count(0)


CAN: list[tuple[dict[str, Any], list[str]]] = [
    ({"capabilities": [], "context_length": 2048}, ["Write a Python", "Write a short", "Explain"]),
    (
        {"modalities": ["text", "image"]},
        ["What is in this picture?", "What is the weather", "A bat and a ball", "Sum up this file"],
    ),
]


@pytest.mark.parametrize(("facts", "offered"), CAN)
def test_sentences_to_begin_with_are_those_that_the_model_can_answer(
    facts: dict[str, Any], offered: list[str], stand: Stand, open_page: OpenPage
) -> None:
    one = reports.model("one", state="loaded", **facts)
    page = open_page(stand(reports.snapshot(models=[one])).url)
    expect(page.get_by_label("To begin with").get_by_role("button")).to_contain_text(offered)


def test_a_sentence_is_put_where_one_writes(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("It rains.")})
    page = open_page(server.url)
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Sum up this file").click()
    chooser.value.set_files({"name": "a.txt", "mimeType": "", "buffer": b"One.\n"})
    expect(page.locator(".composer .file")).to_contain_text("a.txt")
    page.get_by_text("What is the weather").click()
    expect(message(page)).to_be_focused()
    expect(message(page)).to_have_value("What is the weather in Bern?")
    page.keyboard.press("Enter")
    page.get_by_label("What was sent").wait_for()
    assert bodies(server)[-1]["tools"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize(
    ("width", "theme"), [(1440, "light"), (390, "dark"), (390, "light"), (1440, "dark")]
)
def test_the_welcome_is_whole(
    width: int, theme: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(stand().url, width=width, theme=theme)
    page.get_by_label("To begin with").wait_for()
    check(page)
    shoot(page, f"welcome-{width}-{theme}")
