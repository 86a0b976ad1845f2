"""exllamav2 and exllamav3 as users meet them: `roundhouse serve`, beside transformers."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bundled
from tests.served import ROOT, Served, served

pytestmark = pytest.mark.slow

NAMES = ("exllamav2", "exllamav3", "transformers")
SITE = Path(__file__).parent / "site"
ENVIRONMENT_OF_SERVERS = {
    "PYTHONPATH": os.pathsep.join((str(SITE), str(ROOT))),
    "EXL3_FUSED_SAMPLER": "0",
    "PYTHONWARNINGS": "ignore",
}
PRESET = {"temperature": 4.0, "min_p": 0.02, "xtc_probability": 0.5, "xtc_threshold": 0.1}


def entry(name: str, context: int = 512) -> dict[str, Any]:
    options: dict[str, Any] = {"context_length": context, "max_concurrent": 4}
    if name == "exllamav3":
        options["warmup"] = False
    return {
        "name": name,
        "path": str(bundled.SAFETENSORS),
        "backend": name,
        "options": options,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = {"models": [entry(name) for name in NAMES]}
    folder = tmp_path_factory.mktemp("served")
    with served(folder, config, environment=ENVIRONMENT_OF_SERVERS) as running:
        yield running


def said(server: Served, model: str, **changes: Any) -> Any:
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], **changes}
    answer = server.client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def test_all_say_the_same(server: Served) -> None:
    greedy = [said(server, name, temperature=0) for name in NAMES]
    assert greedy == ["Hello! How can I help you?"] * len(NAMES)


def test_a_preset_of_sillytavern_and_a_seed_mean_the_same(server: Served) -> None:
    texts = [said(server, name, seed=5, max_tokens=24, **PRESET) for name in NAMES]
    assert len(set(texts)) == 1


def test_a_schema_holds(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["glad", "sad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    shape = {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}
    for name in NAMES:
        found = said(server, name, temperature=2.0, response_format=shape)
        assert json.loads(found)["mood"] in {"glad", "sad"}


def test_a_model_that_was_unloaded_is_loaded_again(server: Served) -> None:
    for name in NAMES[:2]:
        gone = server.client.post("/v1/model/unload", json={"model": name})
        assert gone.status_code == 200, gone.text
        assert said(server, name, temperature=0) == "Hello! How can I help you?"


def test_a_load_in_tabbyapi_s_names_is_carried_out(server: Served) -> None:
    drafts = {"draft_mode": "ngram", "ngram_match_min": 2, "draft_num_tokens": 3}
    body = {"model_name": "exllamav3", "draft_model": drafts, "sysmem_kv_cache": 16}
    answer = server.client.post("/v1/model/load", json=body)
    assert '"finished"' in answer.text, answer.text
    assert said(server, "exllamav3", temperature=0) == "Hello! How can I help you?"
    refused = server.client.post("/v1/model/load", json={**body, "model_name": "exllamav2"})
    assert refused.json()["error"]["param"] in ("ngram_match_min", "sysmem_kv_cache")
