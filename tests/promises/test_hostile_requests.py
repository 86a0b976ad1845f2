"""Requests that cost most are refused or answered, others go on, and memory stays bounded."""

from pathlib import Path

import pytest

import bundled
from benchmarks.hostile import ATTACKS, MODEL
from tests.served import Serve, Served

pytestmark = pytest.mark.slow  # bodies of 60 MB
REFUSED = {400, 413}
ANSWERED = {"choices", "128 chats", "1M tokens"}
MEGABYTE = 1 << 20


def resident(server: Served) -> int:
    """The most memory that the process ever had, in bytes."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_each_is_refused_or_answered_and_the_next_client_is_served(serve: Serve) -> None:
    server = serve({"models": [{"name": MODEL, "path": str(bundled.GGUF)}]})
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    assert server.client.post("/v1/chat/completions", json=chat).status_code == 200
    for name, attack in ATTACKS.items():
        headers = {"content-type": "application/json"}
        answer = server.client.post(attack.path, content=attack.body(), headers=headers)
        expected = {200} if name in ANSWERED else REFUSED
        assert answer.status_code in expected, (name, answer.text[:200])
        assert server.client.post("/v1/chat/completions", json=chat).status_code == 200, name


def test_a_text_that_fits_no_context_is_refused_before_it_is_rendered(serve: Serve) -> None:
    """Rendering one, searching it for control tokens and measuring it takes ten times its size."""
    server = serve({"models": [{"name": MODEL, "path": str(bundled.GGUF)}]})
    body = ATTACKS["a text"].body()
    before = resident(server)
    answer = server.client.post("/v1/chat/completions", content=body)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert resident(server) - before < 6 * len(body)


@pytest.mark.parametrize("name", ["messages", "parts", "names"])
def test_a_body_of_many_small_things_takes_hardly_more_memory_than_its_bytes(
    name: str, serve: Serve
) -> None:
    """90 MB of messages took 3 GB."""
    server = serve(
        {
            "models": [{"name": MODEL, "path": str(bundled.GGUF)}],
            "server": {"max_body": 100 * MEGABYTE},
        }
    )
    attack = ATTACKS[name]
    body = attack.body()
    body = body[:-1] + b" " * (90 * MEGABYTE - len(body)) + body[-1:]
    before = resident(server)
    for _ in range(2):
        assert server.client.post(attack.path, content=body).status_code == 413
    assert resident(server) - before < 3 * len(body)
