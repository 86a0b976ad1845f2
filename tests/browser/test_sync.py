"""Conversations that the server keeps, so that phone and desk have the same: nothing of either is
lost.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand, real_server
from tests.browser.test_chat import CHAT, say

pytestmark = pytest.mark.browser

SYNCED = "/v1/admin/console/conversations"
CHOICE = "Keep conversations on this server"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[str]:
    with real_server(tmp_path) as url:
        yield url


def choose(page: Page) -> None:
    page.get_by_label("All conversations").click()
    page.get_by_role("menuitem", name=CHOICE).click()


def look_again(page: Page) -> None:
    """The page becomes visible."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def unfold(page: Page) -> None:
    page.get_by_role("button", name="Conversations", exact=True).click()


def away(route: Route) -> None:
    """As a proxy answers while the server can't be reached."""
    route.fulfill(status=503)


def put(page: Page) -> Any:
    """A context in which the page has put a conversation on the server."""
    return page.expect_response(
        lambda it: SYNCED in it.url and it.request.method == "PUT" and it.status == 200
    )


def test_phone_and_desk_have_the_same(shared: str, open_page: OpenPage) -> None:
    desk, phone = open_page(shared), open_page(shared, width=390)
    say(desk, "Hello from the desk")
    with put(desk):
        choose(desk)
    unfold(phone)
    choose(phone)
    phone.locator(".list-item", has_text="Hello from the desk").click()
    expect(phone.locator(".said-text")).to_have_text(["Hello from the desk"])
    with put(phone):
        say(phone, "And from the phone")
    look_again(desk)
    expect(desk.locator(".said-text")).to_have_text(["Hello from the desk", "And from the phone"])
    with desk.expect_download() as download:
        desk.get_by_label("All conversations").click()
        desk.get_by_role("menuitem", name="Export all").click()
    assert "And from the phone" in Path(download.value.path()).read_text()
    with phone.expect_response(lambda it: it.request.method == "DELETE" and it.status == 200):
        unfold(phone)
        phone.get_by_label("Actions for Hello from the desk").click()
        phone.get_by_role("menuitem", name="Delete").click()
    look_again(desk)
    expect(desk.locator(".list-item")).to_have_count(0)
    with put(phone):
        phone.get_by_role("button", name="Undo").click()
    look_again(desk)
    expect(desk.locator(".list-item")).to_have_count(1)


def test_what_was_changed_on_both_is_kept_twice(shared: str, open_page: OpenPage) -> None:
    desk, phone = open_page(shared), open_page(shared)
    say(desk, "Begun")
    with put(desk):
        choose(desk)
    choose(phone)
    phone.locator(".list-item").click()
    expect(phone.locator(".said-text")).to_have_text(["Begun"])
    phone.route(f"**{SYNCED}**", away)
    say(phone, "Gone on with at the phone")
    with put(desk):
        say(desk, "Gone on with at the desk")
    phone.unroute(f"**{SYNCED}**")
    look_again(phone)
    for page in (phone, desk):
        copy = page.locator(".list-item", has_text="Begun (from another device)")
        expect(copy).to_have_count(1)
        expect(page.locator(".list-item")).to_have_count(2)
        copy.click()
        expect(page.locator(".said-text")).to_have_text(["Begun", "Gone on with at the desk"])
        page.locator(".list-item").filter(has_not_text="another device").click()
        expect(page.locator(".said-text")).to_have_text(["Begun", "Gone on with at the phone"])
        with desk.expect_response(f"**{SYNCED}"):
            look_again(desk)


def test_an_edit_survives_a_deletion_elsewhere(shared: str, open_page: OpenPage) -> None:
    desk, phone = open_page(shared), open_page(shared)
    say(desk, "Begun")
    with put(desk):
        choose(desk)
    choose(phone)
    phone.locator(".list-item").click()
    expect(phone.locator(".said-text")).to_have_text(["Begun"])
    phone.route(f"**{SYNCED}**", away)
    say(phone, "Gone on with")
    with desk.expect_response(lambda it: it.request.method == "DELETE" and it.status == 200):
        desk.get_by_label("Actions for Begun").click()
        desk.get_by_role("menuitem", name="Delete").click()
    phone.unroute(f"**{SYNCED}**")
    with put(phone):
        look_again(phone)
    look_again(desk)
    desk.locator(".list-item").click()
    expect(desk.locator(".said-text")).to_have_text(["Begun", "Gone on with"])


def test_what_is_too_large_stays_and_that_is_said(stand: Stand, open_page: OpenPage) -> None:
    snapshot = reports.snapshot()
    snapshot["me"] = {**snapshot["me"], "sync": True}
    answers = {
        CHAT: reports.answer("Yes."),
        ("GET", SYNCED): {"conversations": [], "largest": 100},
    }
    server = stand(snapshot, answers)
    page = open_page(server.url)
    say(page, "A large one")
    choose(page)
    expect(page.get_by_text("“A large one” stays in this browser")).to_be_visible()
    page.reload()
    expect(page.locator(".list-item")).to_have_count(1)
    assert not [method for method, _, _ in server.calls if method == "PUT"]


def test_nothing_is_sent_unless_it_is_chosen(stand: Stand, open_page: OpenPage) -> None:
    """By the server's configuration and in this browser."""
    snapshot = reports.snapshot()
    server = stand(snapshot, {CHAT: reports.answer("Yes.")})
    page = open_page(server.url)
    page.get_by_label("All conversations").click()
    expect(page.get_by_role("menuitem", name="Import")).to_be_visible()
    expect(page.get_by_role("menuitem", name=CHOICE)).to_have_count(0)
    snapshot["me"] = {**snapshot["me"], "sync": True}
    page.reload()
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    say(page, "Hello")
    page.get_by_label("All conversations").click()
    expect(page.get_by_role("menuitem", name=CHOICE)).to_be_visible()
    assert not [url for url in fetched if url.endswith("sync.js")]
    assert SYNCED not in json.dumps([path for _, path, _ in server.calls])
