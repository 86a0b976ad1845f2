"""The playground: texts, tokens, vectors, rankings and forms, each asked for as its API has it."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import Held, OpenPage, Stand
from tests.browser.test_pages import check

pytestmark = pytest.mark.browser

Shoot = Callable[[Page, str], None]
MARK = "<img src=x onerror=alert(1)>"
TEXT, INFILL = ("POST", "/v1/completions"), ("POST", "/infill")
TOKENS, INFO = ("POST", "/tokenize"), ("GET", "/tokenizer_info")
VECTORS, RANKS = ("POST", "/v1/embeddings"), ("POST", "/v1/rerank")
GRAMMAR, CHAT = ("POST", "/v1/admin/grammar/check"), ("POST", "/v1/chat/completions")
PIECES: list[Any] = ["<|im_start|>", "user", "\n", "H", [195], [164], "llo", "<|im_end|>"]
SCREENS = [(1440, "light"), (390, "dark")]


def completing(_body: Any) -> Iterator[dict[str, Any]]:
    for text in (" there was", f" a {MARK}"):
        yield {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    timings = {"predicted_per_second": 61.2}
    yield {"choices": [], "usage": reports.usage(12), "timings": timings}


def filling(_body: Any) -> Iterator[dict[str, Any]]:
    yield {"content": "a, b = "}
    yield {"content": f"0, 1 # {MARK}"}


ANSWERS: dict[tuple[str, str], Any] = {
    TEXT: completing,
    INFILL: filling,
    TOKENS: {
        "tokens": [{"id": number, "piece": one} for number, one in enumerate(PIECES)],
        "count": len(PIECES),
    },
    INFO: {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
    VECTORS: {
        "data": [{"index": 1, "embedding": [0.0, 2.0]}, {"index": 0, "embedding": [1.0, 1.0]}],
        "usage": {"prompt_tokens": 9},
    },
    RANKS: {
        "results": [
            {"index": 1, "relevance_score": 0.9},
            {"index": 0, "relevance_score": -2.5},
        ]
    },
    GRAMMAR: {"ok": True, "error": None, "relaxed": [f"$: {MARK}"], "fault": f"not {MARK}"},
    CHAT: reports.answer(f'{{"name": "{MARK}"}}'),
}


def models() -> list[dict[str, Any]]:
    return [
        *reports.some_models(),
        reports.model("minilm", 0.1, capabilities=["embedding"]),
        reports.model("ranker", 0.2, capabilities=["rerank"]),
    ]


@pytest.fixture
def tried(stand: Stand, open_page: OpenPage) -> Callable[..., tuple[Page, Any]]:
    """A view of the playground, and the server that answers it."""

    def opened(view: str, width: int = 1440, theme: str = "light") -> tuple[Page, Any]:
        server = stand(reports.snapshot(models=models()), ANSWERS)
        page = open_page(f"{server.url}#/playground/{view}", width=width, theme=theme)
        expect(page.get_by_role("heading", level=1)).to_have_text("Playground")
        return page, server

    return opened


Tried = Callable[..., tuple[Page, Any]]


def whole(page: Page) -> None:
    """Nobody is kept out, and what a model or a server says is text."""
    check(page)
    assert page.locator("#app img").count() == 0


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_a_text_goes_on(width: int, theme: str, tried: Tried, shoot: Shoot) -> None:
    page, server = tried("completion", width, theme)
    page.get_by_label("Text", exact=True).fill("Once upon a time")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Stop string").fill("END")
    page.keyboard.press("Control+Enter")
    written = page.get_by_label("The text as it goes on")
    expect(written).to_have_text(f"Once upon a time there was a {MARK}")
    expect(written.locator("mark")).to_have_text(f"there was a {MARK}")
    expect(page.get_by_text("61.2 tok/s")).to_contain_text("cut at the limit")
    (body,) = server.sent(*TEXT)
    told = {key: body[key] for key in ("model", "prompt", "temperature", "stop", "max_tokens")}
    assert told == {"model": "qwen3-8b", "prompt": "Once upon a time", "temperature": 0.5,
                    "stop": ["END"], "max_tokens": 128}  # fmt: skip
    whole(page)
    shoot(page, f"playground-completion-{width}-{theme}")
    page.get_by_text("Go on from here").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value(
        f"Once upon a time there was a {MARK}"
    )


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_a_conversation_is_shown_token_by_token(
    width: int, theme: str, tried: Tried, shoot: Shoot
) -> None:
    page, server = tried("prompt", width, theme)
    tokens = page.get_by_label("Prompt by tokens").locator(".token")
    expect(tokens).to_have_count(7)  # two of them are one letter together
    expect(tokens.nth(4)).to_have_text("ä")
    expect(tokens.nth(4)).to_have_attribute("title", "token 4, 5")
    expect(page.get_by_label("Prompt by tokens").locator(".control")).to_have_count(2)
    page.get_by_label("Numbers").check()
    expect(tokens.nth(0)).to_contain_text("0")
    page.get_by_text("Message", exact=True).click()
    page.get_by_label("Message 3", exact=True).fill("It is")
    page.get_by_label("The answer is begun").uncheck()
    page.get_by_role("button", name="Thinks").click()
    whole(page)
    shoot(page, f"playground-prompt-{width}-{theme}")
    with page.expect_request(lambda it: "It is a" in (it.post_data or "")) as told:
        page.get_by_label("Message 3", exact=True).fill("It is a")  # one before may be under way
    body: Any = told.value.post_data_json
    assert [one["content"] for one in body["messages"]][1:] == ["What is a token?", "It is a"]
    assert body["add_generation_prompt"] is False
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert len(server.sent(*TOKENS)) > 1


def test_a_model_that_is_not_loaded_is_not_loaded_to_look(
    stand: Stand, open_page: OpenPage
) -> None:
    some = [reports.model("sleeping", 5.0, "unloaded")]
    server = stand(reports.snapshot(models=some), ANSWERS)
    page = open_page(f"{server.url}#/playground/prompt")
    show = page.get_by_role("button", name="Load and show")
    show.wait_for()
    page.clock.install()
    page.get_by_label("Message 1", exact=True).fill("Hello")
    page.get_by_role("button", name="Text", exact=True).click()
    page.clock.run_for(2_000)  # longer than it waits for what is typed
    assert not [one for one in server.calls if one[1] == TOKENS[1]]
    show.click()
    expect(page.get_by_text("8 tokens")).to_be_visible()
    assert server.sent(*TOKENS)[0]["content"] == "Tokens are the letters of models."


def test_a_gap_is_filled(tried: Tried, shoot: Shoot) -> None:
    page, server = tried("infill")
    page.get_by_label("Before", exact=True).fill("def f():")
    page.get_by_label("After", exact=True).fill("return a")
    page.get_by_role("button", name="Fill in").click()
    expect(page.get_by_label("The whole text")).to_have_text(
        f"def f():a, b = 0, 1 # {MARK}return a"
    )
    (body,) = server.sent(*INFILL)
    assert (body["input_prefix"], body["input_suffix"]) == ("def f():", "return a")
    whole(page)
    shoot(page, "playground-infill")


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_texts_are_compared(width: int, theme: str, tried: Tried, shoot: Shoot) -> None:
    page, server = tried("embeddings", width, theme)
    page.get_by_label("Texts, one in a line").fill(f"One\n\n{MARK}\n")
    page.get_by_role("button", name="Compare").click()
    cells = page.get_by_role("region", name="Similarity of the texts").get_by_role("cell")
    expect(cells).to_have_text(["1.00", "0.71", "0.71", "1.00"])
    assert server.sent(*VECTORS) == [{"model": "minilm", "input": ["One", MARK]}]
    whole(page)
    shoot(page, f"playground-embeddings-{width}-{theme}")


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_documents_are_ranked(width: int, theme: str, tried: Tried, shoot: Shoot) -> None:
    page, server = tried("rerank", width, theme)
    page.get_by_label("Question").fill("Why?")
    page.get_by_label("Documents, one in a line").fill(f"Because.\n{MARK}")
    page.get_by_role("button", name="Rank").last.click()
    items = page.get_by_label("Ranking").get_by_role("listitem")
    expect(items).to_have_count(2)
    expect(items.first).to_contain_text(MARK)
    expect(items.first).to_contain_text("0.900")
    order = {"model": "ranker", "query": "Why?", "documents": ["Because.", MARK]}
    assert server.sent(*RANKS) == [order]
    whole(page)
    shoot(page, f"playground-rerank-{width}-{theme}")


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_a_form_is_checked_and_kept_to(width: int, theme: str, tried: Tried, shoot: Shoot) -> None:
    page, server = tried("grammar", width, theme)
    page.get_by_label("JSON schema", exact=True).last.fill('{"type": "object"}')
    page.get_by_label("Text to check").fill("{}")
    expect(page.get_by_text("It can be enforced.")).to_be_visible()
    expect(page.get_by_text(f"The text: not {MARK}")).to_be_visible()
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(page.get_by_label("Answer", exact=True).last).to_contain_text(MARK)
    (body,) = server.sent(*CHAT)
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    last = server.sent(*GRAMMAR)[-1]
    assert last == {"kind": "schema", "grammar": '{"type": "object"}', "text": "{}"}
    whole(page)
    shoot(page, f"playground-grammar-{width}-{theme}")
    server.answers[GRAMMAR] = {"ok": False, "error": "unclosed", "relaxed": [], "fault": None}
    page.get_by_role("button", name="Regex", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("unclosed")
    expect(page.get_by_role("button", name="Answer", exact=True)).to_be_disabled()


def test_what_was_checked_before_says_nothing_of_what_is_typed_since(tried: Tried) -> None:
    page, _ = tried("grammar")
    can, check = page.get_by_text("It can be enforced."), "**/v1/admin/grammar/check"
    expect(can).to_be_visible()
    Held(page, check)
    with page.expect_request(check):
        page.get_by_label("Text to check").fill("{}")
    expect(page.get_by_text("The text: ")).to_have_count(0)
    expect(can).to_be_visible()
    with page.expect_request(check):
        page.get_by_label("JSON schema", exact=True).last.fill("{}")
    expect(can).to_have_count(0)
    expect(page.get_by_role("button", name="Answer", exact=True)).to_be_disabled()


def test_without_such_models_it_says_so(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(f"{stand().url}#/playground/rerank")
    expect(page.get_by_text("No model that ranks")).to_be_visible()
    page.get_by_role("button", name="Embeddings").click()
    expect(page.get_by_text("No model that embeds")).to_be_visible()
    check(page)


def test_models_that_write_nothing_are_no_partners_in_a_chat(tried: Tried) -> None:
    page, _ = tried("completion")
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Model: ").click()
    page.get_by_label("Search models").fill("minilm")
    expect(page.get_by_text("No model matches.")).to_be_visible()


def test_what_goes_wrong_is_said(tried: Tried) -> None:
    page, server = tried("completion")
    server.answers[TEXT] = (400, {"error": {"message": f"prompt: {MARK}"}})
    page.get_by_role("button", name="Complete", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text(f"prompt: {MARK}")
    whole(page)


def test_the_views_are_found_in_a_real_server(real: str, open_page: OpenPage) -> None:
    page = open_page(f"{real}#/playground/prompt")
    expect(page.get_by_label("Prompt by tokens").locator(".control").first).to_be_visible()
    page.get_by_role("button", name="Completion").click()
    page.get_by_role("button", name="Complete", exact=True).click()
    expect(page.get_by_label("The text as it goes on").locator("mark")).not_to_be_empty()
    page.get_by_role("button", name="Grammar").click()
    expect(page.get_by_text("It can be enforced.")).to_be_visible()
    page.get_by_role("button", name="Answer", exact=True).click()
    answer = page.get_by_label("Answer", exact=True).last
    expect(answer).to_have_text(re.compile(r"\}\s*$"))  # its form has one such sign, its last
    assert set(json.loads(answer.inner_text())) == {"name", "age"}
    page.get_by_text("Check this text").click()
    expect(page.get_by_text("The text has this form.")).to_be_visible()
