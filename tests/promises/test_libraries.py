"""Which library computes a GGUF model is measured at its first load and heeded at the next; lists
say which one does. Where ik_llama.cpp is installed: `scripts/install ik`.
"""

from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import bundled
from backends.machine import ik
from tests.backends.places.workers import workers_of
from tests.promises import test_kept as kept
from tests.served import Served, served

SWAPS = 500
KILLS = 20  # so many swaps between two of them
ONE_AT_A_TIME = 80_000_000  # bytes: room for one of two with its cache of 2,048 tokens

pytestmark = pytest.mark.skipif(bool(ik.missing()), reason=ik.missing() or "installed")


def library(client: httpx.Client) -> str:
    (model,) = client.get("/v1/models").json()["data"]
    return str(model["library"])


def asked(client: httpx.Client) -> Any:
    body = {
        "messages": [{"role": "user", "content": "Hello!"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    answer = client.post("/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def test_what_was_measured_at_the_first_load_is_heeded_at_the_next(tmp_path: Path) -> None:
    """The model in memory is computed by what it was loaded with, and lists say so."""
    config = {
        "models": [{"name": "tiny", "path": str(bundled.GGUF), "options": {"trial": "never"}}]
    }
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with served(tmp_path, config, environment=own) as server:
        unknown = library(server.client)
        assert "isn't known" in unknown
        said = asked(server.client)
        (measured,) = (tmp_path / "cache" / "roundhouse" / "speeds").iterdir()
        assert float(measured.read_text("utf-8")) > 0
        measured.write_text("1.6", "utf-8")
        assert library(server.client) == unknown
        assert not workers_of(server.process.pid)
        assert server.client.post("/models/unload", json={"model": "tiny"}).status_code == 200
        assert library(server.client) == "ik_llama.cpp: it was 1.6 times as fast here"
        assert asked(server.client) == said
        assert library(server.client) == "ik_llama.cpp: it was 1.6 times as fast here"
        assert len(workers_of(server.process.pid)) == 1


@pytest.mark.long
def test_neither_swaps_nor_killed_workers_change_what_is_said(tmp_path: Path) -> None:
    """Of two models that don't fit together; one whose worker is killed says that in its stream."""
    config = kept.settings(tmp_path)
    config["swap"] |= {"memory": {"cpu": ONE_AT_A_TIME}, "backoff": 0.0}
    for model in config["models"]:
        model["options"] |= {"library": "ik", "context_length": 2048, "max_concurrent": 2}
    with served(tmp_path, config) as server:
        first: dict[tuple[str, str], str] = {}
        for number in range(SWAPS):
            name, text = ("left", "right")[number % 2], f"{number % 7} {kept.LONG * 10}"
            heard = kept.said(kept.asked(server.client, name, text))
            assert first.setdefault((name, text), heard) == heard
            if number % KILLS == KILLS - 1:
                assert "engine_lost" in killed(server, name, text)
        assert server.log.text.count('"model loaded"') >= SWAPS


def killed(server: Served, name: str, text: str) -> str:
    """The stream of an answer whose worker is killed as it begins."""
    messages = [{"role": "user", "content": text}]
    body = {"model": name, "messages": messages, "stream": True, "ignore_eos": True}
    with server.client.stream("POST", kept.CHAT, json=body) as response:
        lines = response.iter_lines()
        begun = next(lines)
        there = map(psutil.Process, workers_of(server.process.pid))  # the other one may be leaving
        max(there, key=psutil.Process.create_time).kill()
        return "\n".join([begun, *lines])
