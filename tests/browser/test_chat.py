"""The chat's flows, against a stand-in where the answer must be known to the letter."""

import base64
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import reports
from tests.browser.conftest import SHOTS, Held, OpenPage, Stand
from tests.browser.standin import StandIn
from tests.hang import HANG

pytestmark = pytest.mark.browser

BERN = '{"city": "Bern"}'
CHAT = ("POST", "/v1/chat/completions")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def say(page: Page, text: str) -> Locator:
    """Ask, and wait for the whole answer, which is given."""
    asked = page.locator(".said").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_count(asked + 1)
    page.get_by_label("Stop").wait_for(state="hidden")
    last = page.locator(".answer").last
    last.get_by_label("What was sent").wait_for()
    return last


WRITTEN_AND_SENT = """() => {
  const area = document.querySelector('textarea[aria-label="Message"]');
  area.value = "Quick";
  area.dispatchEvent(new Event("input", { bubbles: true }));
  const enter = { key: "Enter", bubbles: true, cancelable: true };
  area.dispatchEvent(new KeyboardEvent("keydown", enter));
}"""


def test_enter_sends_what_is_written_before_it_is_drawn(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand(answers={CHAT: reports.answer("Yes")}).url)
    page.get_by_label("Message", exact=True).wait_for()
    page.evaluate(WRITTEN_AND_SENT)
    expect(page.locator(".said")).to_have_count(1)


READ = "import('/ui/chat/page.js').then(() => new Promise(requestAnimationFrame))"


def test_one_can_write_once_the_models_are_known(stand: Stand, open_page: OpenPage) -> None:
    """What was sent before would find none to talk to."""
    server = stand(answers={CHAT: reports.answer("Yes")})
    page = open_page("about:blank")
    events = Held(page, "**/v1/admin/events")
    page.goto(server.url)
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    page.evaluate(READ)
    expect(page.get_by_label("Message", exact=True)).to_have_count(0)
    events.let_go()
    expect(say(page, "Hello")).to_contain_text("Yes")


FORMULAS = r"""The root is $x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}$, \(e^{i\pi} = -1\).

$$
\sum_{n=1}^\infty \frac{1}{n^2}
= \frac{\pi^2}{6}
$$

It costs $5 or $10, `$x$` is code, and $\nothing{$ is none. \[ a + b \]
"""


def test_formulas_are_set_as_soon_as_they_are_whole(stand: Stand, open_page: OpenPage) -> None:
    answer = say(open_page(stand(answers={CHAT: reports.answer(FORMULAS)}).url), "Root?")
    expect(answer.locator("math")).to_have_count(4)
    expect(answer.locator("math mfrac msqrt")).to_be_visible()
    expect(answer.locator(".formula-alone math[display=block]")).to_have_count(2)
    expect(answer.locator("math munderover")).to_be_visible()
    for text in ("It costs $5 or $10", "$x$ is code", r"$\nothing{$ is none"):
        expect(answer).to_contain_text(text)
    expect(answer).not_to_contain_text("frac")
    answer.screenshot(path=SHOTS / "formulas.png")


def bodies(server: StandIn) -> list[Any]:
    return server.sent(*CHAT)


def test_reasoning_is_folded_with_its_time(stand: Stand, open_page: OpenPage) -> None:
    is_seen = threading.Event()

    def thinking(body: Any) -> Any:
        for chunk in reports.answer("Seen.", reasoning="Let me **see**.")(body):
            if chunk["choices"] and "content" in chunk["choices"][0]["delta"]:
                is_seen.wait(HANG)
            yield chunk

    page = open_page(stand(answers={CHAT: thinking}).url)
    page.get_by_label("Message", exact=True).fill("Look")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Thinking…")).to_be_visible()
    page.wait_for_timeout(50)  # shorter thoughts are shown without a time
    is_seen.set()
    answer = page.locator(".answer").last
    expect(answer.locator("summary")).to_have_text(re.compile(r"Thought for \d"))
    expect(answer.locator(".reasoning-text strong")).to_have_count(0)
    answer.locator("summary").click()
    expect(answer.locator(".reasoning-text strong")).to_have_text("see")
    expect(answer.locator(".speed")).to_contain_text("61.2 tok/s")
    expect(answer.locator(".speed")).to_contain_text("812 → 5 tokens")


