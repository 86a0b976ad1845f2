"""A request chooses its LoRA adapters, by name or number, and gets the text that they make."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bundled
from tests.backends.adapters import NAMES, write_gguf
from tests.served import Served, scripted, served

TINY = "roundhouse-tiny"
CHOICES: tuple[list[dict[str, Any]] | None, ...] = (
    None,
    [],
    [{"name": "poet", "scale": 1}],
    [{"id": 0, "scale": 1.0}],
    [{"id": 1, "scale": 1.0}],
    [{"id": 1, "scale": 0.5}, {"name": "poet", "scale": 1.0}],
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    paths = {name: str(write_gguf(folder / f"{name}.gguf", name)) for name in NAMES}
    options = {
        "context_length": 512,
        "max_concurrent": 4,
        "adapters": paths,
        "adapter_scaling": {"clerk": 0.0},
    }
    model = {"name": TINY, "path": str(bundled.GGUF), "options": options}
    presets = [
        {"name": "clerk", "of": TINY, "lora": {"clerk": 1.0}},
        {"name": "bare", "of": TINY, "lora": {}},
    ]
    models = [model, scripted(folder, "scripted"), *presets]
    with served(folder, {"models": models}) as running:
        yield running


def chat(server: Served, lora: list[dict[str, Any]] | None, **changes: Any) -> Any:
    body = {
        "model": TINY,
        "messages": [{"role": "user", "content": "Tell me a short story."}],
        "temperature": 0,
        "max_tokens": 10,
        **({} if lora is None else {"lora": lora}),
        **changes,
    }
    return server.client.post("/v1/chat/completions", json=body)


def said(server: Served, lora: list[dict[str, Any]] | None) -> str:
    answer = chat(server, lora)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    return f"{message.get('reasoning_content')}|{message['content']}"


def test_twelve_at_once_get_their_own(server: Served) -> None:
    alone = [said(server, lora) for lora in CHOICES]
    assert alone[0] == alone[2] == alone[3]
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(12) as clients:
        together = list(clients.map(lambda lora: said(server, lora), CHOICES * 2))
    assert together == alone * 2


def test_every_api_of_llama_server_and_openai_takes_it(server: Served) -> None:
    def completed(path: str, lora: list[dict[str, Any]]) -> str:
        body = {"model": TINY, "prompt": "Tell me", "temperature": 0, "max_tokens": 8, "lora": lora}
        answer = server.client.post(path, json=body).json()
        return str(answer["content"] if "content" in answer else answer["choices"][0]["text"])

    for lora in ([], [{"name": "poet", "scale": 1}]):
        assert completed("/completion", lora) == completed("/v1/completions", lora)
    assert completed("/completion", []) != completed("/completion", [{"id": 0, "scale": 1}])


def test_a_preset_has_adapters_of_its_own(server: Served) -> None:
    """As a model's name stands for an adapter in vLLM."""
    for preset, lora in (("clerk", [{"id": 1, "scale": 1}]), ("bare", [])):
        named, chosen = chat(server, None, model=preset), chat(server, lora)
        assert named.json()["choices"] == chosen.json()["choices"]
    over = chat(server, [{"name": "poet", "scale": 1}], model="clerk").json()["choices"]
    assert over == chat(server, None).json()["choices"]


def test_another_server_gets_it_as_it_came(server: Served, tmp_path: Path) -> None:
    upstream = {"name": "far", "urls": [f"{server.url}/v1"]}
    with served(tmp_path, {"upstreams": [upstream]}) as front:
        for lora in ([], [{"name": "poet", "scale": 1}], [{"id": 1, "scale": 1.0}]):
            assert said(front, lora) == said(server, lora)
        refused = chat(front, [{"id": 7, "scale": 1}])
        assert refused.status_code == 400
        assert "no adapter 7" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("lora", "param", "words"),
    [
        ([{"id": 2, "scale": 1}], "lora", "no adapter 2; it has 0 (poet), 1 (clerk)"),
        ([{"name": "x", "scale": 1}], "lora", "no adapter 'x'"),
        ([{"id": 0, "scale": 1}, {"name": "poet", "scale": 1}], "lora", "0 is named twice"),
        ([{"id": 0, "name": "poet", "scale": 1}], "lora[0]", "either an id or a name"),
        ([{"id": 0}], "lora[0].scale", "required"),
        ([{"id": 0, "scale": 1e9}], "lora", "Expected scales from -1000 to 1000"),
        ("poet", "lora", "Expected `array"),
    ],
)
def test_what_it_can_t_be_is_a_400_that_names_it(
    server: Served, lora: Any, param: str, words: str
) -> None:
    answer = chat(server, lora)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_a_model_that_can_t_choose_reports_it(server: Served) -> None:
    answer = chat(server, [{"id": 0, "scale": 1}], model="scripted")
    assert answer.status_code == 200
    assert "lora" in answer.headers["x-roundhouse-ignored"]


def test_lists_have_the_adapters(server: Served) -> None:
    cards = {card["id"]: card for card in server.client.get("/v1/models").json()["data"]}
    assert cards[TINY]["adapters"] == list(NAMES)
    listed = server.client.get("/lora-adapters", params={"model": TINY}).json()
    assert listed == [
        {"id": 0, "name": "poet", "path": "poet.gguf", "scale": 1.0},
        {"id": 1, "name": "clerk", "path": "clerk.gguf", "scale": 0.0},
    ]
    assert server.client.get("/lora-adapters", params={"model": "scripted"}).json() == []
    said(server, None)
    current = server.client.get("/v1/model").json()
    assert current["adapters"] == list(NAMES)
    loras = server.client.get("/v1/loras").json()["data"]
    assert [(lora["id"], lora["scaling"]) for lora in loras] == [("poet", 1.0), ("clerk", 0.0)]
    refused = server.client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}])
    assert (refused.status_code, "lora" in refused.json()["error"]["message"]) == (501, True)


def test_an_adapter_that_isn_t_there_fails_the_load_by_its_name(tmp_path: Path) -> None:
    model = {
        "name": TINY,
        "path": str(bundled.GGUF),
        "options": {"adapters": {"poet": str(tmp_path / "nothing.gguf")}},
    }
    with served(tmp_path, {"models": [model]}, expected=("model failed", "poet")) as server:
        answer = chat(server, None)
        assert answer.status_code >= 400
        assert "adapter 'poet'" in answer.json()["error"]["message"]
