"""The files of the console's page, read once and kept in memory, each compressed at its first
request.

A page of this server may talk to it with its reader's key, so nothing runs in it but these files:
no inline script, nothing from another host, no frame around it.
"""

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec
from anyio import to_thread
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from gateway.http.auth import AnyRequest
from gateway.http.sse import Plain
from gateway.terms.errors import NotFound

FOLDER = Path(__file__).parents[1] / "console"
INDEX = "index.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
OTHER_TYPE = "text/plain; charset=utf-8"  # licences and the like; never run, see nosniff
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # a browser revalidates, and gets 304
    "vary": "accept-encoding",
}


class PageFile(msgspec.Struct, frozen=True):
    """One file as it is sent."""

    media_type: str
    content: bytes
    tag: str  # an entity tag (RFC 9110, section 8.8.3), of the content


def page_files(folder: Path) -> Mapping[str, PageFile]:
    """Everything in `folder` by its path below it; hidden files and links are left out. Blocks."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not path.is_symlink() and not hidden:
            content = path.read_bytes()
            found[name.as_posix()] = PageFile(
                media_type=TYPES.get(path.suffix, OTHER_TYPE),
                content=content,
                tag=f'"{sha256(content).hexdigest()[:32]}"',
            )
    return found


@cache
def packed(content: bytes) -> bytes | None:
    """`content` compressed; None where that gains nothing. Blocks, once for each."""
    small = gzip.compress(content, mtime=0)
    return small if len(small) < len(content) else None


def page_routes(files: Mapping[str, PageFile]) -> list[HTTPRouteHandler]:
    """The routes of the page. They ask for no key, since there is no secret in it."""

    @get(["/", "/ui"], access="open")
    async def index(request: AnyRequest) -> ASGIApp:
        """The page; its own addresses begin behind the slash."""
        if request.scope["raw_path"].endswith(b"/ui/"):
            return await _answer(request, files.get(INDEX))
        return Plain(b"", status=307, headers={"location": "ui/", **HEADERS})

    @get("/ui/{path:path}", access="open")
    async def file(request: AnyRequest, path: str) -> ASGIApp:
        """A file of the page."""
        return await _answer(request, files.get(str(path).lstrip("/")))

    return [index, file]


async def _answer(request: AnyRequest, file: PageFile | None) -> ASGIApp:
    """Raises NotFound."""
    if file is None:
        raise NotFound(f"The page has no file {request.url.path!r:.200}.")
    headers = {**HEADERS, "etag": file.tag}
    known = request.headers.get("if-none-match", "").split(",")
    if file.tag in [tag.strip().removeprefix("W/") for tag in known]:  # weak by what compresses
        return Plain(b"", status=304, media_type=file.media_type.encode(), headers=headers)
    body, packs = file.content, _takes_gzip(request.headers.get("accept-encoding", ""))
    if packs and (small := await to_thread.run_sync(packed, file.content)) is not None:
        body, headers["content-encoding"] = small, "gzip"
    return Plain(body, media_type=file.media_type.encode(), headers=headers)


def _takes_gzip(header: str) -> bool:
    for coding in header.lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
