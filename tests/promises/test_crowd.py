"""Sixteen clients that ask, load, unload and leave at once: nobody is harmed by another, and
nothing stays behind of those who left.
"""

import random
import time
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import bundled
from tests.hang import HANG
from tests.served import Serve

CLIENTS, SECONDS = 16, 20.0
LEAVES = 0.05  # seconds
MODELS: dict[str, dict[str, Any]] = {
    "here": {"path": str(bundled.GGUF)},
    "apart": {"path": str(bundled.GGUF), "options": {"host": "worker"}},
    "tensors": {"path": str(bundled.SAFETENSORS)},
}
HELLO = [{"role": "user", "content": "Hello!"}]
# What an answer may fail with: somebody unloaded its model.
UNLOADED = "was unloaded on request"


def asked(choose: random.Random) -> tuple[str, str, dict[str, Any] | None]:
    """Any of what people do: method, path and body."""
    model = choose.choice([*MODELS])
    chat = {"model": model, "messages": HELLO, "max_tokens": choose.randint(1, 20)}
    calls: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", "/metrics", None),
        ("GET", "/v1/models", None),
        ("GET", "/api/ps", None),
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/chat/completions", {**chat, "stream": True}),
        ("POST", "/v1/messages", chat),
        ("POST", "/v1/completions", {"model": model, "prompt": "a b", "max_tokens": 8, "n": 2}),
        ("POST", "/v1/responses", {"model": model, "input": "Hi", "max_output_tokens": 8}),
        ("POST", "/tokenize", {"model": model, "content": "a b c"}),
        ("POST", "/v1/model/load", {"model_name": model}),
        ("POST", f"/api/models/unload/{model}", None),
    ]
    return choose.choice(calls)


async def client(address: str, number: int, until: float, harmed: list[str]) -> None:
    choose = random.Random(number)
    async with httpx.AsyncClient(base_url=address, timeout=HANG) as http:
        while time.monotonic() < until:
            method, path, body = asked(choose)
            with anyio.move_on_after(LEAVES if choose.random() < 0.1 else HANG):
                answer = await http.request(method, path, json=body)
                if answer.status_code != 200 and UNLOADED not in answer.text:
                    harmed.append(f"{path}: {answer.status_code} {answer.text[:200]}")


@pytest.mark.slow
@pytest.mark.anyio
async def test_nobody_in_a_crowd_is_harmed_by_another(tmp_path: Path, serve: Serve) -> None:
    server = serve({"models": [{"name": name, **model} for name, model in MODELS.items()]})
    address, harmed = f"http://127.0.0.1:{server.port}", list[str]()
    until = time.monotonic() + SECONDS
    async with anyio.create_task_group() as crowd:
        for number in range(CLIENTS):
            crowd.start_soon(client, address, number, until, harmed)
    assert not harmed
    async with httpx.AsyncClient(base_url=address, timeout=HANG) as http:
        for model in MODELS:
            body = {"model": model, "messages": HELLO, "max_tokens": 1}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
