"""Presets of the chat: kept by name and by model, gone back from, exported and imported."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.test_chat import CHAT, bodies, say
from tests.browser.test_pages import check

pytestmark = pytest.mark.browser

Shoot: TypeAlias = Callable[[Page, str], None]
PROMPT = "You are a pirate."


def pick(page: Page, item: str) -> None:
    page.get_by_label("Preset: ").first.click()
    page.get_by_role("menuitem", name=item).click()


def save(page: Page, name: str) -> None:
    pick(page, "Save as a preset…")
    page.get_by_label("Name of the preset").fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_label(f"Preset: {name}").first).to_be_visible()


def choose_model(page: Page, name: str) -> None:
    page.get_by_label("Model: ").click()
    page.get_by_label("Search models").fill(name)
    page.keyboard.press("Enter")


def pirate(page: Page) -> None:
    page.get_by_label("System prompt").fill(PROMPT)
    page.locator("input[name=temperature]").fill("1.2")


def test_presets_come_with_the_page_and_are_changed(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("Ja.")})
    page = open_page(server.url, panel=True)
    pick(page, "Translator")
    say(page, "Yes.")
    assert bodies(server)[-1]["messages"][0]["content"].startswith("Translate")
    page.reload()
    page.get_by_label("New conversation").click()
    expect(page.get_by_label("System prompt")).to_have_value(re.compile("^Translate"))
    page.get_by_label("System prompt").fill("Into Latin.")
    pick(page, "Save the changes to Translator")
    expect(page.locator(".presets .tag")).to_have_count(0)
    pick(page, "Delete Translator")
    page.get_by_label("Preset: ").first.click()
    page.get_by_role("menuitem", name="Translator", exact=True).click()
    expect(page.get_by_label("System prompt")).to_have_value(re.compile("^Translate"))


def test_a_preset_is_saved_used_changed_and_left(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    server = stand(answers={CHAT: reports.answer("Arr.")})
    page = open_page(server.url, panel=True)
    pirate(page)
    save(page, "Pirate")
    say(page, "Hello")
    page.reload()
    page.get_by_label("New conversation").click()
    expect(page.get_by_label("System prompt")).to_have_value(PROMPT)  # the last one goes on
    pick(page, "None: as the model recommends")
    expect(page.get_by_label("System prompt")).to_have_value("")
    say(page, "Hello")
    assert "temperature" not in bodies(server)[-1]
    pick(page, "Pirate")
    page.locator("input[name=temperature]").fill("0.2")
    expect(page.locator(".presets .tag")).to_have_text("changed")
    page.get_by_label("Preset: ").first.click()
    check(page)
    shoot(page, "presets")
    page.keyboard.press("Escape")
    pick(page, "Save the changes to Pirate")
    expect(page.locator(".presets .tag")).to_have_count(0)
    say(page, "Again")
    body = bodies(server)[-1]
    assert body["temperature"] == 0.2
    assert body["messages"][0] == {"role": "system", "content": PROMPT}
    assert "preset" not in body


def test_a_model_begins_with_its_preset(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand(answers={CHAT: reports.answer("Arr.")}).url, panel=True)
    pirate(page)
    save(page, "Pirate")
    pick(page, "Begin with it for qwen3-8b")
    prompt = page.get_by_label("System prompt")
    choose_model(page, "gemma")
    expect(prompt).to_have_value("")
    choose_model(page, "qwen3-8b")
    expect(prompt).to_have_value(PROMPT)
    page.reload()
    expect(prompt).to_have_value(PROMPT)
    prompt.fill("You are a parrot.")  # what was typed since stays
    choose_model(page, "gemma")
    expect(prompt).to_have_value("You are a parrot.")
    choose_model(page, "qwen3-8b")
    page.get_by_label("New conversation").click()
    expect(prompt).to_have_value(PROMPT)
    pick(page, "Delete Pirate")
    page.get_by_label("New conversation").click()
    page.reload()
    expect(prompt).to_have_value("")


def test_sampling_goes_back_to_what_the_model_recommends(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url, panel=True)
    page.locator("input[name=temperature]").fill("1.2")
    page.locator("input[name=top_k]").fill("3")
    page.get_by_text("As the model recommends", exact=True).click()
    expect(page.locator("input[name=temperature]")).to_have_value("")
    expect(page.locator("input[name=temperature]")).to_have_attribute("placeholder", "0.7")
    say(page, "Hello")
    assert not bodies(server)[-1].keys() & {"temperature", "top_k"}


def test_presets_are_exported_and_imported(
    stand: Stand, open_page: OpenPage, tmp_path: Path
) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url, panel=True)
    pirate(page)
    save(page, "Pirate")
    pick(page, "Begin with it for qwen3-8b")
    file = tmp_path / "presets.json"
    with page.expect_download() as download:
        pick(page, "Export presets")
    download.value.save_as(file)
    other = open_page(server.url, panel=True)
    other.get_by_label("File of presets").set_input_files(file)
    expect(other.get_by_text("1 preset imported.")).to_be_visible()
    other.get_by_label("New conversation").click()
    expect(other.get_by_label("System prompt")).to_have_value(PROMPT)
    say(other, "Hello")
    assert bodies(server)[-1]["temperature"] == 1.2


def test_a_hostile_file_of_presets_sets_nothing_unknown(
    stand: Stand, open_page: OpenPage, tmp_path: Path
) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url, panel=True)
    settings = {"sampling": {"temperature": "hot", "top_k": 3}, "model": "x", "maxTokens": "many"}
    given = {"format": "roundhouse.presets", "presets": [
        None, {"name": 1}, {"name": "<b>x</b>" * 20, "system": ["a"], "settings": settings},
    ]}  # fmt: skip
    file = tmp_path / "presets.json"
    file.write_text(json.dumps(given))
    page.get_by_label("File of presets").set_input_files(file)
    expect(page.get_by_text("1 preset imported.")).to_be_visible()
    pick(page, "<b>x</b>")
    say(page, "Hello")
    body = bodies(server)[-1]
    assert body["top_k"] == 3
    assert not body.keys() & {"temperature", "max_tokens"}
    assert body["model"] == "qwen3-8b"
    file.write_text('{"format": "other"}')
    page.get_by_label("File of presets").set_input_files(file)
    expect(page.get_by_text("This file holds no presets of this page.")).to_be_visible()
