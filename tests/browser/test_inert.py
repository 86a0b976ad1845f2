"""Names of models, answers and lines of the log are text, whatever they hold."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand

pytestmark = pytest.mark.browser

CHAT = ("POST", "/v1/chat/completions")
MARK = "<img src=x onerror=hit()>"
ATTACKS = [
    MARK,
    "<script>hit()</script>",
    '"><svg onload=hit()>',
    "<iframe srcdoc='<script>parent.hit()</script>'></iframe>",
    "<style>body{display:none}</style>",
    '<a href="javascript:hit()">press</a>',
    "<form action=https://evil.example><input name=q autofocus onfocus=hit()></form>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img onerror=hit()&gt;'>",
    "[press](javascript:hit())",
    "[press](data:text/html,<script>hit()</script>)",
    "[press]( java\tscript:hit())",
    "![see](https://evil.example/pixel.png)",
    "![see](javascript:hit())",
    '[t](https://a.example "x\\" onmouseover=hit() y=\\"")',
    "[r]: javascript:hit()\n\n[press][r]",
    "<https://evil.example/><b onclick=hit()>bold</b>",
    '```html" onmouseover="hit()\n<img src=x onerror=hit()>\n```',
    "```html\n<img src=x onerror=hit()>\n```",
    "| a | <img src=x onerror=hit()> |\n|---|---|\n| b | [c](vbscript:hit()) |",
    "- [x] <input onfocus=hit() autofocus>",
    "${hit()} {{constructor.constructor('hit()')()}}",
    r"$\href{javascript:hit()}{x}$ and $$\includegraphics{https://evil.example/pixel.png}$$",
    r"\(\text{<img src=x onerror=hit()>}\) and $\style{background:url(https://evil.example)}{x}$",
    r"$$\def\a{\a\a}\a$$ and \[\rule{99999em}{99999em}\]",
    "\u202ehit\u0000\ufeff<img/src=x/onerror=hit()>",
]  # fmt: skip
GUARD = "window.hits = 0; window.hit = () => { window.hits += 1; };"
# Formulas alone have MathML, and it leads nowhere.
MATHS = (
    "math:not(:is(.formula, .formula-alone) > math)",
    "math [href]",
    "math :is(a, img, svg)",
    "math [style]",
)
SAFE = {"http:", "https:", "mailto:"}


def untouched(page: Page) -> None:
    """Nothing ran, nothing that could run or ask somebody is in the document."""
    assert page.evaluate("window.hits") == 0
    root = "#app"
    for name in ("script", "iframe", "style", "form[action]", "object", "base", "meta", *MATHS):
        assert page.locator(f"{root} {name}").count() == 0, name
    handlers = """[...document.querySelectorAll('#app *')].flatMap(it => [...it.attributes])
        .filter(it => it.name.startsWith('on') || it.name === 'srcdoc').length"""
    assert page.evaluate(handlers) == 0
    sources = "[...document.querySelectorAll('#app img')].map(it => it.src)"
    assert page.evaluate(sources) == []
    links = (
        "[...document.querySelectorAll('#app .markdown a')].map(it => new URL(it.href).protocol)"
    )
    assert set(page.evaluate(links)) <= SAFE


def opened(open_page: OpenPage, url: str) -> tuple[Page, list[str]]:
    """A page, and which other hosts it asks."""
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.add_init_script(GUARD)
    page.goto(url)
    return page, asked


def own(asked: list[str], url: str) -> bool:
    host = url.removesuffix("/ui/")
    return all(one.startswith((host, "blob:", "data:")) for one in asked)


def test_answers(stand: Stand, open_page: OpenPage) -> None:
    server = stand(answers={CHAT: reports.answer("\n\n".join(ATTACKS), reasoning=MARK, size=7)})
    page, asked = opened(open_page, server.url)
    page.get_by_label("Message", exact=True).fill(MARK)
    page.keyboard.press("Enter")
    page.get_by_label("What was sent").wait_for()
    page.locator("summary", has_text="Thought").click()
    expect(page.locator(".markdown").last).to_contain_text(MARK)
    expect(page.locator(".reasoning-text")).to_contain_text(MARK)
    expect(page.locator(".said-text")).to_have_text(MARK)
    page.locator(".markdown").last.hover()
    untouched(page)
    assert own(asked, server.url)


def test_an_answer_at_every_moment(stand: Stand, open_page: OpenPage) -> None:
    """What is half written is as harmless: each beginning is drawn."""
    page, asked = opened(open_page, stand().url)
    page.get_by_label("Message", exact=True).wait_for()
    for attack in ATTACKS:
        page.evaluate(
            """async text => {
                const {MarkdownWriter} = await import('/ui/chat/markdown.js');
                const area = document.createElement('div');
                document.getElementById('app').append(area);
                const writer = new MarkdownWriter(area);
                for (let end = 1; end <= text.length; end += 1)
                    writer.write(text.slice(0, end), false);
                writer.write(text, true);
            }""",
            attack,
        )
        untouched(page)
    expect(page.get_by_text("hit").first).to_be_visible()
    assert own(asked, page.url.split("#")[0])


def hostile() -> dict[str, Any]:
    """A server whose every text attacks."""
    models = [
        reports.model(f"{attack} {number}", state=state, aliases=[attack], why_failed=attack,
                   memory=attack, file=attack, architecture=attack, capabilities=[attack],
                   fit={"verdict": "fits_after", "unload": [attack]})
        for number, attack in enumerate(ATTACKS[:8])
        for state in ("loaded", "failed")
    ]  # fmt: skip
    lines = [
        {"number": number, "time": reports.NOW, "level": "error", "event": attack,
         "fields": {attack: attack}}
        for number, attack in enumerate(ATTACKS, 1)
    ]  # fmt: skip
    held = [reports.held(MARK, 6.1)]
    gauges = {**reports.gauges(), "devices": [reports.device(MARK, 25.7, held)]}
    gauges["models"] = [{**gauges["models"][0], "id": MARK}]
    requests = [
        reports.request(1, "answering", model=MARK, key=MARK, api=MARK, prompt=MARK),
        reports.request(2, model=MARK, outcome=MARK, key=MARK),
    ]
    history = reports.history()
    history["models"] = {MARK: history["models"]["qwen3-8b"]}
    history["devices"] = {MARK: history["devices"]["cuda:0"]}
    downloads = [{**reports.downloads()[2], "model": MARK, "why_failed": MARK, "file": MARK}]
    me = {**reports.ME, "keys": True, "label": MARK, "default_model": MARK}
    return reports.snapshot(me=me, models=models, log=lines, requests=requests, gauges=gauges,
                         history=history, downloads=downloads)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["chat", "models", "memory", "activity", "activity/charts", "activity/log", "connect"]
)
def test_what_the_server_tells(name: str, stand: Stand, open_page: OpenPage) -> None:
    reported_by = hostile()
    logs = {"lines": reported_by["log"], "first": 1, "last": 9}
    server = stand(reported_by, {("GET", "/v1/admin/logs"): logs})
    page, asked = opened(open_page, f"{server.url}#/{name}")
    expect(page.get_by_role("heading", level=1)).to_be_attached()
    page.get_by_text(MARK).first.wait_for(state="attached")
    for button in page.locator("button.name").all()[:4]:
        button.click()
    if name == "activity":
        page.get_by_label("Request 1:").click()
        expect(page.locator(".prompt-text")).to_have_text(MARK)
    untouched(page)
    assert own(asked, server.url)


def test_an_imported_file(stand: Stand, open_page: OpenPage) -> None:
    """Somebody else's conversations: only pictures that are in the file, and no texts as markup."""
    version = {"content": ATTACKS[0], "toolCalls": [{"name": MARK, "arguments": MARK}]}
    conversation = {
        "title": MARK,
        "turns": [
            {"role": "user", "content": MARK, "images": ["https://evil.example/a.png"]},
            {"role": "assistant", "lanes": [{"model": MARK, "versions": [version], "chosen": 99}]},
            {"role": "nobody"},
        ],
    }
    page, asked = opened(open_page, stand().url)
    page.evaluate(
        """async given => {
            const {imported} = await import('/ui/chat/conversation.js');
            const {add, show} = await import('/ui/chat/room.js');
            const text = JSON.stringify(
                {format: 'roundhouse.conversations', version: 1, conversations: [given]});
            const [one] = imported(text);
            add([one]);
            show(one);
        }""",
        conversation,
    )
    expect(page.locator(".call code")).to_have_text(MARK)
    expect(page.locator(".said")).to_have_count(1)
    untouched(page)
    assert own(asked, page.url.split("#")[0])


