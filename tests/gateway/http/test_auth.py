"""Keys, sizes and unknown paths: who comes in, and what the others are told."""

from pathlib import Path

import pytest

from config.errors import ConfigError
from config.settings import KeyConfig, ServerConfig
from gateway.serving.app import refuse_open_access
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio
JSON = {"content-type": "application/json"}
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "model": "scripted"}


async def test_keys_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = (KeyConfig(key="secret-user"), KeyConfig(key="secret-admin", role="admin"))
    async with serving(config(tmp_path, keys=keys), tmp_path) as running:
        for headers in ({"authorization": "Bearer secret-user"}, {"x-api-key": "secret-admin"}):
            answer = await running.client.post("/v1/chat/completions", json=HELLO, headers=headers)
            assert answer.status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": "Bearer wrong"},
            {"x-api-key": "x"},
        ):
            answer = await running.client.post("/v1/chat/completions", json=HELLO, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for path in ("/health", "/v1/health"):
            assert (await running.client.get(path)).json() == {"status": "ok"}
            assert (await running.client.head(path)).status_code == 200
    output = capsys.readouterr()
    assert "secret" not in output.out + output.err


async def test_a_key_may_be_limited_to_models_and_to_what_is_loaded(tmp_path: Path) -> None:
    keys = (
        KeyConfig(key="one", models=("scripted",)),
        KeyConfig(key="lazy", autoload=False),
    )
    async with serving(config(tmp_path, keys=keys), tmp_path) as running:
        lazy, one = {"x-api-key": "lazy"}, {"x-api-key": "one"}
        refused = await running.client.post("/v1/chat/completions", json=HELLO, headers=lazy)
        assert refused.status_code == 403
        other = await running.client.post(
            "/v1/chat/completions", json={**HELLO, "model": "roundhouse-tiny"}, headers=one
        )
        assert other.status_code == 404
        listed = (await running.client.get("/v1/models", headers=one)).json()["data"]
        assert [model["id"] for model in listed] == ["scripted"]
        served = await running.client.post("/v1/chat/completions", json=HELLO, headers=one)
        assert served.status_code == 200
        now = await running.client.post("/v1/chat/completions", json=HELLO, headers=lazy)
        assert now.status_code == 200


async def test_without_keys_an_empty_bearer_is_fine(running: Running) -> None:
    answer = await running.client.get("/v1/models", headers={"authorization": "Bearer"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
async def test_unknown_paths_and_methods_get_the_envelope(
    method: str, path: str, status: int, running: Running
) -> None:
    answer = await running.client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, server=ServerConfig(max_body=1000))
    async with serving(settings, tmp_path) as running:
        answer = await running.client.post(
            "/v1/chat/completions", content=b"x" * 2000, headers=JSON
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
async def test_what_is_not_json_is_a_400(body: bytes, running: Running) -> None:
    answer = await running.client.post("/v1/chat/completions", content=body, headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_strangers_are_not_listened_to_without_keys() -> None:
    from config.settings import Config

    with pytest.raises(ConfigError, match="without API keys"):
        refuse_open_access(Config(server=ServerConfig(host="0.0.0.0")))
    refuse_open_access(Config(server=ServerConfig(host="0.0.0.0", allow_open=True)))
    refuse_open_access(Config(server=ServerConfig(host="0.0.0.0"), keys=(KeyConfig(key="k"),)))
    refuse_open_access(Config(server=ServerConfig(host="::1")))
