"""Kept conversations on the memory page: what is kept, for whom; pinned and dropped."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand

pytestmark = pytest.mark.browser

LIST, PIN, DROP = ("GET", "/v1/kept"), ("POST", "/v1/kept/pin"), ("DELETE", "/v1/kept")
ONE: dict[str, Any] = {
    "id": 7, "model": "qwen3-8b", "key": "laptop", "conversation": "railway", "tokens": 26_000,
    "size": 1_700_000_000, "tiers": ["memory", "disk"], "age": 90.0, "idle": 3.0, "uses": 2,
    "saves": 23.0, "pinned": False,
}  # fmt: skip


def listed(*conversations: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": [*conversations], "counts": None, "engines": None}


def test_a_kept_conversation_is_pinned_and_dropped(stand: Stand, open_page: OpenPage) -> None:
    answers = {LIST: listed(ONE), PIN: {"changed": 1}, DROP: {"changed": 1}}
    server = stand(reports.snapshot(), answers)
    page = open_page(f"{server.url}#/memory")
    row = page.get_by_label("Kept conversations").get_by_role("row", name="railway")
    pin = row.get_by_role("button", name="Pin", exact=True)
    expect(row).to_contain_text("laptop")
    expect(row).to_contain_text("memory, disk")
    expect(pin).to_be_visible()
    server.answers[LIST] = listed(ONE | {"pinned": True})
    pin.click()
    unpin = row.get_by_role("button", name="Unpin")
    expect(unpin).to_be_visible()
    server.answers |= {LIST: listed(ONE), PIN: {"changed": 0}}
    for button in (unpin, pin):
        with page.expect_response("**/v1/kept"):  # the list, which is fetched anew
            button.click()
    expect(page.get_by_role("status")).to_contain_text("Not pinned")
    server.answers[LIST] = listed()
    row.get_by_role("button", name="Drop").click()
    expect(row).to_have_count(0)
