"""What an answer waits for is said: its place, whom, how long; and another model can answer."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import reports
from tests.browser.conftest import LINES, OpenPage, Stand
from tests.browser.standin import StandIn
from tests.browser.test_chat import CHAT, bodies
from tests.browser.test_conversations import message
from tests.browser.test_real import talk
from tests.hang import HANG
from tests.served import Serve

pytestmark = pytest.mark.browser

Shoot: TypeAlias = Callable[[Page, str], None]
TWO = "glm-4-9b"


class Line:
    """A server whose `model` answers when `go_on` is set, and others at once."""

    def __init__(self, stand: Stand, model: dict[str, Any], *others: dict[str, Any]) -> None:
        self.go_on = threading.Event()
        self.model = model
        done = [
            reports.request(number, model="qwen3-8b", seconds=20.0, queued_seconds=0.0)
            for number in range(1, 6)
        ]
        running = [
            reports.request(8, "answering", model="qwen3-8b", key="open-webui"),
            reports.request(9, "prompt", model="qwen3-8b", key="agent"),
        ]
        snapshot = reports.snapshot(models=[model, *others], requests=[*done, *running])
        self.server: StandIn = stand(snapshot, {CHAT: self._answered})
        self.id = ""

    def _answered(self, body: Any) -> Iterator[Any]:
        if body["model"] == self.model["id"]:
            assert self.go_on.wait(HANG)
        yield from reports.answer(f"I am {body['model']}.")(body)

    def ask(self, page: Page) -> Locator:
        """Say something to the model; what its answer waits for."""
        page.get_by_label("Model: ").click()
        page.get_by_label("Search models").fill(self.model["id"])
        page.keyboard.press("Enter")
        with page.expect_request("**/v1/chat/completions") as sent:
            message(page).fill("Hello")
            page.keyboard.press("Enter")
        self.id = sent.value.headers["x-request-id"]
        return page.locator(".awaited")

    def stands(self, state: str, **more: object) -> None:
        """Tell the page where its request is."""
        one = reports.request(40, state, request=self.id, model=self.model["id"], **more)
        self.server.tell("request", one)


def busy() -> dict[str, Any]:
    return reports.model("qwen3-8b", state="loaded", in_use=2, slots=2)


def idle() -> dict[str, Any]:
    return reports.model("small", state="loaded")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_queued_answer_says_whom_it_waits_for_and_goes_elsewhere(
    width: int, theme: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    after = {"verdict": "fits_after", "unload": ["qwen3-8b"]}
    line = Line(stand, reports.model("big", fit=after, load_seconds=8.0), busy(), idle())
    page = open_page(line.server.url, width=width, theme=theme)
    waiting = line.ask(page)
    line.stands("queued", place=2)
    expect(waiting).to_contain_text("Waiting in line, place 2…")
    expect(waiting).to_contain_text(
        "It needs the memory of qwen3-8b, which answers 2 requests (agent, open-webui)."
    )
    expect(waiting).to_contain_text("About 28 s, judging by recent answers and its last load.")
    expect(waiting.get_by_role("button")).to_have_text(
        ["Use small instead", "Use qwen3-8b instead"]
    )
    shoot(page, f"waiting-{width}-{theme}")
    waiting.get_by_text("Use small instead").click()
    answer = page.locator(".answer")
    expect(answer.locator(".markdown")).to_have_text("I am small.")
    expect(answer.get_by_label("Versions of the answer")).to_have_count(0)
    expect(page.get_by_label("Model: small")).to_be_visible()
    assert bodies(line.server)[-1]["messages"] == [{"role": "user", "content": "Hello"}]
    assert line.server.sent("DELETE", "/v1/stream")  # waits for it
    assert ("DELETE", f"/v1/stream?conv_id={line.id}") in [
        (how, where) for how, where, _ in line.server.calls
    ]
    line.go_on.set()


def test_a_model_with_all_slots_taken_says_so(stand: Stand, open_page: OpenPage) -> None:
    line = Line(stand, busy(), idle())
    waiting = line.ask(open_page(line.server.url))
    line.stands("queued", place=3)
    expect(waiting).to_contain_text("place 3")
    expect(waiting).to_contain_text(
        "qwen3-8b answers 2 requests (agent, open-webui), as many as it can at a time (2)."
    )
    expect(waiting).to_contain_text("About 40 s, judging by recent answers.")
    line.stands("prompt")
    expect(waiting).to_have_text("Reading the prompt…")
    line.go_on.set()
    expect(waiting).to_have_count(0)


def test_a_prompt_behind_another_says_what_is_read(stand: Stand, open_page: OpenPage) -> None:
    line = Line(stand, busy(), idle())
    waiting = line.ask(open_page(line.server.url))
    other = reports.request(9, "prompt", model="qwen3-8b", key="agent", prompt_tokens=6614)
    line.server.tell("request", other)
    line.stands("prompt", place=1)
    expect(waiting).to_contain_text(
        re.compile("Reading 6.614 tokens for another request; yours is next")
    )
    line.go_on.set()
    expect(waiting).to_have_count(0)


def test_a_load_says_how_far_it_is(stand: Stand, open_page: OpenPage) -> None:
    progress = {"stage": "weights", "done": 1, "total": 4, "began_at": 0.0, "seconds_left": 6.0}
    line = Line(stand, reports.model("big", state="loading", progress=progress, waiting=1), idle())
    waiting = line.ask(open_page(line.server.url))
    line.stands("loading", place=1)
    expect(waiting).to_contain_text("Loading big 25 %, about 6.0 s left…")
    waiting.get_by_text("Use small instead").click()
    line.go_on.set()


def test_a_real_answer_waits_for_another_models_memory(
    tmp_path: Path, serve: Serve, open_page: OpenPage
) -> None:
    paths = [tmp_path / f"{name}.script.json" for name in ("alpha", "beta")]
    for path in paths:
        script = {"lines": LINES, "size_bytes": 300_000_000, "context_length": 1_000_000}
        path.write_text(json.dumps(script))
    names = [{"name": path.name.partition(".")[0], "path": str(path)} for path in paths]
    names[0]["options"] = {"tokens_per_second": 200}  # type: ignore[assignment]
    settings = {
        "models": names,
        "hub": {"cached_models": False},
        "swap": {"memory": {"cpu": 500_000_000}},
    }
    page = open_page(f"{serve(settings).url}/ui/")
    first = talk(page, "alpha", "long")
    expect(first.locator(".markdown strong").first).to_have_text("bold")
    answer = talk(page, "beta", "Hello")
    expect(answer).to_contain_text("Waiting in line, place 1…")
    expect(answer).to_contain_text(
        re.compile("It needs the memory of alpha, which answers 1 request")
    )
    answer.get_by_text("Use alpha instead").click()
    expect(answer.locator(".markdown")).to_have_text(re.compile("Hello from the script"))
    page.locator(".list-item").nth(1).click()
    page.keyboard.press("Escape")
    message(page).press("Escape")
    expect(page.locator(".answer")).to_contain_text("Stopped.")
