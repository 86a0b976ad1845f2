"""One request looked at: the split, its prompt by tokens, its times, and where it can be taken."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.test_pages import ANSWERS, check
from tests.browser.test_real import talk

pytestmark = pytest.mark.browser

Shoot = Callable[[Page, str], None]
PATH = ("GET", "/v1/admin/requests/29")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark"), (1440, "dark")])
def test_the_split_is_shown(
    width: int, theme: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(
        f"{stand(answers=ANSWERS).url}#/activity/requests/29", width=width, theme=theme, height=1600
    )
    parts = page.get_by_label("Parts of the answer").get_by_role("listitem")
    expect(parts).to_have_count(3)
    expect(parts.nth(2)).to_contain_text("weather")
    raw = page.get_by_label("Raw output", exact=True)
    expect(raw.locator(".marker").first).to_have_text("<think>")
    expect(raw.locator(".reasoning")).to_have_text("Where is Bern?")
    expect(raw.locator(".call")).to_have_text(["weather", "Bern"])
    parts.nth(0).hover()
    expect(raw.locator(".lit")).to_have_text("Where is Bern?")
    expect(page.get_by_label("Where the time went").get_by_role("listitem")).to_have_count(5)
    expect(
        page.get_by_label("Parameters").get_by_text("uniqueItems is not enforced")
    ).to_be_visible()
    check(page)
    shoot(page, f"inspector-{width}-{theme}")


def test_the_prompt_is_shown_token_by_token(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(f"{stand(answers=ANSWERS).url}#/activity/requests/29")
    prompt = page.get_by_label("Prompt", exact=True)
    expect(prompt.locator("pre .token")).to_have_count(15)
    expect(prompt.locator("pre .token.control")).to_have_count(3)
    expect(prompt.locator("pre .token").nth(3)).to_have_attribute("title", "token 103")
    prompt.get_by_role("button", name="Text", exact=True).click()
    expect(prompt.locator("pre")).to_contain_text("What is the weather in Bern?")


def test_a_long_prompt_comes_in_parts(stand: Stand, open_page: OpenPage) -> None:
    prompt = {"text": "", "tokens": [1] * 30_000, "pieces": ["word "] * 30_000, "images": 0}
    answers = {**ANSWERS, PATH: reports.inspection(prompts=[prompt])}
    page = open_page(f"{stand(answers=answers).url}#/activity/requests/29")
    tokens = page.get_by_label("Prompt", exact=True).locator("pre .token")
    expect(tokens).to_have_count(2_000)
    page.get_by_text("Show more of").click()
    expect(tokens).to_have_count(8_000)


def test_what_is_not_kept_says_so(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(f"{stand().url}#/activity/requests/7")
    expect(page.get_by_text("This request is not kept")).to_be_visible()
    check(page)


HOSTILE = "<img src=x onerror=alert(1)>"


def test_what_anybody_wrote_is_text(stand: Stand, open_page: OpenPage) -> None:
    part = {"kind": "content", "text": HOSTILE, "name": None, "id": None, "whole": True}
    span = {"from": 0, "to": len(HOSTILE), "part": 0}
    answer = {
        **reports.inspection()["answers"][0],
        "raw": HOSTILE, "pieces": [[HOSTILE, [1]]], "spans": [span], "parts": [part],
    }  # fmt: skip
    seen = reports.inspection(answers=[answer], path=f"/v1/'{HOSTILE}", body=HOSTILE)
    page = open_page(f"{stand(answers={**ANSWERS, PATH: seen}).url}#/activity/requests/29")
    expect(page.get_by_label("Raw output", exact=True)).to_have_text(HOSTILE)
    page.get_by_text("Copy as curl").click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "/v1/'\\''<img" in copied  # it can't leave its quotes
    assert page.locator("img").count() == 0


def test_a_users_key_has_its_requests(stand: Stand, open_page: OpenPage) -> None:
    me = {**reports.ME, "role": "user"}
    page = open_page(f"{stand(reports.snapshot(me=me)).url}#/activity/log")
    expect(page.get_by_role("heading", level=1)).to_have_text("Activity")
    expect(page.get_by_role("region", name="Recent requests")).to_be_visible()
    expect(page.get_by_role("group", name="View")).to_have_count(0)


def test_a_chat_is_looked_at_and_goes_on(real: str, open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(real, height=1600)
    answer = talk(page, "roundhouse-tiny", "Hello, inspector!")
    answer.get_by_label("What was sent").wait_for()
    page.get_by_role("navigation").get_by_text("Activity").click()
    page.get_by_role("region", name="Recent requests").get_by_role("link").first.click()
    expect(page.get_by_label("Raw output", exact=True).locator(".content").first).not_to_be_empty()
    prompt = page.get_by_label("Prompt", exact=True)
    expect(prompt.locator("pre .token.control").first).to_be_visible()
    shoot(page, "inspector-real")
    page.get_by_text("Copy as curl").click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "curl -N -X POST" in copied
    assert "Hello, inspector!" in copied
    page.get_by_text("Open in chat").click()
    expect(page.locator(".answer")).to_have_count(1)
    expect(page.get_by_text("Hello, inspector!").last).to_be_visible()