def test_answers_are_made_anew_and_gone_back_to(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("First.")})
    page = open_page(server.url)
    answer = say(page, "Hello")
    server.answers[CHAT] = reports.answer("Second.")
    answer.get_by_label("Regenerate").click()
    expect(answer).to_contain_text("Second.")
    expect(answer).to_contain_text("2/2")
    assert [one["messages"] for one in bodies(server)] == [
        [{"role": "user", "content": "Hello"}]
    ] * 2
    answer.get_by_label("Version before").click()
    expect(answer).to_contain_text("First.")
    say(page, "And?")
    assert bodies(server)[-1]["messages"][1] == {"role": "assistant", "content": "First."}


def test_an_answer_is_edited_and_gone_on_from(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("One two")})
    page = open_page(server.url)
    answer = say(page, "Count")
    server.answers[CHAT] = reports.answer(" five")
    answer.get_by_label("Edit", exact=True).click()
    page.get_by_label("Edit the text").fill("Three four")
    page.get_by_text("Save and continue").click()
    expect(answer.locator(".markdown")).to_have_text("Three four five")
    assert bodies(server)[-1]["messages"][-1] == {"role": "assistant", "content": "Three four"}
    assert bodies(server)[-1]["continue_final_message"] is True


def test_what_was_asked_is_edited_and_sent_again(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url)
    say(page, "Hello")
    say(page, "Once more")
    page.locator(".said").first.hover()
    page.get_by_label("Edit and send again").first.click()
    page.get_by_label("Edit the text").fill("Goodbye")
    page.get_by_text("Send again").click()
    expect(page.locator(".said-text")).to_have_text(["Goodbye"])
    page.get_by_label("What was sent").wait_for()
    assert bodies(server)[-1]["messages"] == [{"role": "user", "content": "Goodbye"}]
    page.get_by_label("Version before").click()  # what followed it is there again
    expect(page.locator(".said-text")).to_have_text(["Hello", "Once more"])
    page.reload()
    expect(page.locator(".said-text")).to_have_text(["Hello", "Once more"])
    page.get_by_label("Version after").click()
    expect(page.locator(".said-text")).to_have_text(["Goodbye"])


def test_an_answer_is_stopped(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("word " * 50_000, pause=0.01)})
    page = open_page(server.url)
    page.get_by_label("Message", exact=True).fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator(".markdown")).to_contain_text("word word")
    reported_of = page.locator(".chat > [role=status]")  # what a screen reader says
    expect(reported_of).to_have_text("The answer is being written.")
    page.keyboard.press("Escape")
    expect(reported_of).to_have_text("The answer is complete.")
    expect(page.locator(".ending")).to_have_text("Stopped.")
    expect(page.get_by_label("Send", exact=True)).to_be_visible()


