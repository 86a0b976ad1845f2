"""Measuring from the page: what is asked of the server, that it ends, and what can be shown."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.standin import StandIn
from tests.browser.test_pages import check
from tests.hang import HANG

pytestmark = pytest.mark.browser

Shoot = Callable[[Page, str], None]
TEXT = ("POST", "/v1/completions")
MARK = "<b>x</b>|"


def streams(body: Any) -> Iterator[dict[str, Any]]:
    """Four tokens of each prompt."""
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    for _ in range(4):
        time.sleep(0.004)
        for index in range(len(prompts)):
            yield {"choices": [{"index": index, "text": "x", "finish_reason": None}]}
    words = sum(len(prompt.split()) for prompt in prompts)
    usage = {"prompt_tokens": 2 * words, "completion_tokens": 4 * len(prompts)}
    yield {"choices": [], "usage": usage}


@pytest.fixture
def server(stand: Stand) -> StandIn:
    short = reports.model(f"short {MARK}", 5.0, "loaded", context_length=300)
    models = [reports.model("qwen3-8b", 5.0, "loaded"), short]
    return stand(reports.snapshot(models=models), {TEXT: streams})


def start(page: Page) -> None:
    page.get_by_label("What is measured").get_by_role("button", name="Measure").click()


def opened(server: StandIn, open_page: OpenPage, **screen: Any) -> Page:
    page = open_page(f"{server.url}#/playground/measure", **screen)
    page.get_by_label("What is measured").wait_for()
    return page


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_two_models_are_measured_beside_each_other(
    width: int, theme: str, server: StandIn, open_page: OpenPage, shoot: Shoot, tmp_path: Path
) -> None:
    page = opened(server, open_page, width=width, theme=theme)
    page.get_by_label("Compare with: ").click()
    page.get_by_label("Search models").fill("short")
    page.keyboard.press("Enter")
    page.get_by_label("1024").check()
    start(page)
    rows = page.get_by_label("Measured", exact=True).locator("tbody tr")
    expect(rows).to_have_count(12)
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.get_by_text("longer than its context")).to_have_count(3)
    check(page)
    shoot(page, f"measure-{width}-{theme}")
    bodies = server.sent(*TEXT)
    runs = [body for body in bodies if isinstance(body["prompt"], list)]
    # one request has all streams, and no prompt is like another from its first word on
    assert [len(body["prompt"]) for body in runs] == [1, 4, 16, 1, 4, 16, 1, 4, 16]
    firsts = [prompt.split()[0] for body in runs for prompt in body["prompt"]]
    assert len(set(firsts)) == len(firsts)
    assert {len(prompt.split()) for prompt in runs[0]["prompt"]} == {64}  # two tokens a word
    assert all(body["ignore_eos"] and body["max_tokens"] == 128 for body in runs)
    page.get_by_text("Copy as text").click()
    expect(page.get_by_text("The table is copied.")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")
    assert "**qwen3-8b · llamacpp" in text
    assert sum(line.startswith("| 128 | ") for line in text.splitlines()) == 6
    with page.expect_download() as download:
        page.get_by_text("PNG", exact=True).click()
    download.value.save_as(tmp_path / "card.png")
    with Image.open(tmp_path / "card.png") as picture:
        assert picture.size[0] == 1520
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 20
    page.reload()
    expect(rows).to_have_count(12)  # what was measured last stays


def test_it_is_stopped_at_once_and_keeps_what_is_done(server: StandIn, open_page: OpenPage) -> None:
    left = threading.Event()

    def stuck(body: Any) -> Iterator[dict[str, Any]]:
        if len(body["prompt"]) == 16:
            left.wait(HANG)
        yield from streams(body)

    server.answers[TEXT] = stuck
    page = opened(server, open_page)
    start(page)
    rows = page.get_by_label("Measured", exact=True).locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Measure").last).to_be_visible()
    expect(rows).to_have_count(2)
    left.set()


def test_a_run_that_fails_says_why_and_the_others_go_on(
    server: StandIn, open_page: OpenPage
) -> None:
    def failing(body: Any) -> Iterator[dict[str, Any]]:
        if len(body["prompt"]) == 4:
            yield {"error": {"message": f"no memory {MARK}"}}
        yield from streams(body)

    server.answers[TEXT] = failing
    page = opened(server, open_page)
    start(page)
    rows = page.get_by_label("Measured", exact=True).locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text(f"no memory {MARK}")


def test_a_model_that_cant_answer_is_no_measurement(server: StandIn, open_page: OpenPage) -> None:
    server.answers[TEXT] = (503, {"error": {"message": "It failed to load."}})
    page = opened(server, open_page)
    start(page)
    expect(page.get_by_role("alert")).to_have_text("It failed to load.")
    expect(page.get_by_label("Measured", exact=True)).to_have_count(0)


def test_the_bundled_model_is_measured(real: str, open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(f"{real}#/playground/measure")
    page.get_by_label("32", exact=True).check()
    start(page)
    rows = page.get_by_label("Measured", exact=True).locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(2).locator("td").nth(1)).to_have_text("16")
    expect(rows.nth(2).locator("b")).not_to_have_text("–")
    shoot(page, "measure-real")
