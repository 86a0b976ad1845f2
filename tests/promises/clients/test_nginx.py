"""What docs/operations.md says of nginx, with nginx."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.hang import HANG
from tests.proxied import NAME, behind_nginx, trust
from tests.served import Serve, scripted

pytestmark = pytest.mark.slow

HELLO = {"messages": [{"role": "user", "content": "Hello!"}]}
KEY = {"authorization": "Bearer user"}
KEYS = [{"key": "user", "label": "phone"}]
Proxied = Callable[[int], httpx.Client]


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    """Clients of nginx, which come from an address of their own."""
    with ExitStack() as stack:

        def client(port: int) -> httpx.Client:
            url = stack.enter_context(behind_nginx(tmp_path, port))
            transport = httpx.HTTPTransport(verify=trust(tmp_path), local_address="127.0.0.2")
            made = httpx.Client(transport=transport, base_url=url, timeout=HANG)
            made.headers["host"] = NAME
            return stack.enter_context(made)

        yield client


def test_a_stream_arrives_as_it_is_written(serve: Serve, proxied: Proxied, tmp_path: Path) -> None:
    """The whole answer would take ten minutes."""
    slow = scripted(tmp_path, "slow", "word " * 3000, tokens_per_second=5.0)
    client = proxied(serve({"keys": KEYS, "models": [slow]}).port)
    body = {**HELLO, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body, headers=KEY) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        texts = (json.loads(line[6:])["choices"][0]["delta"].get("content") for line in lines)
        assert next(text for text in texts if text)


@pytest.mark.parametrize(("trusted", "named"), [(["127.0.0.1"], "127.0.0.2"), ([], "127.0.0.1")])
def test_the_log_names_the_client_where_the_proxy_is_trusted(
    trusted: list[str], named: str, serve: Serve, proxied: Proxied, tmp_path: Path
) -> None:
    options = {"trusted_proxies": trusted}
    server = serve({"keys": KEYS, "models": [scripted(tmp_path, "demo")], "server": options})
    client = proxied(server.port)
    forged = {**KEY, "x-forwarded-for": "192.0.2.7"}
    assert client.post("/v1/chat/completions", json=HELLO, headers=forged).status_code == 200
    line = server.log.wait_for("request", lambda one: one.get("method") == "POST")
    assert line["client"] == named


def test_without_keys_the_name_that_was_called_counts(
    serve: Serve, proxied: Proxied, tmp_path: Path
) -> None:
    models = [scripted(tmp_path, "demo")]
    client = proxied(serve({"models": models, "server": {"hosts": [NAME]}}).port)
    page = {"origin": f"https://{NAME}", "sec-fetch-site": "same-origin"}
    assert client.post("/v1/chat/completions", json=HELLO, headers=page).status_code == 200
    assert client.get("/ui/").status_code == 200
    assert client.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    evil = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert client.post("/v1/chat/completions", json=HELLO, headers=evil).status_code == 403


def test_a_body_as_large_as_the_server_takes_comes_through(
    serve: Serve, proxied: Proxied, tmp_path: Path
) -> None:
    client = proxied(serve({"keys": KEYS, "models": [scripted(tmp_path, "demo")]}).port)
    large = {"messages": [{"role": "user", "content": "a" * (2 << 20)}]}
    answer = client.post("/v1/chat/completions", json=large, headers=KEY)
    assert answer.status_code == 400  # it is read, and longer than the context
    assert "context" in answer.text


def test_a_socket_comes_through(serve: Serve, tmp_path: Path) -> None:
    server = serve({"keys": KEYS, "models": [scripted(tmp_path, "demo")]})
    with behind_nginx(tmp_path, server.port, "/llm/") as url:
        place = f"{url.replace('https', 'wss')}/v1/responses"
        encrypted = trust(tmp_path)
        with connect(place, ssl=encrypted, additional_headers=KEY) as connection:
            connection.send(json.dumps({"type": "response.create", "model": "demo", "input": "Hi"}))
            assert json.loads(connection.recv(HANG))["type"] == "response.created"
        document = httpx.get(f"{url}/openapi.json", verify=encrypted, timeout=HANG)
        assert document.json()["servers"] == [{"url": "."}]