def test_settings_are_sent_and_what_an_engine_lacks_is_grey(
    stand: Stand, open_page: OpenPage
) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url, panel=True)
    page.get_by_label("System prompt").fill("Be brief.")
    page.locator("input[name=temperature]").fill("0.3")
    page.get_by_text("Advanced").click()
    expect(page.locator("input[name=tfs]")).to_be_disabled()
    row = page.locator(".panel-row", has=page.locator("input[name=tfs]"))
    expect(row).to_contain_text("llamacpp does not have it")
    expect(page.locator("input[name=top_p]")).to_have_attribute("placeholder", "0.95")
    page.get_by_text("Structured output").click()
    page.get_by_text("Schema", exact=True).click()
    page.get_by_label("JSON schema").fill('{"type": "object"')
    expect(page.locator(".bad.hint")).to_contain_text("The schema is not valid JSON")
    page.get_by_label("JSON schema").fill('{"type": "object"}')
    page.get_by_label("Token probabilities").check()
    say(page, "Hello")
    body = bodies(server)[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["temperature"] == 0.3
    assert "top_p" not in body
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (body["logprobs"], body["top_logprobs"]) == (True, 8)


def test_probabilities_are_shown_under_the_pointer_and_by_keys(
    stand: Stand, open_page: OpenPage, shoot: Callable[[Page, str], None]
) -> None:
    server = stand(answers={CHAT: reports.answer("A sure word or not", size=3, logprobs=True)})
    page = open_page(server.url, panel=True)
    page.get_by_label("Token probabilities").check()
    answer = say(page, "Hello")
    answer.locator(".tokens span").nth(1).hover()
    expect(answer.locator(".alternative")).to_have_count(3)
    expect(answer.locator(".alternatives")).to_contain_text("·other")
    shoot(page, "probabilities")
    answer.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(answer.locator(".alternative.taken")).to_have_count(1)


def test_calls_are_shown_and_their_results_sent(
    stand: Stand, open_page: OpenPage, shoot: Callable[[Page, str], None]
) -> None:
    def call(body: Any) -> Any:
        if body["messages"][-1]["role"] == "tool":
            yield from reports.answer("It rains.")(body)
            return
        arguments = '{"city": "Bern"}'
        for function in (
            {"name": "weather"},
            {"arguments": arguments[:8]},
            {"arguments": arguments[8:]},
        ):
            one = {"index": 0, "function": function} | (
                {"id": "call_1"} if "name" in function else {}
            )
            yield {"choices": [{"index": 0, "delta": {"tool_calls": [one]}, "finish_reason": None}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}

    server = stand(answers={CHAT: call})
    page = open_page(server.url, panel=True)
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Functions, as OpenAI lists them").fill('[{"name": "weather"}]')
    answer = say(page, "What is the weather?")
    expect(answer.locator(".call")).to_contain_text("weather")
    expect(answer.locator(".call pre")).to_have_text('{\n  "city": "Bern"\n}')
    assert bodies(server)[-1]["tools"] == [{"type": "function", "function": {"name": "weather"}}]
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_text("Send results").click()
    expect(page.locator(".answer").last).to_contain_text("It rains.")
    shoot(page, "tool-calls")
    asked, result = bodies(server)[-1]["messages"][-2:]
    assert asked["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Bern"}',
    }
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}


def test_pictures_are_dropped_pasted_and_taken_back(stand: Stand, open_page: OpenPage) -> None:
    server = stand(
        reports.snapshot(
            models=[reports.model("sees", state="loaded", modalities=["text", "image"])]
        ),
        {CHAT: reports.answer("A pixel.")},
    )
    page = open_page(server.url)
    page.get_by_label("Message", exact=True).wait_for()
    for kind, target in (("drop", ".chat"), ("paste", ".composer textarea")):
        page.evaluate(
            """([kind, target, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], "p.png", {type: "image/png"}));
                const its = {bubbles: true, cancelable: true};
                document.querySelector(target).dispatchEvent(kind === "drop"
                    ? new DragEvent(kind, {...its, dataTransfer: data})
                    : new ClipboardEvent(kind, {...its, clipboardData: data}));
            }""",
            [kind, target, list(PIXEL)],
        )
        expect(page.get_by_alt_text("Picture 1")).to_be_visible()
    expect(page.locator(".composer img")).to_have_count(2)
    page.get_by_label("Remove picture 2").click()
    say(page, "What is it?")
    text, picture = bodies(server)[-1]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert (
        picture["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    )
    expect(page.locator(".said img")).to_have_count(1)


def test_two_models_answer_side_by_side(stand: Stand, open_page: OpenPage) -> None:
    def each(body: Any) -> Any:
        return reports.answer(f"I am {body['model']}.")(body)

    server = stand(answers={CHAT: each})
    page = open_page(server.url)
    page.get_by_label("Two models side by side").click()
    say(page, "Who are you?")
    answers = page.locator(".answer")
    expect(answers).to_have_count(2)
    expect(answers.nth(0)).to_contain_text("I am qwen3-8b.")
    expect(answers.nth(1)).to_contain_text("I am gemma-3-12b-it.")
    expect(answers.nth(1).locator(".speed")).to_contain_text("9.80 GiB")
    say(page, "Really?")
    first, second = (one["messages"][1]["content"] for one in bodies(server)[-2:])
    assert {first, second} == {"I am qwen3-8b.", "I am gemma-3-12b-it."}


def test_what_was_sent_is_shown_as_curl_and_python(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("Yes.")})
    page = open_page(server.url, panel=True)
    page.locator("input[name=min_p]").fill("0.1")
    answer = say(page, "It's \"true\", isn't it?\nNo: false, null")
    answer.get_by_label("What was sent").click()
    curl = page.get_by_label("request", exact=True).inner_text()
    body = curl.split("-d '", 1)[1].rsplit("'", 1)[0].replace("'\\''", "'")
    assert json.loads(body) == bodies(server)[-1]
    page.get_by_role("button", name="Python").click()
    source = page.get_by_label("request", exact=True).inner_text()
    called: dict[str, Any] = {}
    run(source, called)
    assert called["messages"] == bodies(server)[-1]["messages"]
    assert called["extra_body"] == {"min_p": 0.1, "loading_text": False, "return_progress": True}
    assert called["stream"] is True


def run(source: str, called: dict[str, Any]) -> None:
    """The program, with a stand-in for the client."""

    class Client:
        def __init__(self, **_arguments: object) -> None:
            self.chat = self.completions = self

        def create(self, **arguments: object) -> list[Any]:
            called.update(arguments)
            return []

    exec(source.replace("from openai import OpenAI", ""), {"OpenAI": Client})


def test_conversations_are_kept_exported_and_imported(
    stand: Stand, open_page: OpenPage, tmp_path: Path
) -> None:
    server = stand(answers={CHAT: reports.answer("Yes, **really**.")})
    page = open_page(server.url)
    say(page, "Is it kept?")
    page.reload()
    page.get_by_role("button", name="Is it kept?").first.click()
    expect(page.locator(".answer strong")).to_have_text("really")
    page.get_by_label("All conversations").click()
    with page.expect_download() as download:
        page.get_by_text("Export all").click()
    file = tmp_path / "conversations.json"
    download.value.save_as(file)
    page.get_by_label("Actions for Is it kept?").click()
    page.get_by_text("Delete").click()
    expect(page.locator(".list-item")).to_have_count(0)
    page.get_by_label("File of conversations").set_input_files(file)
    page.get_by_role("button", name="Is it kept?").first.click()
    expect(page.locator(".answer strong")).to_have_text("really")
    page.get_by_label("File of conversations").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": b'{"format": "other"}'}
    )
    expect(page.get_by_text("This file holds no conversations of this page.")).to_be_visible()


