"""Addresses that nobody can ask are refused where they are written, and end nothing."""

import json
from pathlib import Path
from typing import Any

from tests.served import Serve, command, scripted

CHAT = "/v1/chat/completions"
ODD = {  # by what is odd
    "zero-width": "http://gpu\u200b:8000/v1",
    "del": "http://gpu\x7f:8000",
    "line": "http://a\r\nb",
    "space": "http://a b",
    "idn": "http://xn--",
    "long": "http://" + "a" * 70_000,
    "port": "http://gpu:99999",
    "bracket": "http://[::1",
}


def test_odd_addresses_are_refused_and_end_nothing(serve: Serve, tmp_path: Path) -> None:
    demo = scripted(tmp_path, "demo")
    server = serve({"models": [demo]})
    for name, url in ODD.items():
        announced = server.client.post("/v1/upstreams", json={"url": url, "name": "box"})
        assert announced.status_code == 400, (name, announced.text)
        assert announced.json()["error"]["param"] == "url"
        for odd in (
            {"upstreams": [{"name": "far", "urls": [url]}]},
            {"upstreams": [{"name": "far", "urls": ["http://far"], "proxy": url}]},
            {"mcp": [{"name": "tools", "url": url}]},
            {"join": {"url": url}},
            {"hub": {"endpoint": url}},
        ):
            (tmp_path / "roundhouse.yaml").write_text(json.dumps({"models": [demo], **odd}))
            reloaded = server.client.post("/v1/admin/reload")
            assert reloaded.status_code == 400, (name, odd, reloaded.text)
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}
    assert server.client.post(CHAT, json=body).status_code == 200
    assert server.client.get("/health").status_code == 200
    assert server.stop() == 0


def test_an_odd_address_in_the_file_is_named_at_the_start(tmp_path: Path) -> None:
    config: dict[str, Any] = {"upstreams": [{"name": "far", "urls": [ODD["zero-width"]]}]}
    (tmp_path / "roundhouse.yaml").write_text(json.dumps(config))
    with command("serve", folder=tmp_path) as serving:
        assert serving.status() == 2
        assert "$.upstreams[0].urls[0]: not a URL" in serving.log.text
