"""One request as it went through, for the key that sent it and for administrators."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from config.settings import Config, InspectorConfig, KeyConfig
from gateway.http.routes.inspector import masked_body, texts_of
from tests.backends.places.upstream.far import far, streams, text
from tests.gateway.http.serving import HELLO, LASTING, LONG, Running, config, serving
from tests.hang import HANG
from tests.promises.upstreams.test_upstreams import relaying

pytestmark = pytest.mark.anyio

KEYS = (
    KeyConfig(key="admin", role="admin", label="the house"),
    KeyConfig(key="one"),
    KeyConfig(key="two", label="phone"),
)
ADMIN, ONE, TWO = ({"x-api-key": key} for key in ("admin", "one", "two"))
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALL: dict[str, Any] = {
    "model": "roundhouse-tiny",
    "messages": [{"role": "user", "content": "What is the weather in Bern?"}],
    "tools": [WEATHER],
    "tool_choice": "required",
    "temperature": 0,
    "foo": 1,
}


def settings(folder: Path, inspector: InspectorConfig | None = None, **options: Any) -> Config:
    plain = config(folder, keys=KEYS, **options)
    return msgspec.structs.replace(plain, inspector=inspector or InspectorConfig())


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("inspected")
    async with serving(settings(folder), folder) as server:
        yield server


async def asked(
    running: Running, body: dict[str, Any], name: str, path: str = "/v1/chat/completions"
) -> httpx.Response:
    headers = {**ONE, "x-request-id": name}
    answer = await running.client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def looked(running: Running, name: str, key: dict[str, str] = ONE) -> dict[str, Any]:
    answer = await running.client.get(f"/v1/admin/requests/{name}", headers=key)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_the_split_is_shown_beside_what_the_engine_wrote(
    running: Running, stream: bool
) -> None:
    name = f"call-{stream}"
    await asked(running, {**CALL, "stream": stream}, name)
    seen = await looked(running, name)
    assert seen["path"] == "/v1/chat/completions"
    assert '"tool_choice":"required"' in seen["body"].replace(" ", "")
    (prompt,) = seen["prompts"]
    assert "What is the weather in Bern?" in prompt["text"]
    assert "".join(prompt["pieces"]).endswith(prompt["text"])
    assert len(prompt["pieces"]) == len(prompt["tokens"]) == seen["request"]["prompt_tokens"]
    (answer,) = seen["answers"]
    call = answer["parts"][-1]
    assert (call["kind"], call["name"], call["whole"]) == ("call", "get_weather", True)
    assert msgspec.json.decode(call["text"]) == {"city": "Bern"}
    assert answer["finish"] == "tool_calls"
    raw = answer["raw"]
    assert "".join(text for text, _ in answer["pieces"]) == raw
    count = sum(len(tokens) for _, tokens in answer["pieces"]) + (answer["end_token"] is not None)
    assert count == seen["request"]["completion_tokens"]
    by_part = [raw[one["from"] : one["to"]] for one in answer["spans"] if one["part"] is not None]
    assert by_part[-2] == "get_weather"
    assert msgspec.json.decode(by_part[-1]) == {"city": "Bern"}
    markers = [raw[one["from"] : one["to"]] for one in answer["spans"] if one["part"] is None]
    assert any("<tool_call>" in text for text in markers)
    assert seen["split"]["format"]
    assert [one["name"] for one in seen["unapplied"]] == ["foo"]
    assert seen["unapplied"][0]["reason"]


async def test_reasoning_and_content_stand_at_their_places(running: Running) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "think"}]}
    await asked(running, body, "thought")
    (answer,) = (await looked(running, "thought"))["answers"]
    raw = answer["raw"]
    assert raw == "<think>Let me see.</think>\n\nSeen."
    kinds = [(one["kind"], one["text"]) for one in answer["parts"]]
    assert kinds == [("reasoning", "Let me see."), ("content", "Seen.")]
    split = [(raw[one["from"] : one["to"]], one["part"]) for one in answer["spans"]]
    assert split == [
        ("<think>", None), ("Let me see.", 0), ("</think>\n\n", None), ("Seen.", 1),
    ]  # fmt: skip


async def test_the_waterfall_has_no_holes(running: Running) -> None:
    await asked(running, {"model": "scripted", "messages": HELLO, "stream": True}, "timed")
    seen = await looked(running, "timed")
    stages = seen["stages"]
    assert stages[0]["from"] == 0
    assert stages[-1]["name"] == "answer"
    assert stages[-1]["to"] == pytest.approx(seen["request"]["seconds"])
    assert all(one["to"] == other["from"] for one, other in pairwise(stages))


async def test_raw_prompts_and_several_choices_are_shown(running: Running) -> None:
    body = {"model": "scripted", "prompt": ["a", "b"], "n": 2, "max_tokens": 3}
    await asked(running, body, "raw", "/v1/completions")
    seen = await looked(running, "raw")
    assert ["".join(one["pieces"]) for one in seen["prompts"]] == ["a", "b"]
    assert [one["prompt"] for one in seen["answers"]] == [0, 0, 1, 1]
    assert seen["max_tokens"] == 3


async def test_a_key_sees_its_own_and_an_administrator_all(running: Running) -> None:
    await asked(running, {"model": "scripted", "messages": HELLO}, "mine")
    seen = await looked(running, "mine")
    number = seen["request"]["number"]
    assert await looked(running, "mine", ADMIN) == await looked(running, str(number), ONE)
    for name in ("mine", str(number), "0", "nothing", "9" * 30):
        answer = await running.client.get(f"/v1/admin/requests/{name}", headers=TWO)
        assert answer.status_code == 404
    path = f"/v1/admin/requests/{number}"
    assert (await running.client.get(path)).status_code == 401


async def test_what_failed_says_why(running: Running) -> None:
    headers = {**ONE, "x-request-id": "failed"}
    body = {"model": "nothing-like-this", "messages": HELLO}
    answer = await running.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 404
    seen = await looked(running, "failed")
    assert seen["error"]["code"] == "model_not_found"
    assert seen["request"]["outcome"] == "model_not_found"
    assert seen["answers"] == []


async def test_embeddings_show_their_body(running: Running) -> None:
    headers = {**ONE, "x-request-id": "vectors"}
    body = {"model": "scripted", "input": "x"}  # it can't embed, which is seen too
    await running.client.post("/v1/embeddings", json=body, headers=headers)
    seen = await looked(running, "vectors")
    assert msgspec.json.decode(seen["body"]) == body
    assert seen["error"] is not None


async def test_an_answer_is_seen_while_it_runs(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, tokens_per_second=LASTING), tmp_path) as running:
        async with anyio.create_task_group() as tasks:
            body = {"model": "scripted", "messages": LONG, "stream": True}
            tasks.start_soon(asked, running, body, "runs")
            path = "/v1/admin/requests/runs"
            seen: dict[str, Any] = {}
            with anyio.fail_after(HANG):
                while True:
                    answer = await running.client.get(path, headers=ONE)
                    if answer.status_code == 200 and answer.json()["answers"]:
                        seen = answer.json()["answers"][0]
                        if seen["raw"]:
                            break
                    await anyio.sleep(0.01)
            assert seen["finish"] is None
            assert ("The engine turns. " * 100).startswith(seen["raw"])
            tasks.cancel_scope.cancel()


async def test_off_nothing_is_kept(tmp_path: Path) -> None:
    off = settings(tmp_path, InspectorConfig(enabled=False))
    async with serving(off, tmp_path) as running:
        await asked(running, {"model": "scripted", "messages": HELLO}, "off")
        answer = await running.client.get("/v1/admin/requests/off", headers=ADMIN)
        assert answer.status_code == 404
        who = (await running.client.get("/v1/admin/me", headers=ADMIN)).json()
        assert who["inspector"] is False


async def test_a_model_elsewhere_shows_its_parts_and_no_raw_text(tmp_path: Path) -> None:
    says = streams(*text("<think>Hm", ".</think>One", " two"))
    async with far(says) as server, relaying(tmp_path, server) as near:
        body = {"model": "far", "messages": HELLO, "stream": True}
        headers = {"x-request-id": "away"}
        answer = await near.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        seen = (await near.client.get("/v1/admin/requests/away")).json()
    (choice,) = seen["answers"]
    assert choice["raw"] is None
    said = [(part["kind"], part["text"]) for part in choice["parts"]]
    assert said == [("reasoning", "Hm."), ("content", "One two")]
    assert choice["finish"] == "stop"


def test_secrets_in_a_body_are_masked() -> None:
    body = (
        '{"api_key": "sk-1", "tools": [{"type": "mcp", "authorization": "Bea\\"rer", '
        '"headers": {"X-Key": "abc", "other": "def"}}], "messages": [{"content": "api_key: x"}]}'
    )
    masked = masked_body(body)
    for secret in ("sk-1", "Bea", "abc", "def"):
        assert secret not in masked
    assert msgspec.json.decode(masked)["messages"] == [{"content": "api_key: x"}]


def test_bytes_of_one_character_stand_with_its_last_token() -> None:
    smile = "🙂".encode()
    assert texts_of([b"a", smile[:1], smile[1:3], smile[3:], b"b"]) == ["a", "", "", "🙂", "b"]
    assert "".join(texts_of([b"\xff", b"a"])) == "\ufffda"
    assert len(texts_of([b"\xff\xfe", b"a", smile[:2]])) == 3