def test_nothing_moves_above_what_is_being_written(stand: Stand, open_page: OpenPage) -> None:
    """A reader who scrolled up stays where they are; blocks that are whole are not drawn again."""
    text = "\n\n".join(f"Paragraph {number} with **some** words." for number in range(400))
    go_on = threading.Event()

    def written(body: Any) -> Any:
        for number, chunk in enumerate(reports.answer(text, size=40)(body)):
            if number == 150:  # in the middle of paragraph 169
                go_on.wait(HANG)
            yield chunk

    page = open_page(stand(answers={CHAT: written}).url)
    page.get_by_label("Message", exact=True).fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator(".markdown p", has_text="Paragraph 168")).to_be_in_viewport()  # it follows
    page.evaluate("""() => {
        window.first = document.querySelector('.markdown p');
        document.querySelector('.thread').scrollTop = 200;
    }""")
    expect(page.get_by_label("To the end")).to_be_visible()
    before = page.evaluate("document.querySelector('.thread').scrollTop")
    go_on.set()
    expect(page.locator(".markdown")).to_contain_text("Paragraph 200")
    assert page.evaluate("document.querySelector('.thread').scrollTop") == before
    assert page.evaluate("window.first === document.querySelector('.markdown p')")
    page.get_by_label("To the end").click()
    expect(page.locator(".markdown")).to_contain_text("Paragraph 399")
    expect(page.get_by_label("What was sent")).to_be_in_viewport()


SLOW_SHELF = """
    const open = IDBFactory.prototype.open;
    const released = new Promise(done => { window.release = done; });
    IDBFactory.prototype.open = function (...given) {
        const real = open.apply(this, given);
        return {
            set onupgradeneeded(act) { real.onupgradeneeded = act; },
            set onerror(act) { real.onerror = act; },
            set onsuccess(act) { real.onsuccess = () => released.then(act); },
            get result() { return real.result; },
        };
    };
"""


def test_what_is_said_while_the_browser_reads_stays(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("It stays. " * 60, pause=0.03, size=10)})
    page = open_page("about:blank")
    page.add_init_script(SLOW_SHELF)
    page.goto(server.url)
    page.get_by_label("Message", exact=True).fill("Before the shelf is open")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .markdown")).to_contain_text("It stays.")
    page.evaluate("window.release()")
    expect(page.get_by_label("What was sent")).to_be_visible()
    expect(page.locator(".answer .markdown")).to_contain_text("It stays. " * 59)
    expect(page.locator(".list-item")).to_have_count(1)
