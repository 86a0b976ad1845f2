"""The page's files: as they are, compressed, unchanged ones not again, and nothing else runs."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from config.settings import ConsoleConfig, KeyConfig
from gateway.http.page import FOLDER
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio

SCRIPT = b"export const answer = 42\n" * 100
FILES = {
    "index.html": b"<!doctype html><title>Roundhouse</title>" + b" " * 200,
    "app.js": SCRIPT,
    "style.css": b"a{}",
    "vendor/some.LICENSE": b"Do what you want.",
    ".secret": b"not for anybody",
}
KEYS = (KeyConfig(key="user"),)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "page"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder.parent / "outside.js").write_bytes(b"outside")
    (folder / "link.js").symlink_to(folder.parent / "outside.js")
    return folder


@pytest.fixture(scope="module")
async def running(page: Path) -> AsyncIterator[Running]:
    folder = page.parent
    async with serving(config(folder, keys=KEYS), folder, page=page) as server:
        yield server


async def test_an_address_alone_leads_to_the_page_and_needs_no_key(running: Running) -> None:
    for path in ("/", "/ui"):
        answer = await running.client.get(path, follow_redirects=True)
        assert answer.url.path == "/ui/"
        assert answer.content == FILES["index.html"]
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


async def test_a_file_is_sent_as_its_kind_with_a_strict_policy(running: Running) -> None:
    kinds = {
        "app.js": "text/javascript; charset=utf-8",
        "style.css": "text/css; charset=utf-8",
        "vendor/some.LICENSE": "text/plain; charset=utf-8",
    }
    for name, kind in kinds.items():
        answer = await running.client.get(f"/ui/{name}")
        assert answer.content == FILES[name]
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        for part in ("default-src 'self'", "script-src 'self'", "frame-ancestors 'none'"):
            assert part in policy.split("; ")


async def test_it_is_compressed_for_who_takes_that(running: Running) -> None:
    async def sent(coding: str) -> httpx.Response:
        headers = {"accept-encoding": coding}
        async with running.client.stream("GET", "/ui/app.js", headers=headers) as answer:
            raw = b"".join([chunk async for chunk in answer.aiter_raw()])
            packed = answer.headers.get("content-encoding") == "gzip"
            assert (gzip.decompress(raw) if packed else raw) == SCRIPT
            assert (len(raw) < len(SCRIPT) / 10) == packed
            assert answer.headers["vary"] == "accept-encoding"
            return answer

    assert "content-encoding" in (await sent("br, gzip")).headers
    assert "content-encoding" in (await sent("*;q=0.5")).headers
    for coding in ("identity", "gzip;q=0", "br"):
        assert "content-encoding" not in (await sent(coding)).headers


async def test_what_a_browser_has_is_not_sent_again(running: Running) -> None:
    first = await running.client.get("/ui/app.js")
    tag = first.headers["etag"]
    other = (await running.client.get("/ui/style.css")).headers["etag"]
    assert tag != other
    for known, status in ((tag, 304), (f"W/{tag}, {other}", 304), (other, 200)):
        answer = await running.client.get("/ui/app.js", headers={"if-none-match": known})
        assert answer.status_code == status
        assert answer.content == (b"" if status == 304 else SCRIPT)


async def test_nothing_else_is_read_from_the_disk(running: Running) -> None:
    paths = (".secret", "link.js", "../outside.js", "..%2foutside.js", "%2e%2e/outside.js", "x")
    for path in paths:
        answer = await running.client.get(f"/ui/{path}")
        assert answer.status_code == 404, path
        assert b"outside" not in answer.content.replace(b"outside.js", b"")


async def test_a_page_elsewhere_is_not_served_without_keys(tmp_path: Path, page: Path) -> None:
    async with serving(config(tmp_path), tmp_path, page=page) as running:
        assert (await running.client.get("/ui/")).status_code == 200
        for path in ("/", "/ui/", "/ui/app.js"):
            answer = await running.client.get(path, headers={"host": "evil.example"})
            assert answer.status_code == 403


async def test_it_can_be_switched_off(tmp_path: Path, page: Path) -> None:
    settings = msgspec.structs.replace(config(tmp_path), console=ConsoleConfig(enabled=False))
    async with serving(settings, tmp_path, page=page) as running:
        for path in ("/ui/", "/ui/app.js"):
            assert (await running.client.get(path)).status_code == 404
        assert (await running.client.get("/")).status_code in (404, 405)


def test_the_page_lies_in_the_package() -> None:
    assert FOLDER.parts[-2:] == ("gateway", "console")
