"""Without keys a web page may not use this server, whatever it makes its reader's browser send."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec
import pytest
from litestar.datastructures import Headers

from config.settings import KeyConfig, ServerConfig
from gateway.http.auth import OriginGuard
from gateway.http.metrics import Metrics
from gateway.registry import ModelLibrary, Registry
from gateway.serving.app import build
from gateway.terms.errors import Forbidden, GatewayError
from tests.gateway.http.serving import HELLO, Running, config, serving, state

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
EVIL = "http://evil.example"
FRONTEND = "http://localhost:3000"
BODY = b'{"model": "scripted", "model_name": "scripted"}'


def nobody(_origin: str) -> bool:
    return False


def frontend(origin: str) -> bool:
    return origin == FRONTEND


def taken(
    server: ServerConfig, *headers: tuple[bytes, bytes], method: str = "POST"
) -> GatewayError | None:
    """The refusal of a request with `headers`, if there is one."""
    try:
        OriginGuard(server, frontend).check(method, Headers(headers))
    except GatewayError as error:
        return error
    return None


LOOPBACK, OPEN = ServerConfig(), ServerConfig(host="0.0.0.0", allow_open=True)
NAMED = ServerConfig(hosts=("ai.example", "BOX.lan:8443"))


@pytest.mark.parametrize(
    ("server", "host"),
    [
        (LOOPBACK, "localhost:8000"),
        (LOOPBACK, "LOCALHOST"),
        (LOOPBACK, "localhost:8000 \t"),  # as the parser leaves it
        (LOOPBACK, "localhost.:9000"),  # a tunnel's port
        (LOOPBACK, "127.0.0.1:8000"),
        (LOOPBACK, "[::1]:8000"),
        (ServerConfig(host="::1"), "[::1]"),
        (ServerConfig(host="box"), "box:8000"),
        (NAMED, "ai.example"),
        (NAMED, "box.lan"),
        (OPEN, "192.168.1.7:8000"),
        (OPEN, "[fd00::7]:8000"),
        (OPEN, "8.8.8.8"),
    ],
)
def test_our_own_hosts_are_taken(server: ServerConfig, host: str) -> None:
    assert taken(server, (b"host", host.encode())) is None


@pytest.mark.parametrize(
    ("server", "host"),
    [
        (LOOPBACK, "evil.example:8000"),  # made to point at 127.0.0.1
        (LOOPBACK, "localhost.evil.example"),
        (LOOPBACK, "127.0.0.1.evil.example"),
        (LOOPBACK, "192.168.1.7"),
        (LOOPBACK, ""),
        (LOOPBACK, "localhost@evil.example"),
        (LOOPBACK, "localhost:80:80"),
        (LOOPBACK, "[::1"),
        (OPEN, "evil.example"),
        (OPEN, "box"),
        (NAMED, "www.ai.example"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_other_hosts_are_refused_by_the_options_name(
    server: ServerConfig, host: str, method: str
) -> None:
    error = taken(server, (b"host", host.encode()), method=method)
    assert isinstance(error, Forbidden)
    assert "server.hosts" in error.message
    two = ((b"host", b"localhost"), (b"host", host.encode()))
    assert isinstance(taken(server, *two, method=method), Forbidden)


@pytest.mark.parametrize(
    ("origin", "fine"),
    [
        ("http://localhost:8000", True),  # a page of our own
        (FRONTEND, True),
        (f"{FRONTEND} ", True),
        ("http://localhost:8001", False),  # another server on this machine
        ("http://127.0.0.1:8000", False),  # not as the browser sees it
        (EVIL, False),
        ("null", False),  # a file, a sandboxed frame, a redirect
        ("", False),
        ("file://", False),
        ("http://localhost:3000.evil.example", False),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_others_are_refused_unless_named(origin: str, fine: bool, method: str) -> None:
    error = taken(
        LOOPBACK, (b"host", b"localhost:8000"), (b"origin", origin.encode()), method=method
    )
    assert (error is None) == fine
    if error is not None:
        assert "server.cors_origins" in error.message


@pytest.mark.parametrize(
    ("site", "fine"),
    [("none", True), ("same-origin", True), ("same-site", False), ("cross-site", False)],
)
def test_a_browser_that_sends_no_origin_still_says_where_it_is(site: str, fine: bool) -> None:
    headers = ((b"host", b"localhost"), (b"sec-fetch-site", site.encode()))
    assert (taken(LOOPBACK, *headers) is None) == fine
    assert taken(LOOPBACK, *headers, method="GET") is None  # a link that was followed


@pytest.mark.parametrize(
    ("kind", "fine"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/vnd.api+json", True),
        ("text/plain", False),
        ("Text/Plain;charset=UTF-8", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("", False),
        (None, False),
    ],
)
@pytest.mark.parametrize("size", [(b"content-length", b"2"), (b"transfer-encoding", b"chunked")])
@pytest.mark.parametrize(
    "mark",
    [
        (b"origin", b"http://localhost"),
        (b"referer", b"http://localhost/page"),
        (b"sec-fetch-site", b"same-origin"),
        (b"sec-fetch-mode", b"no-cors"),
    ],
)
def test_a_browsers_body_needs_a_content_type_that_takes_a_preflight(
    kind: str | None, fine: bool, size: tuple[bytes, bytes], mark: tuple[bytes, bytes]
) -> None:
    given = () if kind is None else ((b"content-type", kind.encode()),)
    error = taken(LOOPBACK, (b"host", b"localhost"), size, mark, *given)
    assert (error is None) == fine
    if error is not None:
        assert error.status_hint == httpx.codes.UNSUPPORTED_MEDIA_TYPE
        assert "application/json" in error.message
    assert taken(LOOPBACK, (b"host", b"localhost"), size, *given) is None  # no browser


def test_without_a_body_no_content_type_is_needed() -> None:
    assert taken(LOOPBACK, (b"host", b"localhost")) is None
    assert taken(LOOPBACK, (b"host", b"localhost"), (b"content-length", b"0")) is None


# ------------------------------------------------------------------------------- on a real server


def every_route(folder: Path) -> Sequence[tuple[str, str]]:
    """Method and path of all that is registered, whoever added it."""
    settings = config(folder)
    app = build(settings, Registry(ModelLibrary(settings), settings), Metrics())
    return [
        (str(method), route.path.replace("{model_id:path}", "scripted"))
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "OPTIONS"
    ]


ATTACKS = (
    {**JSON, "origin": EVIL},
    {**JSON, "origin": "null"},
    {**JSON, "host": "evil.example"},  # its name was made to point here
    {**JSON, "host": "evil.example", "origin": EVIL},
    {"content-type": "text/plain", "origin": EVIL},
)


async def test_no_route_is_carried_out_for_a_page_of_others(tmp_path: Path) -> None:
    routes = every_route(tmp_path)
    assert ("POST", "/unload") in routes
    assert ("DELETE", "/models") in routes
    async with serving(config(tmp_path), tmp_path) as running:
        await running.registry.load("scripted")
        for method, path in routes:
            for headers in ATTACKS:
                answer = await running.client.request(
                    method, path, content=None if method == "GET" else BODY, headers=headers
                )
                assert answer.status_code == 403, (method, path, headers)
                assert method == "HEAD" or '"permission_denied"' in answer.text
            if method not in ("GET", "HEAD"):
                for kind in ("text/plain", "application/x-www-form-urlencoded"):
                    answer = await running.client.request(
                        method,
                        path,
                        content=BODY,
                        headers={"content-type": kind, "referer": f"{EVIL}/page"},
                    )
                    assert answer.status_code == 415, (method, path, kind)
        assert running.registry.status("scripted").state == "loaded"
        assert running.registry.status("roundhouse-tiny").state == "unloaded"


async def test_what_only_reads_moves_nothing(tmp_path: Path) -> None:
    """A link that a page makes its reader follow is such a request, and is answered."""
    routes = {path for method, path in every_route(tmp_path) if method == "GET"}
    routes.remove("/logs/stream")  # silent here: this server has no lines
    async with serving(config(tmp_path), tmp_path) as running:
        for path in routes:
            async with running.client.stream("GET", path, params={"model": "scripted"}) as answer:
                await anext(answer.aiter_raw(), None)  # an event stream has no end
        assert {one.state for one in running.registry.statuses()} == {"unloaded"}


async def test_a_dialects_own_error_form_is_kept(running: Running) -> None:
    answer = await running.client.post("/v1/model/unload", headers={"origin": EVIL})
    assert answer.json()["detail"] == answer.json()["error"]["message"]


async def test_with_keys_host_origin_and_content_type_dont_matter(tmp_path: Path) -> None:
    keys = (KeyConfig(key="admin", role="admin"),)
    async with serving(config(tmp_path, keys=keys), tmp_path) as running:
        headers = {
            "host": "anything",
            "origin": EVIL,
            "content-type": "text/plain",
            "x-api-key": "admin",
        }
        order = b'{"model_name": "scripted"}'
        answer = await running.client.post("/v1/model/load", content=order, headers=headers)
        assert answer.status_code == 200
        await state(running, "scripted", "loaded")


async def test_frontends_that_call_from_their_own_server_are_served(running: Running) -> None:
    """SillyTavern (node-fetch) and Open WebUI (aiohttp): no Origin, no Sec-Fetch-Site."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    for agent in ("node-fetch", "Python/3.11 aiohttp/3.13"):
        for host in (f"127.0.0.1:{running.port}", f"localhost:{running.port}"):
            headers = {**JSON, "host": host, "user-agent": agent}
            answer = await running.client.post(
                "/v1/chat/completions", content=msgspec.json.encode(body), headers=headers
            )
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},  # aider, and LiteLLM's way to Ollama
        {"content-type": "application/x-www-form-urlencoded", "user-agent": "curl/8.5.0"},
    ],
)
async def test_a_program_needs_no_content_type(running: Running, headers: dict[str, str]) -> None:
    """As Ollama's documentation has it: `curl http://localhost:11434/api/generate -d '{...}'`."""
    bodies = {
        "/api/generate": {"model": "scripted", "prompt": "Hi", "stream": False},
        "/api/chat": {"model": "scripted", "messages": HELLO, "stream": False},
        "/v1/chat/completions": {"model": "scripted", "messages": HELLO},
    }
    for path, body in bodies.items():
        content = msgspec.json.encode(body)
        answer = await running.client.post(path, content=content, headers=headers)
        assert answer.status_code == 200, (path, answer.text)
        assert "Hello from the script." in answer.text


async def test_open_webuis_direct_connections_are_served_where_its_origin_is_named(
    tmp_path: Path,
) -> None:
    settings = config(tmp_path, server=ServerConfig(cors_origins=(FRONTEND,)))
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os,openai-beta",
    }
    async with serving(settings, tmp_path) as running:
        for origin, allowed in ((FRONTEND, True), (EVIL, False)):
            preflight = await running.client.options(
                "/v1/chat/completions", headers={**asks, "origin": origin}
            )
            granted = preflight.headers.get("access-control-allow-origin")
            assert (granted == origin) == allowed
            answer = await running.client.post(
                "/v1/chat/completions",
                json={"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]},
                headers={"origin": origin, "sec-fetch-site": "cross-site"},
            )
            assert (answer.status_code == 200) == allowed
            assert (answer.headers.get("access-control-allow-origin") == origin) == allowed
