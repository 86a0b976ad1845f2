"""Every page against the real server, with the bundled model and two scripted ones."""

import base64
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

import bundled
from tests.browser.conftest import ADMIN, USER, OpenPage
from tests.gateway.hub.standin import StandIn as HubStandIn
from tests.hang import HANG
from tests.proxied import behind_nginx
from tests.served import COMMAND, ROOT

pytestmark = pytest.mark.browser

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
Shoot = Callable[[Page, str], None]


def row(page: Page, name: str) -> Locator:
    """A model's row."""
    return page.locator(".model", has=page.get_by_role("button", name=name, exact=True))


def unloaded(page: Page, name: str) -> Locator:
    """The row of a model that is not in memory, whatever other tests did."""
    button = row(page, name).get_by_role("button", name=re.compile(f"^(Load|Unload) {name}$"))
    button.wait_for()
    if (button.get_attribute("aria-label") or "").startswith("Unload"):
        button.click()
    expect(row(page, name).get_by_label(f"Load {name}", exact=True)).to_be_visible()
    return row(page, name)


def talk(page: Page, model: str, text: str) -> Locator:
    """A new conversation with a model; its answer, which may be still under way."""
    page.get_by_label("New conversation").click()
    page.get_by_label("Model: ").click()
    page.get_by_label("Search models").fill(model)
    page.keyboard.press("Enter")
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    return page.locator(".answer").last


def test_the_address_leads_to_the_page(real: str, open_page: OpenPage) -> None:
    page = open_page(real.removesuffix("ui/"))
    expect(page).to_have_url(re.compile(r"/ui/$"))
    expect(page.get_by_label("Model: roundhouse-tiny")).to_be_visible()


def test_a_chat_with_the_bundled_model(real: str, open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(real)
    answer = talk(page, "roundhouse-tiny", "Hello!")
    answer.get_by_label("What was sent").wait_for()
    expect(answer.locator(".markdown").last).to_contain_text("Hello")
    expect(answer.locator(".speed")).to_contain_text("tok/s")
    answer.get_by_label("Regenerate").click()
    expect(answer).to_contain_text("2/2")
    shoot(page, "real-chat")


def test_probabilities_and_a_schema_of_the_bundled_model(real: str, open_page: OpenPage) -> None:
    page = open_page(real, panel=True)
    page.get_by_label("Token probabilities").check()
    page.locator("input[name=temperature]").fill("0")
    page.get_by_label("Max tokens").fill("60")
    page.get_by_text("Structured output").click()
    page.get_by_text("Schema", exact=True).click()
    page.get_by_label("JSON schema").fill('{"enum": ["yes", "no"]}')
    page.get_by_label("Message", exact=True).fill("Hello!")
    page.keyboard.press("Enter")
    page.get_by_label("What was sent").wait_for()
    assert page.locator(".tokens").inner_text().strip() in {'"yes"', '"no"'}
    page.locator(".tokens span").first.hover()
    expect(page.locator(".alternative").first).to_contain_text("%")


def test_reasoning_of_a_scripted_model(real: str, open_page: OpenPage) -> None:
    answer = talk(open_page(real), "alpha", "think")
    expect(answer.locator("summary")).to_contain_text("Thought for")
    expect(answer.locator(".markdown").last).to_have_text("Seen.")


def test_a_call_of_a_scripted_model(real: str, open_page: OpenPage) -> None:
    page = open_page(real, panel=True)
    talk(page, "alpha", "Hello").get_by_label("What was sent").wait_for()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Functions, as OpenAI lists them").fill(
        '[{"name": "weather", "parameters": {"type": "object", '
        '"properties": {"city": {"type": "string"}}}}]'
    )
    page.get_by_label("Message", exact=True).fill("call")
    page.keyboard.press("Enter")
    expect(page.locator(".call")).to_contain_text("Bern")
    expect(page.get_by_label("Result of weather")).to_be_visible()


