"""Chromium for all tests, a fresh page for each, and where screenshots go."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

import bundled
from tests.browser import reports
from tests.browser.standin import Answers, StandIn, standing_in
from tests.gateway.hub.standin import StandIn as HubStandIn
from tests.gateway.hub.standin import standin as hub_standin
from tests.hang import HANG
from tests.served import served

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome")

WAIT = float(os.environ.get("BROWSER_WAIT", HANG))  # shorter while one writes a test

UNFOLDED = 'localStorage["roundhouse.chat.panel"] ??= "true"'

OpenPage: TypeAlias = Callable[..., Page]
Stand: TypeAlias = Callable[..., StandIn]


def program() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def arguments_of(path: str | None) -> dict[str, Any]:
    """How it is started. Root can't make the sandbox; containers have a small /dev/shm."""
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
    return {"executable_path": path, "args": arguments}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if (found := program()) is None:
        pytest.skip("no chromium on this machine")
    expect.set_options(timeout=WAIT * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**arguments_of(found))
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[OpenPage]:
    """Opens pages. What one says on its console as an error fails the test. `panel`: the settings
    beside the conversation are unfolded.
    """
    contexts, faults = [], []

    def hear(message: ConsoleMessage) -> None:
        # The browser's own line about a status above 400, which the page shows in its way.
        if message.type == "error" and "the server responded with a status" not in message.text:
            faults.append(message.text)

    def opened(
        url: str, *, width: int = 1440, theme: Any = "light", height: int = 900, panel: bool = False
    ) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            ignore_https_errors=True,  # a certificate that a test made
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT * 1000)
        if panel:
            page.add_init_script(UNFOLDED)
        page.on("console", hear)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def stand() -> Iterator[Stand]:
    """Stand-ins for the server, to the end of the test."""
    with ExitStack() as stack:

        def begin(
            snapshot: dict[str, Any] | None = None, answers: Answers | None = None
        ) -> StandIn:
            given = {
                ("GET", "/v1/admin/sampling"): reports.sampling("qwen3-8b"),
                **(answers or {}),
            }
            return stack.enter_context(standing_in(snapshot or reports.snapshot(), given))

        yield begin


class Held:
    """A page's requests to addresses like `url`, which wait until they are let go."""

    def __init__(self, page: Page, url: str) -> None:
        self._routes: list[Route] | None = []
        page.route(url, self._come)

    def _come(self, route: Route) -> None:
        if self._routes is None:
            route.continue_()
        else:
            self._routes.append(route)

    def let_go(self) -> None:
        """Those that wait and all that come."""
        routes, self._routes = self._routes or [], None
        for route in routes:
            route.continue_()


@pytest.fixture
def shoot() -> Callable[[Page, str], None]:
    """Keeps a picture of a page, to be looked at."""
    SHOTS.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> None:
        page.screenshot(path=SHOTS / f"{name}.png")

    return take


# -------------------------------------------------------------------------------- the real server

TEMPLATE = ROOT / "tests" / "gateway" / "prompt" / "templates" / "vision.jinja"
ADMIN, USER = "the-administrators-key", "a-users-key"
SAYS = "A **bold** word, and `code`.\n\n```python\nprint(1)\n```\n\n"
CALL = '{"name": "weather", "arguments": {"city": "Bern"}}'
LINES = [
    {"when": "think", "say": "<think>Let me see.</think>\n\nSeen."},
    {"when": "call", "say": f"<tool_call>\n{CALL}\n</tool_call>"},
    {"when": "long", "say": SAYS * 2_000},
    {"when": "", "say": "Hello from the script. {images}"},
]  # fmt: skip


@contextmanager
def real_server(folder: Path, *, keys: bool = False, hub: str | None = None) -> Iterator[str]:
    """The bundled model and two scripted ones on a port of their own; the address of the page."""
    alpha, beta = folder / "alpha.script.json", folder / "beta.script.json"
    alpha.write_text(
        json.dumps({"lines": LINES, "size_bytes": 400_000_000, "context_length": 1_000_000})
    )
    seeing = {"modalities": ["text", "image"], "chat_template": TEMPLATE.read_text()}
    beta.write_text(json.dumps({"lines": LINES, "size_bytes": 250_000_000, **seeing}))
    settings: dict[str, Any] = {
        "models": [
            {"name": "roundhouse-tiny", "path": str(bundled.GGUF), "preload": True},
            {"name": "alpha", "path": str(alpha), "options": {"tokens_per_second": 200}},
            {"name": "beta", "path": str(beta), "options": {"load_seconds": 0.5}},
        ],
        "model_dirs": [str(folder / "models")],
        "hub": {"cached_models": False, "endpoint": hub},
        "swap": {"ttl": 900.0},
        "console": {"model_paths": [str(folder / "disk")], "sync": True},
    }
    (folder / "disk").mkdir()
    (folder / "disk" / "file.gguf").write_bytes(bundled.GGUF.read_bytes())
    (folder / "models").mkdir()
    if keys:
        settings["keys"] = [
            {"key": ADMIN, "role": "admin", "label": "laptop"},
            {"key": USER, "models": ["alpha"], "label": "phone"},
        ]
    with served(folder, settings) as server:
        yield f"{server.url}/ui/"


@pytest.fixture(scope="module")
def hub() -> Iterator[HubStandIn]:
    """A hub whose one repository, org/small, has the bundled model."""
    with start_blocking_portal() as portal:
        files = {"small-Q4_K_M.gguf": bundled.GGUF.read_bytes()}
        with portal.wrap_async_context_manager(hub_standin(files)) as running:
            yield running


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, hub: HubStandIn) -> Iterator[str]:
    with real_server(tmp_path_factory.mktemp("open"), hub=hub.url) as url:
        yield url


@pytest.fixture(scope="module")
def real_with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_server(tmp_path_factory.mktemp("keys"), keys=True) as url:
        yield url
