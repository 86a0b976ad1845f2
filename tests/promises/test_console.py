"""The console's first load and its stream, on a process as users start it: all that the page names
is there, from this server alone, and what it shows comes at once.
"""

import json
import re
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest

import bundled
from tests.served import Served, served

LINKS = re.compile(r"""(?:src|href)=["']([^"'#]+)["']""")
IMPORTS = re.compile(r"""(?:from|import)\s*\(?["'](\.{0,2}/[^"']+)["']""")
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = {"models": [{"name": "tiny", "path": str(bundled.GGUF)}]}
    with served(tmp_path_factory.mktemp("console"), config) as server:
        yield server


def test_everything_that_the_page_loads_is_there_and_nothing_is_elsewhere(server: Served) -> None:
    page = server.client.get("/", follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src" in page.headers["content-security-policy"]
    base = str(page.url)
    linked = [link for link in LINKS.findall(page.text) if not link.startswith("data:")]
    left, known = {urljoin(base, link) for link in linked}, set[str]()
    assert left
    while left:
        url = left.pop()
        known.add(url)
        assert url.startswith(server.url), url
        answer = server.client.get(url)
        assert answer.status_code == 200, url
        kind = next((kind for end, kind in KINDS.items() if url.endswith(end)), "")
        assert answer.headers["content-type"].startswith(kind)
        if url.endswith(".js"):
            found = {urljoin(url, link) for link in IMPORTS.findall(answer.text)}
            left |= found - known
    assert len(known) > 10


def test_its_stream_begins_with_all_that_there_is(server: Served) -> None:
    with server.client.stream("GET", "/v1/admin/events") as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        first = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
    assert "tiny" in json.dumps(first)


def test_the_page_s_policy_lets_nothing_in(server: Served) -> None:
    policy = server.client.get("/ui/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy.replace("upgrade-insecure-requests", "")
