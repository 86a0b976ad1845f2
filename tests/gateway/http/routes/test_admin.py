"""Calls that manage models: llama-server's, transformers serve's and our own, on a real server."""

import json
from pathlib import Path

import msgspec
import pytest

import bundled
from config.settings import HubConfig, KeyConfig, ModelConfig
from tests.gateway.http.held_loads import HeldLoads
from tests.gateway.http.serving import HELLO, Running, config, events, serving, state

pytestmark = pytest.mark.anyio

KEYS = (KeyConfig(key="user"), KeyConfig(key="admin", role="admin"))
USER, ADMIN = {"x-api-key": "user"}, {"authorization": "Bearer admin"}


async def test_models_serves_three_readers_at_once(tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--org--small"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "commit"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    for name, size in (("a", 1000), ("b", 24)):
        (blobs / name).write_bytes(b"x" * size)
        (snapshot / name).symlink_to(blobs / name)
    settings = config(tmp_path, keys=(*KEYS, KeyConfig(key="one", models=("scripted",))))
    hub = HubConfig(cache=str(tmp_path / "cache"))
    async with serving(msgspec.structs.replace(settings, hub=hub), tmp_path) as running:
        lists = (await running.client.get("/models", headers=USER)).json()
        assert [(one["id"], one["status"]["value"]) for one in lists["data"]] == [
            ("roundhouse-tiny", "unloaded"),
            ("scripted", "unloaded"),
        ]
        cached, tiny, _ = lists["models"]
        assert cached == {"repo_id": "org/small", "repo_type": "model", "size_on_disk": 1024}
        assert (tiny["repo_id"], tiny["repo_type"]) == ("roundhouse-tiny", "model")
        assert tiny["size_on_disk"] == tiny["size_bytes"] == lists["data"][0]["size_bytes"]
        limited = (await running.client.get("/models", headers={"x-api-key": "one"})).json()
        assert [one["id"] for one in limited["data"]] == ["scripted"]
        assert [one["repo_id"] for one in limited["models"]] == ["scripted"]
        assert "models" not in (await running.client.get("/v1/models", headers=USER)).json()


async def test_a_model_s_adapters_are_reported_by_name(tmp_path: Path) -> None:
    adapted = ModelConfig(
        name="adapted", path=str(bundled.SAFETENSORS), options={"adapters": {"odd": "/odd"}}
    )
    settings = config(tmp_path)
    settings = msgspec.structs.replace(settings, models=(*settings.models, adapted))
    async with serving(settings, tmp_path) as running:
        cards = (await running.client.get("/v1/models")).json()["data"]
        adapters = {card["id"]: card["adapters"] for card in cards}
        assert adapters == {"roundhouse-tiny": [], "scripted": [], "adapted": ["odd"]}


async def test_open_webuis_manager_finds_every_model_in_the_list_it_prefers(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        await running.client.post("/models/load", json={"model": "scripted"})
        await state(running, "scripted", "loaded")
        lists = (await running.client.get("/models")).json()
        shown = [(one["id"], one["status"]["value"]) for one in lists["models"] if "id" in one]
        assert shown == [("scripted", "loaded"), ("roundhouse-tiny", "unloaded")]


async def test_load_and_unload_as_open_webui_asks_for_it(tmp_path: Path) -> None:
    loads = HeldLoads()
    async with serving(config(tmp_path, keys=KEYS), tmp_path, loads.catalog) as running:
        body = {"model": "scripted"}
        refused = await running.client.post("/models/load", json=body, headers=USER)
        assert refused.status_code == 403
        begun = await running.client.post("/models/load", json=body, headers=ADMIN)
        assert begun.json() == {"success": True}
        assert running.registry.status("scripted").state == "loading"
        loads.go.set()
        await state(running, "scripted", "loaded")
        ended = await running.client.post("/models/unload", json=body, headers=ADMIN)
        assert ended.json() == {"success": True}
        assert running.registry.status("scripted").state == "unloaded"
        unknown = await running.client.post("/models/load", json={"model": "x"}, headers=ADMIN)
        assert unknown.status_code == 404


async def test_status_and_unload_for_people(tmp_path: Path) -> None:
    settings = config(tmp_path, keys=KEYS)
    swap = msgspec.structs.replace(settings.swap, ttl=60.0)
    async with serving(msgspec.structs.replace(settings, swap=swap), tmp_path) as running:
        empty = (await running.client.get("/status", headers=USER)).json()
        assert empty == {
            "loaded_model": None,
            "remaining_time_seconds": None,
            "status": "unloaded",
            "models": [],
        }
        await running.registry.load("scripted")
        status = (await running.client.get("/status", headers=USER)).json()
        assert status["loaded_model"] == "scripted"
        assert status["status"] == "loaded"
        assert 0 < status["remaining_time_seconds"] <= 60
        assert [one["model"] for one in status["models"]] == ["scripted"]
        assert (await running.client.post("/unload", headers=USER)).status_code == 403
        gone = (await running.client.post("/unload", headers=ADMIN)).json()
        assert gone["status"] == "unloaded"
        assert gone["message"].startswith("Model scripted unloaded")
        assert "are kept" not in gone["message"], "no other model is there"
        assert "The process itself holds" in gone["message"]
        again = (await running.client.post("/unload", headers=ADMIN)).json()
        assert again == {"message": "No model was loaded.", "status": "unloaded"}


async def test_measurements_are_reset_by_administrators(tmp_path: Path) -> None:
    async with serving(config(tmp_path, keys=KEYS), tmp_path) as running:
        path = "/measurements/reset"
        await running.registry.load("roundhouse-tiny")
        assert (await running.client.post(path, headers=USER)).status_code == 403
        unknown = await running.client.post(path, json={"model": "x"}, headers=ADMIN)
        assert unknown.status_code == 404
        named = await running.client.post(path, json={"model": "org/tiny"}, headers=ADMIN)
        assert named.json() == {"models": ["roundhouse-tiny"]}
        assert (await running.client.post(path, headers=ADMIN)).json() == {"models": []}


async def test_unload_takes_all_that_are_loaded_unless_one_is_named(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        for body, left in (({}, set()), ({"model": "scripted"}, {"roundhouse-tiny"})):
            for name in ("roundhouse-tiny", "scripted"):
                await running.registry.load(name)
            await running.client.post("/unload", json=body)
            there = {one.id for one in running.registry.statuses() if one.state == "loaded"}
            assert there == left


async def test_load_model_tells_progress_and_then_that_it_is_cached(tmp_path: Path) -> None:
    keys = (*KEYS, KeyConfig(key="lazy", autoload=False))
    async with serving(config(tmp_path, keys=keys, load_seconds=1.0), tmp_path) as running:
        body = {"model": "scripted"}
        lazy = await running.client.post("/load_model", json=body, headers={"x-api-key": "lazy"})
        assert lazy.status_code == 403
        first = events((await running.client.post("/load_model", json=body, headers=USER)).text)
        assert first[-1] == {"status": "ready", "model": "scripted", "cached": False}
        steps = [event["progress"]["current"] for event in first[:-1]]
        assert steps == sorted(steps)
        assert len(steps) > 2
        assert all(event["status"] == "loading" and event["stage"] for event in first[:-1])
        second = events((await running.client.post("/load_model", json=body, headers=USER)).text)
        assert second == [{"status": "ready", "model": "scripted", "cached": True}]
        missing = await running.client.post("/load_model", json={}, headers=USER)
        assert missing.status_code == 400
        assert "model" in missing.json()["detail"]


async def test_props_tell_template_and_context(running: Running) -> None:
    for path in ("/props?model=roundhouse-tiny", "/props", "/props?model=undefined"):
        props = (await running.client.get(path)).json()
        assert props["chat_template"]
        assert props["default_generation_settings"]["n_ctx"] > 0
        assert props["total_slots"] > 0
    assert (await running.client.get("/props?model=nobody")).status_code == 404


async def test_tokens_as_llama_server_and_as_vllm(running: Running) -> None:
    llama = {"model": "scripted", "content": "abc"}
    answer = (await running.client.post("/tokenize", json=llama)).json()
    assert answer["tokens"] == [97, 98, 99]
    vllm = {"model": "scripted", "prompt": "abc"}
    answer = (await running.client.post("/tokenize", json=vllm)).json()
    assert answer["count"] == 3
    assert answer["max_model_len"] == 4096
    back = {"model": "scripted", "tokens": [97, 98, 99]}
    answer = (await running.client.post("/detokenize", json=back)).json()
    assert answer == {"content": "abc", "prompt": "abc"}
    # SillyTavern's way to say that no model is selected.
    unnamed = await running.client.post("/tokenize", json={**llama, "model": "undefined"})
    assert unnamed.json()["tokens"]
    assert (await running.client.post("/tokenize", json={"model": "scripted"})).status_code == 400


async def test_completion_streams_content_and_ends_with_stop(running: Running) -> None:
    body = {"model": "scripted", "prompt": "Hi", "n_predict": 50}
    whole = (await running.client.post("/completion", json=body)).json()
    assert whole["content"] == "Hello from the script."
    assert whole["stop"] is True
    assert whole["stop_type"] == "eos"
    assert whole["tokens_predicted"] > 0
    answer = await running.client.post("/completion", json={**body, "stream": True})
    sent = events(answer.text)
    assert "".join(event["content"] for event in sent) == whole["content"]
    assert [event["stop"] for event in sent].count(True) == 1
    assert sent[-1]["stop"] is True
    assert sent[-1]["timings"]["predicted_n"] == whole["tokens_predicted"]


async def test_completion_tells_probabilities_and_several_choices(running: Running) -> None:
    body = {"model": "scripted", "prompt": "Hi", "n_predict": 3, "n_probs": 2, "n": 2}
    whole = (await running.client.post("/completion", json=body)).json()
    assert [one["index"] for one in whole] == [0, 1]
    for one in whole:
        assert one["stop_type"] == "limit"
        assert [token["token"] for token in one["completion_probabilities"]] == ["H", "e", "l"]
    sent = events((await running.client.post("/completion", json={**body, "stream": True})).text)
    for index in (0, 1):
        assert "".join(event["content"] for event in sent if event["index"] == index) == "Hel"


async def test_a_completion_that_breaks_ends_with_an_error(running: Running) -> None:
    body = {"model": "scripted", "prompt": "break", "stream": True}
    sent = events((await running.client.post("/completion", json=body)).text)
    assert sent[-1]["error"]["message"]
    assert not any(event.get("stop") for event in sent)


async def test_a_conversation_as_text_and_its_length(running: Running) -> None:
    chat = {"model": "roundhouse-tiny", "messages": HELLO}
    prompt = (await running.client.post("/apply-template", json=chat)).json()
    assert "Hello!" in prompt["prompt"]
    assert prompt["prompt"].count("<|") >= 2
    counts = [
        (await running.client.post(path, json=chat)).json()["input_tokens"]
        for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
    ]
    answer = await running.client.post("/v1/chat/completions", json={**chat, "max_tokens": 1})
    assert counts == [answer.json()["usage"]["prompt_tokens"]] * 2


async def test_every_openai_answer_tells_what_computed_it(running: Running) -> None:
    async def found(path: str, model: str, **body: object) -> set[str | None]:
        request = {"model": model, "max_tokens": 3, **body}
        whole = (await running.client.post(path, json=request)).json()
        streamed = await running.client.post(path, json={**request, "stream": True})
        chunks = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
        return {one.get("system_fingerprint") for one in (whole, *map(json.loads, chunks))}

    chat = await found("/v1/chat/completions", "scripted", messages=HELLO)
    text = await found("/v1/completions", "scripted", prompt="Hello")
    other = await found("/v1/completions", "roundhouse-tiny", prompt="Hello")
    assert len(chat) == 1
    assert chat == text != other
    assert all(one is not None and one.startswith("fp_") for one in chat | other)
