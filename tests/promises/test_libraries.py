"""Which library computes a GGUF model is measured at its first load and heeded at the next; lists
say which one does. Where ik_llama.cpp is installed: `scripts/install ik`.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

import bundled
from backends.machine import ik
from tests.backends.places.workers import workers_of
from tests.served import served

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
