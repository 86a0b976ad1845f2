"""`roundhouse serve` on devices that are not NVIDIA's: where models go, what is counted, and that
it outlives a device without memory.
"""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bundled
from tests.device.conftest import FIRST, SECOND
from tests.served import SEES_CARDS, Serve, Served, command, served

pytestmark = [pytest.mark.vulkan, pytest.mark.gpu]

OPTIONS = {"context_length": 512, "max_concurrent": 2, "micro_batch_size": 32, "threads": 1}
ONE = 6_000_000  # bytes: one of these models, and not two


def model(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "path": str(bundled.GGUF), "options": {**OPTIONS, **options}}


def configured(*models: dict[str, Any], memory: Mapping[str, int] = {}) -> dict[str, Any]:
    return {"models": models, "swap": {"memory": memory, "min_stay": 0.0}}


def ask(server: Served, name: str) -> str:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": "Hello!"}],
        "temperature": 0,
        "max_tokens": 8,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def metrics(server: Served) -> Mapping[str, float]:
    text = server.client.get("/metrics").text
    found = re.findall(r'^roundhouse_memory_(\w+)_bytes\{device="(.*)"\} (.*)$', text, re.MULTILINE)
    return {f"{kind} {device}": float(value) for kind, device, value in found}


@pytest.fixture(scope="module")
def two_cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three models and room for one on each device."""
    if not SECOND:
        pytest.skip("there is one device")
    models = (model("a"), model("b"), model("c"), model("on-cpu", gpu_layers=0))
    config = configured(*models, memory={FIRST: ONE, SECOND: ONE})
    with served(tmp_path_factory.mktemp("two"), config, environment=SEES_CARDS) as server:
        yield server


def test_models_go_on_one_device_each_and_the_ledger_has_them_there(two_cards: Served) -> None:
    assert ask(two_cards, "a") == ask(two_cards, "b") == ask(two_cards, "on-cpu")
    placed = {one["model"]: one["devices"] for one in two_cards.log.records("model loaded")}
    assert re.fullmatch(rf"{FIRST} \d+\.\d MiB with 5 layers", placed["a"])
    assert re.fullmatch(rf"{SECOND} \d+\.\d MiB with 5 layers", placed["b"])
    assert re.fullmatch(r"cpu \d+\.\d MiB with 5 layers", placed["on-cpu"])
    numbers = metrics(two_cards)
    assert numbers[f"budget {FIRST}"] == numbers[f"budget {SECOND}"] == ONE
    assert 0 <= numbers[f"free {FIRST}"] < ONE
    assert 0 <= numbers[f"free {SECOND}"] < ONE


def test_models_that_do_not_fit_together_take_turns_under_load(two_cards: Served) -> None:
    expected = ask(two_cards, "a")
    with ThreadPoolExecutor(6) as clients:
        names = ["a", "b", "c"] * 4
        answers = list(clients.map(lambda name: ask(two_cards, name), names))
    assert answers == [expected] * len(names)
    assert two_cards.log.records("model parked"), "who leaves for another waits in main memory"
    numbers = metrics(two_cards)
    assert 0 <= numbers[f"free {FIRST}"] < ONE
    assert 0 <= numbers[f"free {SECOND}"] < ONE


def test_who_leaves_in_the_middle_leaves_the_device_to_others(two_cards: Served) -> None:
    body = {
        "model": "a",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": True,
        "max_tokens": 400,
    }
    for _ in range(3):
        with two_cards.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
    assert ask(two_cards, "a")


def test_a_model_that_no_device_holds_alone_is_split(serve: Serve, second: str) -> None:
    whole = configured(model("whole", max_concurrent=8), memory={FIRST: ONE, second: ONE})
    server = serve(whole, environment=SEES_CARDS)
    assert ask(server, "whole")
    devices = server.log.wait_for("model loaded")["devices"]
    assert re.fullmatch(rf"{FIRST} .* with \d layers, {second} .* with \d layers", devices)


def test_a_device_without_memory_is_a_reason_and_not_the_end(serve: Serve, vulkan: None) -> None:
    """The driver refuses buffers of more than 300 kB."""
    server = serve(
        configured(model("large"), model("on-cpu", gpu_layers=0)),
        environment={**SEES_CARDS, "GGML_VK_FORCE_MAX_BUFFER_SIZE": "300000"},
    )
    body = {"model": "large", "messages": [{"role": "user", "content": "Hello!"}]}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 503
    assert "vulkan" in answer.text.lower()
    assert ask(server, "on-cpu")


def test_check_and_doctor_name_the_devices(tmp_path: Path) -> None:
    with command("check", str(bundled.GGUF), folder=tmp_path, environment=SEES_CARDS) as checked:
        assert checked.status() == 0
        assert FIRST in checked.out.text
    with command("doctor", folder=tmp_path, environment=SEES_CARDS) as found:
        assert found.status() == 0
        assert f" lists {FIRST}" in found.out.text
        assert re.search(r"llama-cpp-python .* on \d cards?\b", found.out.text)
