"""Every route that can be called without knowing anything answers, whatever the models are."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

import bundled
from tests.served import Served, scripted, served

FOLLOWED = re.compile("sse|events|stream")  # they don't end by themselves
ABSENT = {501, 503}  # not offered, or not now


@pytest.fixture(scope="module", params=["bundled", "scripted", "none"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One with a model that is loaded, one whose model is not, and one without a model."""
    folder = tmp_path_factory.mktemp("routes")
    (folder / "models").mkdir()
    configs: dict[str, dict[str, Any]] = {
        "bundled": {"models": [{"name": "tiny", "path": str(bundled.GGUF), "preload": True}]},
        "scripted": {"models": [scripted(folder, "demo")]},
        "none": {"model_dirs": ["models"]},
    }
    with served(folder, configs[request.param]) as server:
        if request.param == "bundled":
            server.log.wait_for("model loaded")
        yield server


def test_every_route_without_parameters_answers(server: Served) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    plain = [path for path, methods in paths.items() if "get" in methods and "{" not in path]
    assert len(plain) > 50
    for path in plain:
        if not FOLLOWED.search(path):
            status = server.client.get(path).status_code
            assert status < 500 or status in ABSENT, path


def test_an_empty_body_is_the_client_s_mistake_everywhere(server: Served) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    headers = {"content-type": "application/json"}
    for path in [path for path, methods in paths.items() if "post" in methods and "{" not in path]:
        for body in (b"", b"[]"):
            with server.client.stream("POST", path, content=body, headers=headers) as answer:
                status = answer.status_code
            assert status < 500 or status in ABSENT, (path, body)
