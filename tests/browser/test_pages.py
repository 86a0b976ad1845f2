"""Every page in its states, on a phone and on a desk, dark and light: nothing sticks out, axe-core
finds nothing serious. The screenshots are kept.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.served import Serve

pytestmark = pytest.mark.browser

Shoot = Callable[[Page, str], None]

OPTION = {
    "minimum": None,
    "choices": None,
    "nullable": True,
    "default": None,
    "value": None,
    "description": "Tokens of one request.",
}
ESTIMATE: dict[str, Any] = {
    "model": "mistral-small-24b",
    "devices": [
        {"device": "cuda:0", "needs": 15_000_000_000, "budget": 24_000_000_000, "own": 0,
         "others": 5_000_000_000},
        {"device": "cpu", "needs": 300_000_000, "budget": 64_000_000_000, "own": 0, "others": 0},
    ],
    "parts": {"weights": 13_500_000_000, "cache": 1_400_000_000, "projector": 0,
              "engine": 400_000_000},
    "measured": False, "fit": {"verdict": "fits", "unload": [], "why": None},
    "context_length": 32768, "trained_context": 131072, "note": "", "reasons": [], "speed": 1.0,
    "load_seconds": 9.0,
}  # fmt: skip
QUANTIZATION = {"files": [], "here": False}
ANSWERS: dict[tuple[str, str], Any] = {
    ("GET", "/v1/admin/logs"): {"lines": reports.log_lines(), "first": 1, "last": 36},
    ("GET", "/v1/admin/settings"): {
        "file": "/etc/roundhouse.yaml",
        "text": "swap:\n  ttl: 600\n",
        "reload": True,
        "options": [
            {"option": "swap.ttl", "value": 600.0, "default": -1.0, "type": "number",
             "source": "file", "where": "/etc/roundhouse.yaml:2", "effect": "live",
             "description": "Idle time after which a model is unloaded."},
            {"option": "server.port", "value": 9000, "default": 8000, "type": "integer",
             "source": "variable", "where": "ROUNDHOUSE_SERVER_PORT", "effect": "restart",
             "description": "The port; 0 takes any free one."},
            {"option": "server.host", "value": "127.0.0.1", "default": "127.0.0.1",
             "type": "string", "source": "default", "where": None, "effect": "restart",
             "description": "The address to listen on."},
        ],
    },
    ("GET", "/v1/kept"): {
        "object": "list",
        "data": [
            {"id": 3, "model": "mistral-small-24b", "key": "laptop", "conversation": "c-1",
             "tokens": 26_120, "size": 4_197_473_792, "tiers": ["memory", "disk"], "age": 610.2,
             "idle": 14.9, "uses": 4, "saves": 23.1, "pinned": False},
        ],
        "counts": {"entries": 1, "memory": 4_197_473_792, "memory_limit": 8_589_934_592,
                   "disk": 4_197_473_792, "disk_limit": 21_474_836_480,
                   "hits": {"memory": 4, "disk": 0}, "tokens": {"memory": 31_874, "disk": 0},
                   "seconds": 35.7, "taken": 5},
        "engines": [{"model": "qwen3-8b-exl3", "backend": "exllamav3",
                     "memory_limit": 4_294_967_296, "disk_limit": 53_687_091_200}],
    },
    ("GET", "/v1/nodes"): {"nodes": reports.nodes()},
    ("GET", "/v1/upstreams"): reports.upstreams(),
    ("GET", "/v1/admin/requests/29"): reports.inspection(),
    ("GET", "/v1/usage"): {"object": "usage", "data": reports.usage_rows()},
    ("POST", "/v1/admin/settings/check"): {"ok": True, "error": None, "line": None, "option": None},
    ("POST", "/v1/admin/reload"): {
        "applied": False, "changed": ["swap.ttl"], "restart": ["server.port"],
        "models": {"added": ["phi-4"], "removed": [], "reloaded": [], "updated": []},
    },
    ("POST", "/v1/admin/models/estimate"): ESTIMATE,
    ("GET", "/v1/admin/models/details"): reports.details(),
    ("GET", "/v1/admin/models/options"): {
        "model": "mistral-small-24b", "backend": "llamacpp",
        "options": [{**OPTION, "name": "context_length", "type": "integer", "value": 32768},
                    {**OPTION, "name": "cache_type_k", "type": "string", "choices": ["f16", "q8_0"],
                     "value": "f16"},
                    {**OPTION, "name": "mmap", "type": "boolean", "value": True}],
    },
    ("GET", "/v1/admin/hub/search"): {"suggested": True, "models": reports.hub_models()},
    ("GET", "/v1/admin/hub/files"): {
        "repository": "org/name", "commit": "abc", "bytes": 1, "quantizations": [
            {**QUANTIZATION, "name": "Q4_K_M", "model": "org/name:Q4_K_M", "bytes": 5_000_000_000,
             "fit": {"verdict": "fits", "unload": [], "device": "cuda:0", "needs": 6_100_000_000,
                     "estimate": "header"}},
            {**QUANTIZATION, "name": "Q8_0", "model": "org/name:Q8_0", "bytes": 8_500_000_000,
             "fit": {"verdict": "fits_after", "unload": ["glm-4-9b"], "device": "cuda:0",
                     "needs": 9_900_000_000, "speed": 34.7, "estimate": "size"}},
            {**QUANTIZATION, "name": "BF16", "model": "org/name:BF16", "bytes": 60_000_000_000,
             "fit": {"verdict": "too_large", "unload": [], "device": None, "needs": None,
                     "estimate": "size"}},
        ],
    },
    ("POST", "/v1/chat/completions"): reports.answer(
        "A **list**:\n\n1. one\n2. two\n\n| a | b |\n|---|--:|\n| x | 1 |\n\n"
        "```python\nprint(1)\n```", reasoning="Let me see.", size=40,
    ),
}  # fmt: skip
PAGES = {
    "usage": "Usage",
    "chat": "Chat",
    "models": "Models",
    "memory": "Memory",
    "playground": "Playground",
    "playground/measure": "Playground",
    "activity": "Activity",
    "activity/charts": "Activity",
    "activity/log": "Activity",
    "activity/requests/29": "Activity",
    "connect": "Connect",
    "settings": "Settings",
    "settings/file": "Settings",
}
SCREENS = [(1440, "light"), (360, "dark")]
STRUCTURE = {"heading-order", "landmark-unique"}


def check(page: Page) -> None:
    """Nothing sticks out, and nobody is kept out."""
    wide = "[document.documentElement, document.getElementById('page')]"
    assert not page.evaluate(f"{wide}.some(it => it && it.scrollWidth > it.clientWidth)")
    found = Axe().run(page).response["violations"]
    serious = [
        one for one in found if one["impact"] in ("serious", "critical") or one["id"] in STRUCTURE
    ]
    assert not serious, [
        (one["id"], [n["html"][:200] for n in one["nodes"][:3]]) for one in serious
    ]


def settled(page: Page) -> None:
    """What is shown has been loaded, fonts are there, and charts are drawn."""
    expect(page.get_by_label("Loading", exact=True)).to_have_count(0)
    page.evaluate("document.fonts.ready")
    for index in range(page.locator(".chart-frame").count()):
        page.locator(".chart-frame").nth(index).locator("canvas").wait_for()


@pytest.mark.parametrize(("width", "theme"), SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole(
    name: str, width: int, theme: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{stand(answers=ANSWERS).url}#/{name}", width=width, theme=theme)
    expect(page.get_by_role("heading", level=1)).to_contain_text(PAGES[name])
    settled(page)
    check(page)
    shoot(page, f"{name.replace('/', '-')}-{width}-{theme}")


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_an_answer_is_whole(
    width: int, theme: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(stand(answers=ANSWERS).url, width=width, theme=theme)
    page.get_by_label("Message", exact=True).fill("Say something")
    page.keyboard.press("Enter")
    page.get_by_label("What was sent").wait_for()
    page.locator(".hljs-built_in").wait_for()
    check(page)
    shoot(page, f"chat-answer-{width}-{theme}")


DIALOGS = {
    "add": ("models", ["Add a model"]),
    "load": ("models", ["Actions for mistral-small-24b", "Load with options…"]),
    "duplicate": ("models", ["Actions for mistral-small-24b", "Duplicate…"]),
    "reload": ("settings", ["Reload…"]),
}


@pytest.mark.parametrize("name", DIALOGS)
def test_a_dialog_is_whole(name: str, stand: Stand, open_page: OpenPage, shoot: Shoot) -> None:
    where, buttons = DIALOGS[name]
    page = open_page(f"{stand(answers=ANSWERS).url}#/{where}", width=360)
    for button in buttons:
        page.get_by_label(button).or_(page.get_by_text(button, exact=True)).first.click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    if name == "add":
        dialog.get_by_label("Search the hub").fill("https://huggingface.co/org/name")
        dialog.get_by_text("Look").click()
        expect(dialog.get_by_text("fits after unloading glm-4-9b")).to_be_visible()
    check(page)
    shoot(page, f"dialog-{name}")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


LEFT_EDGES = """row => [...row.children].map(it => it.getBoundingClientRect())
    .filter(box => box.width > 0).map(box => Math.round(box.left))"""


@pytest.mark.parametrize("width", [390, 800, 1024, 1440])
def test_columns_stand_under_their_heads_and_the_editor_is_tall(
    width: int, stand: Stand, open_page: OpenPage
) -> None:
    page = open_page(f"{stand(answers=ANSWERS).url}#/models", width=width)
    expect(page.get_by_role("heading", level=1)).to_contain_text(PAGES["models"])
    settled(page)
    head, row = page.locator(".model-head").first, page.locator(".model:not(.model-head)").first
    if head.is_visible():
        assert head.evaluate(LEFT_EDGES) == row.evaluate(LEFT_EDGES)
    page.goto(f"{page.url.partition('#')[0]}#/settings/file")
    box = page.get_by_label("Configuration", exact=True).bounding_box()
    assert box is not None
    assert box["height"] >= 300


WIDTHS = [
    360,
    480,
    640,
    759,
    760,
    800,
    840,
    880,
    960,
    1024,
    1099,
    1100,
    1140,
    1190,
    1280,
    1440,
    1600,
]
OUTSIDE = """() => [...document.querySelectorAll("button, a.button, input, select, textarea")]
    .filter(it => it.checkVisibility() && !it.closest(".segments") && !it.matches("[type=file]"))
    .filter(it => {
        const box = it.getBoundingClientRect();
        return box.width > 1 && (box.left < 0 || box.right > innerWidth);
    }).map(it => it.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("name", PAGES)
def test_every_button_is_within_the_window(name: str, stand: Stand, open_page: OpenPage) -> None:
    page = open_page(f"{stand(answers=ANSWERS).url}#/{name}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(PAGES[name])
    settled(page)
    outside = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("() => new Promise(requestAnimationFrame)")
        if found := page.evaluate(OUTSIDE):
            outside[width] = found
    assert not outside


@pytest.mark.parametrize("name", ["chat", "models", "memory", "activity", "activity/charts"])
def test_a_server_without_anything_has_its_own_words(
    name: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{stand(reports.nothing(), ANSWERS).url}#/{name}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(PAGES[name])
    words = {"chat": "No model yet", "models": "No models yet", "memory": "Free for models"}
    words |= {"activity": "No requests", "activity/charts": "Nothing yet"}
    expect(page.get_by_text(words[name]).first).to_be_visible()
    check(page)
    shoot(page, f"empty-{name.replace('/', '-')}")


def test_a_hundred_models_are_listed_and_found(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{stand(reports.snapshot(models=reports.hundred_models())).url}#/models")
    expect(page.locator(".model-frame")).to_have_count(140)
    check(page)
    shoot(page, "models-140")
    page.get_by_label("Search models").fill("phi v12")
    expect(page.locator(".model-frame")).to_have_count(2)
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Model:").click()
    page.get_by_label("Search models").fill("gemma v9")
    page.keyboard.press("ArrowDown")
    shoot(page, "picker-140")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Model:")).to_contain_text("gemma-3")


def test_a_lost_server_is_reported_of_and_found_again(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    server = stand()
    page = open_page(f"{server.url}#/models")
    expect(page.get_by_text("qwen3-8b").first).to_be_visible()
    server.snapshot = reports.snapshot(models=[reports.model("another")])
    server.is_away = True
    server.hang_up()
    expect(page.locator(".lost-notice")).to_be_visible()
    shoot(page, "lost")
    server.is_away = False
    expect(page.get_by_role("button", name="another", exact=True)).to_be_visible()
    expect(page.locator(".lost-notice")).to_have_count(0)


def test_changes_are_shown_as_they_come(stand: Stand, open_page: OpenPage) -> None:
    server = stand()
    page = open_page(f"{server.url}#/models")
    row = page.locator(".model", has=page.get_by_role("button", name="mistral-small-24b"))
    expect(row).to_contain_text("fits after unloading qwen3-8b")
    done, total = int(7.15 * reports.GIB), int(14.3 * reports.GIB)
    progress: dict[str, Any] = {"stage": "weights", "done": done, "total": total}
    progress |= {"began_at": reports.NOW, "seconds_left": 4.0}
    server.tell("model", reports.model("mistral-small-24b", 14.3, "loading", progress=progress))
    expect(row).to_contain_text("7.15 GiB of 14.3 GiB, about 4.0 s left")
    server.tell("model", reports.model("mistral-small-24b", 14.3, "failed", why_failed="no memory"))
    expect(row).to_contain_text("no memory")
    server.tell("model_removed", {"id": "mistral-small-24b"})
    expect(row).to_have_count(0)


def test_the_theme_is_chosen_and_kept(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand().url)
    body = page.locator("body")
    page.get_by_label("Dark").click()
    expect(body).to_have_css("background-color", "rgb(19, 21, 22)")
    page.reload()
    expect(body).to_have_css("background-color", "rgb(19, 21, 22)")
    page.get_by_label("As the system").click()
    expect(body).to_have_css("background-color", "rgb(246, 247, 247)")


def test_a_menu_is_used_by_keys(stand: Stand, open_page: OpenPage) -> None:
    server = stand(
        answers={
            **ANSWERS,
            ("POST", "/v1/admin/models/pin"): reports.model("qwen3-8b", 5.0, "loaded"),
        }
    )
    page = open_page(f"{server.url}#/models")
    button = page.get_by_label("Actions for qwen3-8b")
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Unpin")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menu")).to_have_count(0)
    expect(button).to_be_focused()
    assert server.sent("POST", "/v1/admin/models/pin") == [{"model": "qwen3-8b", "pinned": False}]


def test_other_machines_are_drained_and_used_again(stand: Stand, open_page: OpenPage) -> None:
    drained = [{**reports.nodes()[0], "draining": True}]
    url = reports.upstreams()[0]["replicas"][0]["url"]
    answers = {
        **ANSWERS,
        ("POST", "/v1/nodes/drain"): {"nodes": drained},
        ("POST", "/v1/upstreams/drain"): reports.upstreams(draining=True),
    }
    server = stand(answers=answers)
    page = open_page(f"{server.url}#/memory")
    page.get_by_label("Drain box-b").click()
    expect(page.get_by_label("Use again box-b")).to_be_visible()
    assert server.sent("POST", "/v1/nodes/drain") == [{"node": "box-b", "draining": True}]
    page.get_by_label(f"Drain {url}").click()
    page.get_by_label(f"Use again {url}").click()
    order = {"upstream": "big", "url": url}
    sent = server.sent("POST", "/v1/upstreams/drain")
    assert sent[0] == {**order, "draining": True}
    expect(page.get_by_text("the connection was refused")).to_be_visible()


def test_a_server_that_refuses_is_not_green(stand: Stand, open_page: OpenPage) -> None:
    [upstream] = reports.upstreams()
    up = {**upstream["replicas"][0], "failed": 1, "reason": "it refused the key"}
    answers = {**ANSWERS, ("GET", "/v1/upstreams"): [{**upstream, "replicas": [up]}]}
    page = open_page(f"{stand(answers=answers).url}#/memory")
    row = page.locator("tr", has_text=up["url"])
    expect(row).to_contain_text("fails · it refused the key")
    expect(row.locator(".dot")).to_have_class("dot failed")


def test_a_draft_that_is_not_in_the_file_is_no_part_of_a_reload_and_stays(
    stand: Stand, open_page: OpenPage
) -> None:
    page = open_page(f"{stand(answers=ANSWERS).url}#/settings/file")
    page.get_by_label("Configuration", exact=True).fill("swap:\n  ttl: 60\n")
    page.get_by_text("Reload…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Your draft is not in the file")
    dialog.get_by_text("Cancel").click()
    page.get_by_role("button", name="Current").click()
    page.get_by_role("button", name="Configuration file").click()
    expect(page.get_by_label("Configuration", exact=True)).to_have_value("swap:\n  ttl: 60\n")
    page.get_by_text("Back to the file’s text").click()
    page.get_by_text("Reload…").click()
    expect(dialog).not_to_contain_text("Your draft")


def test_a_draft_is_saved_with_the_secrets_that_it_hides_and_is_in_force(
    tmp_path: Path, serve: Serve, open_page: OpenPage, shoot: Shoot
) -> None:
    key = "a-secret-of-the-file"
    config = {
        "console": {"edit_config": True},
        "keys": [{"key": key, "role": "admin"}],
        "swap": {"ttl": 70},
    }
    page = open_page(f"{serve(config).url}/ui/#/settings/file")
    page.get_by_label("API key of this server").fill(key)
    page.keyboard.press("Enter")
    text = page.get_by_label("Configuration", exact=True)
    text.fill(text.input_value().replace('"ttl": 70', '"ttl": 71'))
    page.get_by_role("button", name="Save and reload…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("swap.ttl")
    shoot(page, "settings-save")
    dialog.get_by_role("button", name="Save and apply").click()
    expect(page.get_by_text("The configuration is applied.")).to_be_visible()
    expect(page.get_by_role("button", name="Save and reload…")).to_be_disabled()
    written = json.loads((tmp_path / "roundhouse.yaml").read_text())
    assert (written["swap"], written["keys"]) == ({"ttl": 71}, config["keys"])
    assert json.loads((tmp_path / "roundhouse.yaml.before").read_text())["swap"] == {"ttl": 70}


FILE = """\
# Mine.
server:
  # Everybody in the house.
  host: 0.0.0.0  # not the Internet
  port: 9000
model_dirs:
  - /models
  - /more
hub: {folder: /hub}
swap:
  ttl: '10m'   # the card is small
"""


def test_fields_change_their_line_of_the_file_and_keep_what_is_beside_it(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    text_of = {"type": "string", "source": "default", "where": None, "effect": "live"}
    option = {**text_of, "value": None, "default": None, "description": "", "choices": None}
    settings = ANSWERS["GET", "/v1/admin/settings"]
    options = [
        *({**option, **one} for one in settings["options"]),
        {**option, "option": "model_dirs", "type": "array", "default": []},
        {**option, "option": "hub.folder"},
        {**option, "option": "store.path"},
        {**option, "option": "engines.llamacpp.context_length", "type": "integer"},
        {**option, "option": "log.level", "default": "info", "choices": ["debug", "info"]},
    ]
    given = {**settings, "text": FILE, "options": options}
    page = open_page(
        f"{stand(answers={**ANSWERS, ('GET', '/v1/admin/settings'): given}).url}#/settings/file"
    )
    fields = page.get_by_role("region", name="Common settings")
    expect(fields.get_by_label("Address to listen on")).to_have_value("0.0.0.0")
    expect(fields.get_by_label("Unload a model after idle")).to_have_value("10m")
    expect(fields).to_contain_text("ROUNDHOUSE_SERVER_PORT counts instead")
    expect(fields.get_by_role("button", name="Edit as text")).to_have_count(2)
    for label, value in (
        ("Address to listen on", ""),
        ("Unload a model after idle", "1h"),
        ("Context of GGUF models", "16384"),
        ("File for usage and responses", "/a: b"),
    ):
        fields.get_by_label(label).fill(value)
        fields.get_by_label(label).blur()
    fields.get_by_label("Log level").select_option("debug")
    shoot(page, "settings-form")
    changed = FILE.replace("0.0.0.0", "127.0.0.1").replace("'10m'", "1h")
    added = "engines:\n  llamacpp:\n    context_length: 16384\n"
    added += 'store:\n  path: "/a: b"\nlog:\n  level: debug\n'
    text = page.get_by_label("Configuration", exact=True)
    expect(text).to_have_value(changed + added)
    fields.get_by_role("button", name="Edit as text").first.click()
    expect(text).to_be_focused()


def test_the_page_is_reached_past_the_navigation(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(f"{stand().url}#/models")
    page.get_by_role("heading", level=1).wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Add a model")).to_be_focused()
    assert page.url.endswith("#/models")