SLOW = {
    "quotes within quotes": "> " * 3000 + "deep",
    "quotes on lines": "".join("> " * depth + "deep\n" for depth in range(300)),
    "lists within lists": "".join("  " * depth + "- deep\n" for depth in range(400)),
    "items in one line": "- " * 3000 + "deep",
    "links that never end": "[a](b" * 20_000,
    "brackets": "[" * 50_000,
    "emphasis": "_a" * 30_000,
    "emphasis, closed": "*a**b" * 20_000,
    "struck out": "~~a" * 20_000,
    "code that never ends": "`a``b" * 20_000,
    "tags": "<a " * 30_000,
    "backslashes": "\\[" * 30_000,
}
BUSIEST = 3.0  # seconds of the page's thread


@pytest.mark.parametrize("name", SLOW)
def test_what_is_slow_to_read_is_shown_as_it_stands(
    name: str, stand: Stand, open_page: OpenPage
) -> None:
    """The thread's processor time is counted, which no neighbour changes."""
    text = f"Before.\n\n{SLOW[name]}\n\nAfter, **bold**."
    page = open_page(stand(answers={CHAT: reports.answer(text, size=2_000)}).url)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.get_by_label("Message", exact=True).fill("Talk")
    page.keyboard.press("Enter")
    page.get_by_label("What was sent").wait_for()
    expect(page.locator(".markdown strong")).to_have_text("bold")
    expect(page.locator(".markdown")).to_contain_text(SLOW[name].strip()[-20:].strip("> -"))
    metrics = session.send("Performance.getMetrics")["metrics"]
    spent = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
    assert 0 < spent < BUSIEST
