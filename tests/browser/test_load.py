"""What the page costs: bytes at the first load, and its thread's time while answers come."""

import gzip

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.standin import CONSOLE

pytestmark = pytest.mark.browser

CHAT = ("POST", "/v1/chat/completions")
FIRST_LOAD = 65_000  # bytes, compressed
ALL = 380_000  # the same, of all pages, charts, the highlighter and icons
PDF = ("pdf.", "openjpeg")
READER = 700_000  # the same, of what reads PDFs, fetched with the first one
REQUESTS = 12  # of files
SECONDS = 4.0
BLOCK = """Some **words** and `code`.

- one
- two

```python
print(1)
```

| a | b |
|---|---|
| c | d |

"""


def test_the_first_load_is_small(stand: Stand, open_page: OpenPage) -> None:
    page = open_page("about:blank")
    server = stand()
    files: set[str] = set()
    page.on("request", lambda request: files.add(request.url.split("#")[0]))
    page.goto(server.url)
    page.get_by_label("Message", exact=True).wait_for()
    names = {url.removeprefix(server.url) or "index.html" for url in files if "/ui/" in url}
    assert "vendor/preact.js" in names
    total = sum(len(gzip.compress((CONSOLE / name).read_bytes())) for name in names)
    assert total < FIRST_LOAD, total
    assert len(names) <= REQUESTS, sorted(names)
    sizes = {path: len(gzip.compress(path.read_bytes())) for path in CONSOLE.rglob("*.*")}
    reader = sum(size for path, size in sizes.items() if path.name.startswith(PDF))
    assert 0 < reader < READER, reader
    assert sum(sizes.values()) - reader < ALL, sizes


def test_the_page_can_be_installed(stand: Stand, open_page: OpenPage) -> None:
    """A manifest with icons, and no service worker: what is shown is what the server has."""
    page = open_page(stand().url)
    page.get_by_label("Message", exact=True).wait_for()
    session = page.context.new_cdp_session(page)
    manifest = session.send("Page.getAppManifest")
    assert manifest["url"].endswith("/ui/manifest.webmanifest")
    assert manifest["errors"] == []
    errors = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [one["errorId"] for one in errors] == ["in-incognito"]  # as every page of a test is
    workers = "navigator.serviceWorker.getRegistrations().then(all => all.length)"
    assert page.evaluate(workers) == 0


def test_thousands_of_blocks_of_code_leave_half_of_the_thread_free(
    stand: Stand, open_page: OpenPage
) -> None:
    text = "```python\nprint(1)\n```\n\n" * 5_000
    page = open_page(stand(answers={CHAT: reports.answer(text, pause=0.002, size=25)}).url)
    page.get_by_label("Message", exact=True).fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator(".snippet").nth(20)).to_be_attached()
    assert 0 < least_busy(page) < 0.5


FRAMES = """
    window.frames = 0;
    const count = () => { window.frames += 1; requestAnimationFrame(count); };
    new MutationObserver((_, it) => {
        if (document.querySelector(".snippet")) { it.disconnect(); count(); }
    }).observe(document, {childList: true, subtree: true});
"""


def test_an_answer_with_a_thousand_blocks_is_opened_without_a_pause(
    stand: Stand, open_page: OpenPage
) -> None:
    text = "```python\nprint(1)\n```\n\n" * 1_000
    page = open_page(stand(answers={CHAT: reports.answer(text, size=1_000)}).url)
    page.get_by_label("Message", exact=True).fill("Talk")
    page.keyboard.press("Enter")
    page.get_by_label("What was sent").wait_for()
    page.add_init_script(FRAMES)
    page.reload()
    expect(page.locator(".snippet")).to_have_count(1_000)
    assert page.evaluate("window.frames") > 3  # was drawn in between


def test_four_streams_leave_half_of_the_thread_free(stand: Stand, open_page: OpenPage) -> None:
    """Two beside each other, two in another conversation; each a hundred tokens a second, with
    Markdown in it.
    """
    server = stand(answers={CHAT: reports.answer(BLOCK * 2_000, pause=0.01, size=4)})
    page = open_page(server.url)
    page.get_by_label("Two models side by side").click()
    for number in range(2):
        page.get_by_label("Message", exact=True).fill(f"Talk {number}")
        page.keyboard.press("Enter")
        expect(page.locator(".markdown").first).to_contain_text("Some words")
        if number == 0:
            page.get_by_label("New conversation").click()
    share = least_busy(page)
    expect(page.get_by_text("answering…")).to_have_count(2)
    assert 0 < share < 0.5, share


def least_busy(page: Page) -> float:
    """Of two windows, in both of which answers come: a task takes more processor time while others
    have the caches and the other half of a core.
    """
    return min(busy(page), busy(page))


def busy(page: Page) -> float:
    """The share of its time in which the page's thread computes, over the next `SECONDS`. Its
    processor time is counted, which no neighbour changes.
    """
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> tuple[float, float]:
        """Seconds of the thread, and of the clock: a wait may take longer than it should."""
        metrics = session.send("Performance.getMetrics")["metrics"]
        found = {one["name"]: one["value"] for one in metrics}
        return float(found["TaskDuration"]), float(found["Timestamp"])

    before, began = spent()
    page.wait_for_timeout(SECONDS * 1000)
    after, ended = spent()
    return (after - before) / (ended - began)