def test_a_model_that_sees_is_shown_a_picture(real: str, open_page: OpenPage) -> None:
    page = open_page(real)
    talk(page, "beta", "Hello").get_by_label("What was sent").wait_for()
    picture: FilePayload = {"name": "p.png", "mimeType": "image/png", "buffer": PIXEL}
    page.get_by_label("Files to send").set_input_files(picture)
    expect(page.get_by_alt_text("Picture 1")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("What is it?")
    page.keyboard.press("Enter")
    expect(page.locator(".answer").last).to_contain_text("1x1 #")


def test_both_scripted_models_beside_each_other(real: str, open_page: OpenPage) -> None:
    page = open_page(real)
    page.get_by_label("Two models side by side").click()
    for label, name in (("Model: ", "alpha"), ("Second model: ", "beta")):
        page.get_by_label(label, exact=False).first.click()
        page.get_by_label("Search models").fill(name)
        page.keyboard.press("Enter")
    page.get_by_label("Message", exact=True).fill("Hello")
    page.keyboard.press("Enter")
    expect(page.locator(".answer-model")).to_have_text(["alpha", "beta"])
    expect(page.locator(".answer .markdown")).to_have_count(2)
    expect(page.locator(".answer").nth(1).get_by_label("What was sent")).to_be_visible()


def test_a_model_is_loaded_pinned_duplicated_and_unloaded(
    real: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{real}#/models")
    unloaded(page, "beta").get_by_text("Load", exact=True).click()
    expect(row(page, "beta")).to_contain_text("idle")
    page.get_by_label("Actions for beta", exact=True).click()
    page.get_by_text("Pin", exact=True).click()
    expect(row(page, "beta")).to_contain_text("pinned")
    row(page, "beta").get_by_role("button", name="beta", exact=True).click()
    expect(page.locator(".model-details")).to_contain_text("beta.script.json")
    page.get_by_label("Actions for beta", exact=True).click()
    page.get_by_text("Duplicate…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("beta-fast")
    dialog.get_by_label("context length").fill("1024")
    dialog.get_by_role("button", name="Duplicate").click()
    expect(dialog.get_by_label("configuration", exact=True)).to_contain_text("beta-fast")
    dialog.get_by_text("Done").click()
    expect(row(page, "beta-fast")).to_contain_text("from beta")
    row(page, "beta-fast").get_by_text("Load", exact=True).click()
    expect(row(page, "beta-fast")).to_contain_text("1k")
    shoot(page, "real-models")
    unloaded(page, "beta-fast")
    page.get_by_label("Actions for beta-fast").click()
    page.get_by_text("Remove from the list").click()
    expect(row(page, "beta-fast")).to_have_count(0)
    page.get_by_label("Actions for beta", exact=True).click()
    page.get_by_text("Unpin").click()
    unloaded(page, "beta")


def test_a_load_with_options(real: str, open_page: OpenPage) -> None:
    page = open_page(f"{real}#/models")
    unloaded(page, "beta")
    page.get_by_label("Actions for beta", exact=True).click()
    page.get_by_text("Load with options…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("context length").fill("2048")
    dialog.get_by_text("Load", exact=True).click()
    expect(row(page, "beta")).to_contain_text("idle")
    expect(row(page, "beta")).to_contain_text("2k")
    unloaded(page, "beta")


def test_a_model_is_downloaded_stopped_and_resumed(
    real: str, hub: HubStandIn, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{real}#/models")
    hub.cut["small-Q4_K_M.gguf"] = 500_000
    page.get_by_text("Add a model").click()
    page.get_by_label("Search the hub").fill("org/small")
    page.get_by_text("Look").click()
    choice = page.get_by_role("listitem", name=None).filter(has_text="Q4_K_M")
    expect(choice).to_contain_text("fits")
    choice.get_by_label("Download Q4_K_M").click()
    transfer = page.locator(".transfer", has_text="org/small")
    transfer.get_by_label(re.compile("^Stop ")).click()
    expect(transfer).to_contain_text("Stopped")
    shoot(page, "real-download")
    hub.cut.clear()
    transfer.get_by_label(re.compile("^Resume ")).click()
    expect(transfer).to_contain_text("Saved as ")
    expect(page.locator(".model", has_text="small-Q4_K_M")).to_be_visible()
    transfer.get_by_label(re.compile("from the list")).click()
    expect(transfer).to_have_count(0)


def test_a_file_is_added_from_this_computer(real: str, open_page: OpenPage) -> None:
    page = open_page(f"{real}#/models")
    page.get_by_text("Add a model").click()
    payload: FilePayload = {
        "name": "mine.gguf",
        "mimeType": "application/octet-stream",
        "buffer": bundled.GGUF.read_bytes(),
    }
    page.get_by_label("GGUF files").set_input_files(payload)
    expect(page.get_by_text("mine.gguf is there.")).to_be_visible()
    expect(row(page, "mine")).to_be_visible()
    row(page, "mine").get_by_text("Load", exact=True).click()
    expect(row(page, "mine")).to_contain_text("idle")
    page.get_by_text("Add a model").click()
    page.get_by_label("GGUF files").set_input_files({**payload, "buffer": b"no model"})
    expect(page.locator(".transfer .bad").first).to_contain_text("mine")


def test_a_model_is_added_by_its_path_and_removed(
    real: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{real}#/models")
    page.get_by_text("Add a model").click()
    dialog = page.get_by_role("dialog")
    path = dialog.get_by_label("Path on the server")
    path.fill("/etc/hostname")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.locator(".notice.bad")).to_contain_text("console.model_paths")
    shoot(page, "real-path")
    path.fill(
        re.split(" below ", dialog.get_by_text("A GGUF file or a model").inner_text())[1]
        + "/file.gguf"
    )
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog).to_contain_text("file is there")
    expect(dialog).to_contain_text("- name: file")
    dialog.get_by_role("button", name="Done").click()
    row(page, "file").get_by_label("Actions for file").click()
    page.get_by_text("Remove from the list").click()
    expect(row(page, "file")).to_have_count(0)


def test_memory_says_who_holds_what(real: str, open_page: OpenPage, shoot: Shoot) -> None:
    page = open_page(f"{real}#/memory")
    line = page.locator("tr", has_text="roundhouse-tiny").first  # a kept conversation has another
    expect(line).to_contain_text("MiB")
    expect(page.get_by_text("Free for models").first).to_be_visible()
    shoot(page, "real-memory")


def test_a_request_is_watched_and_cancelled(real: str, open_page: OpenPage, shoot: Shoot) -> None:
    page, watching = open_page(real), open_page(f"{real}#/activity")
    answer = talk(page, "alpha", "long")
    expect(answer.locator(".markdown strong").first).to_have_text("bold")
    now = watching.get_by_role("region", name="Requests now")
    expect(now).to_contain_text("answers")
    expect(now).to_contain_text("alpha")
    shoot(watching, "real-activity")
    now.get_by_label(re.compile("Cancel request")).click()
    expect(answer.get_by_role("alert")).to_be_visible()
    expect(watching.get_by_role("region", name="Recent requests")).to_contain_text("cancelled")
    watching.get_by_role("button", name="Log").click()
    expect(watching.get_by_role("log")).to_contain_text("request")
    watching.get_by_label("Search the log").fill("model=alpha")
    expect(watching.locator(".log-line").first).to_contain_text("alpha")
    watching.get_by_role("button", name="Error").click()
    watching.get_by_label("Search the log").fill("no such words")
    expect(watching.get_by_text("No matching lines")).to_be_visible()


def test_an_answer_that_is_stopped_ends_on_the_server(real: str, open_page: OpenPage) -> None:
    page = open_page(real)
    answer = talk(page, "alpha", "long")
    expect(answer.locator(".markdown strong").first).to_have_text("bold")
    page.keyboard.press("Escape")
    expect(answer).to_contain_text("Stopped.")
    page.get_by_role("link", name="Activity").click()
    expect(page.get_by_role("region", name="Recent requests")).to_contain_text("client left")
    expect(page.get_by_role("region", name="Requests now")).to_have_count(0)


def test_every_client_is_tried(real: str, open_page: OpenPage) -> None:
    page = open_page(f"{real}#/connect")
    address = real.removesuffix("/ui/")
    expect(page.get_by_text(f"{address}/v1", exact=True).first).to_be_visible()
    buttons = page.get_by_role("button", name=re.compile("^Test "))
    for index in range(buttons.count()):
        buttons.nth(index).click()
    expect(page.locator(".tested .good")).to_have_count(buttons.count())


AGENTS = {
    "claude": "Claude Code",
    "codex": "Codex CLI",
    "opencode": "OpenCode",
    "aider": "Aider",
    "llm": "llm",
}


def test_agents_are_set_up_as_launch_sets_them_up(real: str, open_page: OpenPage) -> None:
    page = open_page(f"{real}#/connect")
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("option", name=re.compile("alpha")).click()
    words = ("--url", real.removesuffix("/ui/"), "--model", "alpha", "--print")
    for agent, title in AGENTS.items():
        told = subprocess.run(
            [*COMMAND, "launch", *words, agent],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=HANG,
            check=True,
        )
        shown = page.get_by_role("region", name=title, exact=True).locator("pre")
        expect(shown).to_have_text(told.stdout.strip())


@pytest.mark.parametrize(("keys", "below"), [(False, "/"), (True, "/"), (True, "/llm/")])
def test_behind_nginx_with_tls_it_chats_and_shows_the_proxy_s_address(
    keys: bool, below: str, real: str, real_with_keys: str, tmp_path: Path, open_page: OpenPage
) -> None:
    served = real_with_keys if keys else real
    with behind_nginx(tmp_path, urlsplit(served).port or 0, below) as address:
        page = open_page(f"{address}/ui/")
        if keys:
            page.get_by_label("API key of this server").fill(ADMIN)
            page.keyboard.press("Enter")
        expect(talk(page, "alpha", "think").locator(".markdown").last).to_have_text("Seen.")
        page.get_by_role("link", name="Connect").click()
        expect(page.get_by_text(f"{address}/v1", exact=True).first).to_be_visible()
        page.close()  # before its streams are cut off


def test_settings_say_where_they_come_from_and_what_a_reload_would_do(
    real: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{real}#/settings")
    page.get_by_label("Search options").fill("swap.ttl")
    option = page.locator(".option", has=page.get_by_text("swap.ttl", exact=True))
    expect(option.locator(".value")).to_have_text("900")
    expect(option).to_contain_text(re.compile(r"file: .*roundhouse\.yaml:\d+"))
    page.get_by_role("button", name="Configuration file").click()
    text = page.get_by_label("Configuration", exact=True)
    expect(text).to_have_value(re.compile("roundhouse-tiny"))
    expect(page.get_by_text("It can be used.")).to_be_visible()
    text.fill("server:\n  prot: 1\n")
    expect(page.get_by_text("did you mean 'port'")).to_be_visible()
    expect(page.get_by_role("button", name="Line 2")).to_be_visible()
    shoot(page, "real-settings")
    page.get_by_text("Reload…").click()
    expect(page.get_by_text("The current configuration already matches the file.")).to_be_visible()


def test_a_key_is_asked_for_and_forgotten_with_the_tab(
    real_with_keys: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(real_with_keys)
    field = page.get_by_label("API key of this server")
    field.fill("a wrong one")
    shoot(page, "door")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Incorrect API key")
    field.fill(ADMIN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    assert page.evaluate("JSON.parse(sessionStorage['roundhouse.key'])") == ADMIN
    assert ADMIN not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
    page.reload()
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    page.get_by_label("Forget the key").click()
    expect(field).to_be_visible()
    assert page.evaluate("sessionStorage['roundhouse.key']") is None


def test_a_key_is_remembered_where_that_is_wished(real_with_keys: str, open_page: OpenPage) -> None:
    page = open_page(real_with_keys)
    page.get_by_label("API key of this server").fill(ADMIN)
    page.get_by_label("Remember on this device").check()
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    second = page.context.new_page()
    second.goto(real_with_keys)
    expect(second.get_by_role("link", name="Settings")).to_be_visible()
    second.get_by_label("Forget the key").click()
    expect(second.get_by_label("API key of this server")).to_be_visible()
    assert ADMIN not in second.evaluate("JSON.stringify(localStorage)")


def test_a_user_sees_its_models_alone(
    real_with_keys: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(real_with_keys)
    page.get_by_label("API key of this server").fill(USER)
    page.keyboard.press("Enter")
    links = page.get_by_role("navigation", name="Pages").get_by_role("listitem")
    names = ("Chat", "Models", "Playground", "Activity", "Usage", "Connect")
    expect(links).to_have_text([re.compile(f"^{name}") for name in names])
    answer = talk(page, "alpha", "Hello")
    expect(answer.locator(".markdown")).to_contain_text("Hello from the script.")
    page.get_by_role("link", name="Models").click()
    expect(page.locator(".model-frame")).to_have_count(1)
    expect(row(page, "alpha").get_by_role("button", name="Chat")).to_be_visible()
    expect(page.get_by_text("Unload")).to_have_count(0)
    shoot(page, "user-models")
    page.goto(f"{real_with_keys}#/settings")
    expect(page.get_by_role("heading", level=1)).to_have_text("Chat")


def test_usage_is_shown_by_model_and_saved_as_csv(
    real: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(real)
    talk(page, "alpha", "Hi").get_by_label("What was sent").wait_for()
    page.goto(f"{real}#/usage")
    by_model = page.get_by_role("region", name="Usage: By model")
    expect(by_model.get_by_role("row").filter(has_text="alpha")).to_be_visible()
    expect(page.get_by_role("region", name="Usage: By key")).to_have_count(0)  # there are none
    shoot(page, "usage-real")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    assert saved.value.path().read_text().startswith("key,model,day,requests,")


def test_usage_by_key_is_for_administrators(real_with_keys: str, open_page: OpenPage) -> None:
    for key, sees in ((USER, 0), (ADMIN, 1)):
        page = open_page(real_with_keys)
        page.get_by_label("API key of this server").fill(key)
        page.get_by_role("button", name="Open").click()
        talk(page, "alpha", "Hi").get_by_label("What was sent").wait_for()
        page.goto(f"{real_with_keys}#/usage")
        expect(page.get_by_role("region", name="Usage: By model")).to_be_visible()
        by_key = page.get_by_role("region", name="Usage: By key")
        expect(by_key).to_have_count(sees)
        expect(by_key.get_by_text("phone")).to_have_count(sees)
