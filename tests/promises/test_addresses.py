"""Where a server listens, and what it answers whoever asks for no body."""

import socket
from pathlib import Path

import httpx
import pytest

from tests.hang import HANG
from tests.served import Serve, scripted


@pytest.mark.parametrize("host", ["::", "*"])
def test_every_address_is_one_of_both_kinds(host: str, serve: Serve, tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    settings = {"host": host, "allow_open": True}
    server = serve({"models": [scripted(tmp_path, "m")], "server": settings})
    for address in ("127.0.0.1", "[::1]"):
        assert httpx.get(f"http://{address}:{server.port}/health", timeout=HANG).is_success


def test_a_socket_of_this_machine_is_served_again_after_a_crash(
    serve: Serve, tmp_path: Path
) -> None:
    place = tmp_path / "x.sock"
    for _ in range(2):
        server = serve({"models": [scripted(tmp_path, "m")], "server": {"host": f"unix:{place}"}})
        assert f"curl --unix-socket {place} http://localhost/v1/" in server.out.line_with("try:")
        transport = httpx.HTTPTransport(uds=str(place))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}
            assert client.post("/v1/chat/completions", json=body, timeout=HANG).is_success
        server.kill()


def test_head_is_answered_wherever_get_is(serve: Serve, tmp_path: Path) -> None:
    client = serve({"models": [scripted(tmp_path, "m")]}).client
    for path in ("/health", "/v1/models", "/v1/models/m", "/ui/", "/metrics"):
        asked, got = client.head(path), client.get(path)
        assert (asked.status_code, asked.content) == (got.status_code, b"") == (200, b""), path
        assert asked.headers["content-type"] == got.headers["content-type"]
    assert client.head("/v1/admin/events").is_success  # a stream, which would have no end
    assert client.head("/v1/models/nobody").status_code == 404
    assert client.get("/health").is_success
    counted = 'method="POST",route="/v1/chat/completions",status="500"} 0.0'
    assert counted in client.get("/metrics").text, "what has failed for the first time increases"
