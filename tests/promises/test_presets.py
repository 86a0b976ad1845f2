"""A model under several names: each with its own sampling, system message and template's variables,
all of one load.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bundled
from config.errors import ConfigError
from config.loader import load_config
from tests.served import Serve, Served, served

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{{ '<think>' if enable_thinking is not defined or enable_thinking }}{{ mood }}"
)
GREETING = [{"role": "user", "content": "Hi"}]
OWN_SYSTEM = {"role": "system", "content": "Sing."}
FAST = {
    "name": "fast",
    "of": "tiny",
    "aliases": ["quick"],
    "sampling": {"temperature": 0.0},
    "system": "Be short.",
    "template_kwargs": {"enable_thinking": False, "mood": "calm"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("presets")
    (folder / "template.jinja").write_text(TEMPLATE, "utf-8")
    tiny = {"name": "tiny", "path": str(bundled.GGUF), "template": "template.jinja"}
    keys = [{"key": "all"}, {"key": "some", "models": ["fast"]}, {"key": "boss", "role": "admin"}]
    with served(folder, {"models": [tiny, FAST], "keys": keys}) as running:
        yield running


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def prompt(server: Served, model: str, messages: list[Any] = GREETING, **fields: Any) -> str:
    body = {"model": model, "messages": messages, **fields}
    answer = server.client.post("/apply-template", json=body, headers=headers("all"))
    text: str = answer.json()["prompt"]
    return text


def chat(server: Served, model: str, key: str = "all", **fields: Any) -> Any:
    body = {"model": model, "messages": GREETING, "max_tokens": 8, **fields}
    return server.client.post("/v1/chat/completions", json=body, headers=headers(key)).json()


def loads(server: Served) -> int:
    return server.log.text.count('"model loaded"')


def test_the_prompt_has_what_the_preset_says(server: Served) -> None:
    assert prompt(server, "tiny") == "[user]Hi<think>"
    assert prompt(server, "fast") == prompt(server, "quick") == "[system]Be short.[user]Hicalm"


def test_what_a_request_says_comes_first(server: Served) -> None:
    said = prompt(server, "fast", [OWN_SYSTEM, *GREETING], chat_template_kwargs={"mood": "glad"})
    assert said == "[system]Sing.[user]Higlad"
    thinks = prompt(server, "fast", chat_template_kwargs={"enable_thinking": True})
    assert thinks == "[system]Be short.[user]Hi<think>calm"


def test_its_sampling_is_the_default_of_its_requests(server: Served) -> None:
    texts = {chat(server, "fast")["choices"][0]["message"]["content"] for _ in range(4)}
    assert len(texts) == 1
    report = chat(server, "fast", top_p=0.5, return_parameters=True)
    assert report["choices"]


def test_it_is_listed_and_answers_as_itself_from_one_load(server: Served) -> None:
    assert chat(server, "fast")["model"] == "fast"
    assert chat(server, "tiny")["model"] == "tiny"
    cards = server.client.get("/v1/models", headers=headers("all")).json()["data"]
    found = {card["id"]: (card.get("parent"), card["state"]) for card in cards}
    assert found == {"tiny": (None, "loaded"), "fast": ("tiny", "loaded")}
    assert loads(server) == 1


def test_its_cache_is_the_models(server: Served) -> None:
    long = [{"role": "user", "content": "Tell me of engines. " * 20}]
    chat(server, "tiny", messages=[{"role": "system", "content": "Be short."}, *long])
    usage = chat(server, "fast", messages=long)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.8 * usage["prompt_tokens"]


def test_a_key_may_have_the_preset_alone(server: Served) -> None:
    assert chat(server, "fast", "some")["choices"]
    assert chat(server, "tiny", "some")["error"]["code"] == "model_not_found"
    cards = server.client.get("/v1/models", headers=headers("some")).json()["data"]
    assert [card["id"] for card in cards] == ["fast"]


def test_to_unload_it_is_to_unload_its_model(server: Served) -> None:
    chat(server, "fast")
    body = {"model": "fast"}
    assert server.client.post("/models/unload", json=body, headers=headers("boss")).json()[
        "success"
    ]
    cards = server.client.get("/v1/models", headers=headers("all")).json()["data"]
    assert {card["state"] for card in cards} == {"unloaded"}
    assert server.client.post("/models/load", json=body, headers=headers("boss")).json()["success"]
    assert chat(server, "tiny")["choices"]


def test_presets_change_while_their_model_stays(serve: Serve, tmp_path: Path) -> None:
    tiny = {"name": "tiny", "path": str(bundled.GGUF)}
    server = serve({"models": [tiny, FAST]})
    assert chat(server, "fast")["model"] == "fast"
    path = tmp_path / "roundhouse.yaml"
    config = json.loads(path.read_text("utf-8"))
    config["models"] = [tiny, {**FAST, "system": "Be long."}, {"name": "slow", "of": "tiny"}]
    path.write_text(json.dumps(config), "utf-8")
    changes = server.client.post("/v1/admin/reload").raise_for_status().json()["models"]
    assert (changes["added"], changes["updated"], changes["reloaded"]) == (["slow"], ["fast"], [])
    assert chat(server, "slow")["model"] == "slow"
    assert "Be long." in prompt(server, "fast")
    assert loads(server) == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"path": "x.gguf"}, "path"),
        ({"preload": True}, "preload"),
        ({"options": {"threads": 1}}, "options"),
    ],
)
def test_only_the_entry_that_is_loaded_says_how(changes: dict[str, Any], problem: str) -> None:
    models = [{"name": "tiny", "path": "tiny.gguf"}, {"name": "fast", "of": "tiny", **changes}]
    with pytest.raises(ConfigError, match=rf"models\[1\]\.{problem}.*loaded as 'tiny'"):
        load_config(None, {}, text=json.dumps({"models": models}))


def test_a_preset_of_a_preset_is_refused() -> None:
    models = [
        {"name": "tiny", "path": "tiny.gguf"},
        {"name": "fast", "of": "tiny"},
        {"name": "faster", "of": "fast"},
    ]
    with pytest.raises(ConfigError, match=r"models\[2\]\.of"):
        load_config(None, {}, text=json.dumps({"models": models}))


def test_a_preset_of_nothing_is_reported_at_the_start_and_when_it_is_asked_for(
    serve: Serve,
) -> None:
    tiny = {"name": "tiny", "path": str(bundled.GGUF)}
    server = serve({"models": [tiny, {"name": "fast", "of": "tinny"}]})
    warning = server.log.wait_for("check the configuration")
    assert warning["option"] == "$.models[1].of"
    assert "Nearest: tiny" in warning["problem"]
    assert "there is no model 'tinny'" in chat(server, "fast")["error"]["message"]
