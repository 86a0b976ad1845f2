"""Models that come: from the hub, and from the reader's own computer; and the words of the list."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import reports
from tests.browser.conftest import OpenPage, Stand
from tests.browser.test_pages import ANSWERS, ESTIMATE, Shoot, check
from tests.browser.test_real import unloaded

pytestmark = pytest.mark.browser


def drop(page: Page, name: str) -> None:
    """A file of that name over the page."""
    page.evaluate(
        """name => {
            const data = new DataTransfer();
            data.items.add(new File(["GGUF and so on"], name));
            for (const kind of ["dragenter", "dragover", "drop"])
                document.querySelector(".page").dispatchEvent(
                    new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data}));
        }""",
        name,
    )


def test_the_first_minute_leads_from_the_demo_model_to_another(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    begun = {**reports.downloads()[0], "id": "9", "model": "Qwen/Qwen3-8B-GGUF", "done": 0}
    demo = reports.model("roundhouse-tiny", state="loaded", capabilities=["tools", "reasoning"])
    server = stand(
        reports.snapshot(models=[demo], downloads=[]),
        {**ANSWERS, ("POST", "/v1/admin/downloads"): (202, begun)},
    )
    page = open_page(server.url)
    expect(page.get_by_role("heading", name="Demo model")).to_be_visible()
    expect(page.get_by_role("button", name="What is 3 + 4?")).to_be_visible()
    offered = page.get_by_role("region", name="Models for this machine").get_by_role("listitem")
    expect(offered).to_have_count(1)  # of three one is gated, and one of unknown size
    expect(offered).to_contain_text("about 62 tok/s")
    check(page)
    shoot(page, "first-minute")
    page.get_by_label("Download Qwen/Qwen3-8B-GGUF").click()
    assert server.sent("POST", "/v1/admin/downloads") == [{"model": "Qwen/Qwen3-8B-GGUF"}]
    path = "/models/Qwen/Qwen3-8B-Q4_K_M.gguf"
    server.tell("model", reports.model("qwen3-8b-q4_k_m", file="Qwen3-8B-Q4_K_M.gguf"))
    server.tell("download", {**begun, "state": "finished", "path": path})
    page.get_by_text("Chat with it").click()
    expect(page.get_by_label("Model: qwen3-8b-q4_k_m")).to_be_visible()


def test_a_quantization_is_chosen_and_downloaded(stand: Stand, open_page: OpenPage) -> None:
    begun = {**reports.downloads()[0], "id": "9", "model": "org/name:Q8_0", "done": 0}
    server = stand(answers={**ANSWERS, ("POST", "/v1/admin/downloads"): (202, begun)})
    page = open_page(f"{server.url}#/models")
    page.get_by_text("Add a model").click()
    page.get_by_label("Search the hub").fill("hf:org/name:Q8_0")
    page.get_by_text("Look").click()
    choices = page.get_by_role("list", name="Quantizations").get_by_role("listitem")
    expect(choices).to_contain_text(["Q8_0", "Q4_K_M", "BF16"])  # the one that was named is first
    expect(choices.nth(1)).to_contain_text("fits")
    expect(choices.nth(2)).to_contain_text("doesn’t fit")
    page.get_by_label("Download Q8_0").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert server.sent("POST", "/v1/admin/downloads") == [{"model": "org/name:Q8_0"}]
    server.tell("download", begun)
    expect(page.locator(".transfer", has_text="org/name:Q8_0")).to_be_visible()


def test_a_download_is_stopped_resumed_and_taken_off_the_list(
    stand: Stand, open_page: OpenPage
) -> None:
    running = reports.downloads()[0]
    paths = {("POST", f"/v1/admin/downloads/1/{act}"): running for act in ("stop", "resume")}
    removed = {("DELETE", "/v1/admin/downloads/1"): {"removed": "1"}}
    server = stand(reports.snapshot(downloads=[running]), {**paths, **removed})
    page = open_page(f"{server.url}#/models")
    transfer = page.locator(".transfer")
    expect(transfer).to_contain_text("2.10 GiB of 5.00 GiB · 50.0 MiB/s · 56 s left")
    transfer.get_by_text("Stop").click()
    assert server.sent("POST", "/v1/admin/downloads/1/stop")
    server.tell("download", {**running, "state": "stopped", "bytes_per_second": None})
    expect(transfer).to_contain_text("Stopped at 2.10 GiB of 5.00 GiB")
    transfer.get_by_text("Resume").click()
    assert server.sent("POST", "/v1/admin/downloads/1/resume")
    server.tell("download", {**running, "done": 4 * reports.GIB})
    expect(transfer).to_contain_text("4.00 GiB of 5.00 GiB")
    transfer.get_by_label("Remove Qwen/Qwen3-14B-GGUF:Q4_K_M from the list").click()
    assert server.sent("DELETE", "/v1/admin/downloads/1")
    server.tell("download_removed", {"id": "1"})
    expect(transfer).to_have_count(0)
    acts = [
        (how, path.rsplit("/", 1)[-1]) for how, path, _ in server.calls if "downloads/1" in path
    ]
    assert acts == [("POST", "stop"), ("POST", "resume"), ("DELETE", "1")]


def test_a_file_is_dragged_in(stand: Stand, open_page: OpenPage) -> None:
    path = "/v1/admin/uploads/mine.gguf"
    server = stand(answers={("PUT", path): (201, {"name": "mine.gguf", "models": ["mine"]})})
    page = open_page(f"{server.url}#/models")
    page.get_by_role("heading", name="Models", level=1).wait_for()
    drop(page, "mine.gguf")
    expect(page.get_by_text("mine.gguf is there.")).to_be_visible()
    expect(page.get_by_role("button", name="Chat with it")).to_be_visible()
    assert server.sent("PUT", path) == [b"GGUF and so on"]
    drop(page, "mine.safetensors")
    expect(page.get_by_text("mine.safetensors is no GGUF file.")).to_be_visible()


def test_a_file_that_is_refused_says_why(stand: Stand, open_page: OpenPage) -> None:
    refusal = (409, {"error": {"message": "mine.gguf: the name is taken", "code": "taken"}})
    server = stand(answers={("PUT", "/v1/admin/uploads/mine.gguf"): refusal})
    page = open_page(f"{server.url}#/models")
    page.get_by_role("heading", name="Models", level=1).wait_for()
    drop(page, "mine.gguf")
    expect(page.locator(".transfer .bad").first).to_have_text("mine.gguf: the name is taken")
    page.get_by_label("Stop mine.gguf").click()
    expect(page.locator(".transfer", has_text="mine.gguf")).to_have_count(0)


REPOSITORIES = {
    "owner/name": ["owner/name", None],
    "hf:owner/name:Q4_K_M": ["owner/name", "Q4_K_M"],
    "https://huggingface.co/owner/name": ["owner/name", None],
    "https://hf.co/owner/name/tree/main": ["owner/name", None],
    " owner/na.me-GGUF ": ["owner/na.me-GGUF", None],
    "name": None,
    "a/b/c": None,
    "": None,
}


def test_what_people_paste_names_a_repository(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand().url)
    page.get_by_label("Message", exact=True).wait_for()
    found: Any = page.evaluate(
        """async texts => {
            const {repositoryOf} = await import("/ui/models/hub.js");
            return texts.map(text => {
                const it = repositoryOf(text);
                return it && [it.repository, it.quantization];
            });
        }""",
        list(REPOSITORIES),
    )
    assert dict(zip(REPOSITORIES, found, strict=True)) == REPOSITORIES


def test_the_estimate_follows_what_is_set(stand: Stand, open_page: OpenPage, shoot: Shoot) -> None:
    large = {
        **ESTIMATE,
        "context_length": 131_072,
        "devices": [{**ESTIMATE["devices"][0], "needs": 21_000_000_000}],
        "fit": {"verdict": "fits_after", "unload": ["glm-4-9b"], "why": None},
    }
    server = stand(answers=ANSWERS)
    page = open_page(f"{server.url}#/models")
    page.get_by_label("Actions for mistral-small-24b").click()
    page.get_by_role("menuitem", name="Load with options…").click()
    estimate = page.get_by_role("region", name="Estimate")
    expect(estimate.get_by_text("fits", exact=True)).to_be_visible()
    expect(page.get_by_text("mmap", exact=True)).not_to_be_visible()  # folded
    server.answers["POST", "/v1/admin/models/estimate"] = large
    page.get_by_role("slider", name="Context").fill("99")
    expect(estimate.get_by_text("fits after unloading glm-4-9b")).to_be_visible()
    asked = server.sent("POST", "/v1/admin/models/estimate")
    assert asked[0] == {"model": "mistral-small-24b", "options": {}}
    assert asked[-1]["options"] == {"context_length": 131_072}
    shoot(page, "load-dialog-estimate")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_load_dialog_is_whole(
    width: int, theme: str, real: str, open_page: OpenPage, shoot: Shoot
) -> None:
    page = open_page(f"{real}#/models", width=width, theme=theme)
    unloaded(page, "alpha")
    page.get_by_label("Actions for alpha").click()
    page.get_by_role("menuitem", name="Load with options…").click()
    estimate = page.get_by_role("region", name="Estimate")
    expect(estimate).to_have_attribute("aria-busy", "false")
    before = estimate.inner_text()
    page.get_by_role("slider", name="Context").fill("0")
    expect(estimate).to_contain_text("512 tokens of context")
    assert estimate.inner_text() != before
    check(page)
    shoot(page, f"load-dialog-{width}-{theme}")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_hub_is_searched_by_words(
    width: int, theme: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    server = stand(answers=ANSWERS)
    page = open_page(f"{server.url}#/models", width=width, theme=theme)
    page.get_by_text("Add a model").click()
    expect(page.get_by_text("What many take now, and this machine can hold")).to_be_visible()
    results = page.get_by_label("Models on the hub").get_by_role("listitem")
    expect(results).to_have_count(3)
    check(page)
    shoot(page, f"hub-{width}-{theme}")
    only = {"suggested": False, "models": reports.hub_models()[:1]}
    server.answers["GET", "/v1/admin/hub/search"] = only
    page.get_by_label("Search the hub").fill("qwen coder")
    expect(results).to_have_count(1)
    expect(results).to_contain_text("fits")
    asked = [path for _, path, _ in server.calls if "hub/search" in path]
    assert "words=qwen+coder" in asked[-1]
    results.first.get_by_role("button").click()
    expect(page.get_by_role("list", name="Quantizations").get_by_role("listitem")).to_have_count(3)
    page.get_by_text("Back", exact=True).click()
    expect(page.get_by_label("Search the hub")).to_be_visible()


def test_a_model_says_which_library_computes_it_and_why(
    stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    why = "it is faster for one request at a time"
    other = reports.model("small", library=f"ik_llama.cpp: {why}")
    server = stand(reports.snapshot(models=[other, reports.model("plain")]), ANSWERS)
    page = open_page(f"{server.url}#/models")
    engines = page.locator(".model .engine")
    expect(engines.filter(has_text="ik_llama.cpp")).to_have_count(1)
    page.get_by_role("button", name="small", exact=True).click()
    expect(page.locator(".model-details")).to_contain_text(why)
    check(page)
    shoot(page, "library")


def test_a_hub_that_is_away_says_so(stand: Stand, open_page: OpenPage) -> None:
    refusal = (503, {"error": {"message": "can't reach the hub", "code": "model_unavailable"}})
    server = stand(answers={**ANSWERS, ("GET", "/v1/admin/hub/search"): refusal})
    page = open_page(f"{server.url}#/models")
    page.get_by_text("Add a model").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("can't reach the hub")


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_model_that_failed_is_downloaded_again(
    width: int, theme: str, stand: Stand, open_page: OpenPage, shoot: Shoot
) -> None:
    again = {
        ("DELETE", "/v1/admin/models"): {"deleted": "broken-download"},
        ("POST", "/v1/admin/downloads"): (202, reports.downloads()[0]),
    }
    server = stand(answers={**ANSWERS, **again})
    page = open_page(f"{server.url}#/models", width=width, theme=theme, height=1800)
    failed = page.get_by_role("region", name="Failed")
    failed.get_by_role("button", name="broken-download", exact=True).click()
    about = failed.get_by_role("region", name="About broken-download")
    expect(about).to_contain_text("apache-2.0")
    about.get_by_text("Chat template").click()
    expect(about.get_by_label("Chat template", exact=True)).to_contain_text("im_start")
    check(page)
    shoot(page, f"model-details-{width}-{theme}")
    about.get_by_text("Download again…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Qwen3-8B-Q4_K_M.gguf")
    dialog.get_by_text("Delete and download").click()
    expect(dialog).to_have_count(0)
    assert server.sent("POST", "/v1/admin/downloads") == [{"model": "Qwen/Qwen3-8B-GGUF:Q4_K_M"}]
    how = [(one, path) for one, path, _ in server.calls if one == "DELETE"]
    assert how == [("DELETE", "/v1/admin/models?model=broken-download")]


def test_what_may_not_be_deleted_says_why(stand: Stand, open_page: OpenPage) -> None:
    kept = reports.details(deletable=False, why_not="deleting models is disabled (hub.deletion)")
    answers = {**ANSWERS, ("GET", "/v1/admin/models/details"): kept}
    page = open_page(f"{stand(answers=answers).url}#/models")
    page.get_by_role("button", name="mistral-small-24b", exact=True).click()
    expect(page.get_by_text("deleting models is disabled")).to_be_visible()
    expect(page.get_by_text("Delete files…")).to_be_disabled()


REASONS = {
    "/models/a/b.gguf: the file ends after 1.2 of 2.0 GiB": "the file ends after 1.2 of 2.0 GiB",
    "b.gguf: its header can't be read. Try again.": "its header can't be read",
    "x" * 200: "x" * 89 + "…",
    "": "It failed",
}


def test_failures_are_told_shortly_and_together(stand: Stand, open_page: OpenPage) -> None:
    page = open_page(stand().url)
    page.get_by_label("Message", exact=True).wait_for()
    found: Any = page.evaluate(
        """async reasons => {
            const {reasonOf, failedGroups} = await import("/ui/models/sorting.js");
            const models = ["1", "2"].map(id => ({id, why_failed: `it ends after ${id} GiB`}));
            const groups = failedGroups([...models, {id: "c", why_failed: "other"}]);
            return [reasons.map(why_failed => reasonOf({why_failed})),
                    groups.map(([, list]) => list.length)];
        }""",
        list(REASONS),
    )
    assert found == [list(REASONS.values()), [2, 1]]
