"""The wait for a model, reported as reasoning where a client wants it: frontends drop comments."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from config.settings import KeyConfig, ServerConfig
from tests.gateway.http.held_loads import HeldLoads
from tests.gateway.http.serving import Running, config, events, serving, state

pytestmark = pytest.mark.anyio

CHAT = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "think"}]}
USAGE = {"stream_options": {"include_usage": True}}


async def chunks_of(running: Running, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """The chunks of a stream, its model not loaded before."""
    await running.registry.unload("scripted")
    answer = await running.client.post(
        "/v1/chat/completions", json={**CHAT, **USAGE, **body}, headers=headers
    )
    return events(answer.text.replace("data: [DONE]", ""))


def joined(chunks: list[dict[str, Any]], field: str) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get(field) or "" for delta in deltas)


async def test_a_load_is_reported_as_reasoning_and_the_answer_stays_as_it_is(
    tmp_path: Path,
) -> None:
    async with serving(config(tmp_path, load_seconds=0.2), tmp_path) as running:
        plain = await chunks_of(running, {})
        chunks = await chunks_of(running, {"loading_text": True})
    roles = [choice["delta"].get("role") for one in chunks for choice in one["choices"]]
    assert roles[0] == "assistant"
    assert roles.count("assistant") == 1
    assert "scripted" in chunks[1]["choices"][0]["delta"]["reasoning_content"]
    assert joined(chunks, "content") == joined(plain, "content")
    text = joined(chunks, "reasoning_content")
    assert text.endswith("\n" + joined(plain, "reasoning_content"))
    assert "loading scripted" in text or "queued for scripted" in text
    counted = [one["usage"] for one in (*plain, *chunks) if one.get("usage")]
    assert counted[0]["completion_tokens"] == counted[1]["completion_tokens"]
    assert {one["id"] for one in chunks} == {chunks[0]["id"]}
    assert {one["model"] for one in chunks} == {"scripted"}


@pytest.fixture(scope="module")
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """With a key for each thing that a key can say."""
    folder = tmp_path_factory.mktemp("loading")
    settings = config(
        folder,
        keys=[KeyConfig(key=str(said), loading_text=said) for said in (None, True, False)],
        server=ServerConfig(loading_text=request.param),
        load_seconds=0.1,
    )
    async with serving(settings, folder) as running:
        yield running


@pytest.mark.parametrize(
    ("server", "key", "asked", "is_reported"),
    [
        (False, None, None, False),
        (False, True, None, True),
        (False, False, True, True),
        (True, None, None, True),
        (True, False, None, False),
        (True, True, False, False),
    ],
    indirect=["server"],
)
async def test_the_request_says_first_then_the_key_then_the_server(
    server: Running, key: bool | None, asked: bool | None, is_reported: bool
) -> None:
    body = {} if asked is None else {"loading_text": asked}
    chunks = await chunks_of(server, body, authorization=f"Bearer {key}")
    assert ("scripted" in joined(chunks, "reasoning_content")) == is_reported


async def test_nothing_is_reported_where_reasoning_is_hidden_or_nothing_is_waited_for(
    tmp_path: Path,
) -> None:
    async with serving(config(tmp_path, load_seconds=0.1), tmp_path) as running:
        chunks = await chunks_of(
            running, {"loading_text": True, "include_reasoning": False, "n": 2}
        )
        assert joined(chunks, "reasoning_content") == ""
        roles = [choice["delta"].get("role") for one in chunks for choice in one["choices"]]
        assert roles.count("assistant") == 2
        loaded = await running.client.post(
            "/v1/chat/completions", json={**CHAT, "loading_text": True}
        )
        assert "position" not in loaded.text


async def test_a_load_that_fails_after_it_was_reported_ends_the_stream_with_the_error(
    tmp_path: Path,
) -> None:
    loads = HeldLoads()
    async with serving(config(tmp_path), tmp_path, loads.catalog) as running:

        async def spoil() -> None:
            """While it is loaded: a scan of the files would find it, too."""
            await state(running, "scripted", "loading")
            (tmp_path / "demo.script.json").write_text("no script any more")
            loads.go.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spoil)
            chunks = await chunks_of(running, {"loading_text": True})
    assert "scripted" in chunks[1]["choices"][0]["delta"]["reasoning_content"]
    assert chunks[-1]["error"]["code"] == "model_unavailable"


async def test_the_official_client_reads_such_a_stream(tmp_path: Path) -> None:
    async with (
        serving(config(tmp_path, load_seconds=0.1), tmp_path) as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as api,
        api.chat.completions.stream(
            model="scripted",
            messages=[{"role": "user", "content": "think"}],
            extra_body={"loading_text": True},
        ) as stream,
    ):
        completion = await stream.get_final_completion()
    assert (completion.choices[0].message.content or "").strip().endswith("Seen.")


async def test_a_text_completion_has_it_beside_its_text(tmp_path: Path) -> None:
    """SillyTavern shows `reasoning` of the first choice."""
    body = {"model": "scripted", "prompt": "Say", "stream": True, "echo": True}
    async with serving(config(tmp_path, load_seconds=0.2), tmp_path) as running:
        found = []
        for asked in (False, True):
            await running.registry.unload("scripted")
            answer = await running.client.post(
                "/v1/completions", json={**body, "loading_text": asked}
            )
            chunks = events(answer.text.replace("data: [DONE]", ""))
            found.append([choice for one in chunks for choice in one["choices"]])
    texts = ["".join(choice["text"] for choice in choices) for choices in found]
    said = ["".join(choice.get("reasoning", "") for choice in choices) for choices in found]
    assert texts[0] == texts[1]
    assert texts[0].startswith("Say")
    assert said[0] == ""
    assert "scripted" in said[1]
