"""What the smaller APIs promise, on a process as users start it: comments while a model loads, one
stream that ends in the API's own form, what is made kept apart from what is loaded.
"""

import json
from collections.abc import Iterator

import pytest

import bundled
from tests.served import Serve, Served, events, scripted, served

SYSTEM = "You are a pirate."
STREAMS = [
    ("/generate_stream", {"inputs": "Hi"}),
    ("/v2/chat", {"stream": True, "messages": [{"role": "user", "content": "Hi"}]}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    models = [scripted(folder, name, "Hello there!", load_seconds=2.0) for name in ("first", "new")]
    config = {"models": models, "server": {"comment_after": 0.2}}
    with served(folder, config) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/similarity", "/v1/score"), ("/v1/chat", "/v2/chat"), ("/embed_all", "/embed"),
        ("/predict", "/rerank"), ("/v1/embed", "/v2/embed"),
    ],
)  # fmt: skip
def test_a_route_that_is_not_here_names_the_one_that_is(
    server: Served, path: str, instead: str
) -> None:
    answer = server.client.post(path, json={"inputs": "a"})
    assert answer.status_code == 404
    assert instead in answer.text


def test_ollamas_lists_have_a_models_size_and_quantization(serve: Serve) -> None:
    server = serve({"models": [{"name": "tiny", "path": str(bundled.GGUF)}]})
    details = server.client.get("/api/tags").json()["models"][0]["details"]
    assert details["parameter_size"] == "0.85M"
    assert details["quantization_level"] == "F16"


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_a_stream_has_comments_while_its_model_loads(
    server: Served, path: str, body: dict[str, object]
) -> None:
    for name in ("first", "new"):
        server.client.post("/api/generate", json={"model": name, "keep_alive": 0})
    answer = server.client.post(path, json={"model": "new", **body})

    assert answer.status_code == 200
    assert any(line.startswith(":") for line in answer.text.splitlines())
    last = events(answer.text)[-1]
    assert last.get("generated_text") == "Hello there!" or last["type"] == "message-end"


def test_a_made_model_takes_no_memory_of_its_own(server: Served) -> None:
    made = {"model": "pirate", "from": "first", "system": SYSTEM, "stream": False}
    assert json.loads(server.client.post("/api/create", json=made).text) == {"status": "success"}
    said = {"model": "pirate", "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    assert server.client.post("/api/chat", json=said).json()["message"]["content"]

    there = server.client.get("/api/ps").json()["models"]
    assert "pirate:latest" not in [model["name"] for model in there]
    assert [model["name"] for model in there].count("first:latest") == 1
