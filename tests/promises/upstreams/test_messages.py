"""A Roundhouse asked by another in Anthropic's words, whatever API the client speaks."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from config.settings import Config, KeyConfig, ModelConfig
from config.upstreams import UpstreamConfig
from tests.gateway.http.serving import HELLO, Running, serving

pytestmark = pytest.mark.anyio

CALL = '<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call>'
LINES = [
    {"when": "look", "say": f"<think>Hm.</think>\n\nLooking.\n{CALL}"},
    {"when": "think", "say": "<think>Let me see.</think>\n\nSeen."},
    {"when": "", "say": "Hello from behind."},
]
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


@asynccontextmanager
async def front(folder: Path, **options: Any) -> AsyncIterator[tuple[Running, Running]]:
    """Ours, and the one that it asks."""
    near, behind = folder / "near", folder / "behind"
    near.mkdir()
    behind.mkdir()
    script = behind / "demo.script.json"
    script.write_bytes(msgspec.json.encode({"lines": LINES}))
    inner = Config(
        server=msgspec.structs.replace(Config().server, port=0),
        keys=(KeyConfig(key="sk-behind"),),
        models=(ModelConfig(name="demo", path=str(script), format="hermes_json"),),
    )
    async with serving(inner, behind) as second:
        upstream = UpstreamConfig(
            name="box",
            urls=(f"{second.url}/v1",),
            protocol="anthropic",
            key="sk-behind",
            models={"far": "demo"},
            **options,
        )
        outer = msgspec.structs.replace(inner, models=(), keys=(), upstreams=(upstream,))
        async with serving(outer, near) as first:
            yield first, second


def says(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_openais_client_streams_thinking_and_calls(tmp_path: Path) -> None:
    async with front(tmp_path) as (first, _):
        client = openai.AsyncOpenAI(base_url=f"{first.url}/v1", api_key="none")
        thinking = {"chat_template_kwargs": {"enable_thinking": True}}
        async with (
            client,
            client.chat.completions.stream(
                model="far", messages=says("look"), tools=[LOOK], extra_body=thinking
            ) as stream,
        ):
            whole = await stream.get_final_completion()

    message = whole.choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0].function
    assert (call.name, msgspec.json.decode(call.arguments)) == ("look", {"at": "it"})
    assert (message.content or "").strip() == "Looking."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "Hm."
    assert whole.choices[0].finish_reason == "tool_calls"


async def test_anthropics_client_in_front_too(tmp_path: Path) -> None:
    async with front(tmp_path) as (first, _):
        client = anthropic.AsyncAnthropic(base_url=first.url, api_key="none")
        async with client:
            message = await client.messages.create(
                model="far",
                max_tokens=2_048,
                messages=says("think"),
                thinking={"type": "enabled", "budget_tokens": 1_024},
            )
            silent = await client.messages.create(
                model="far", max_tokens=64, messages=says("think")
            )

    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].type == "thinking"
    assert message.content[0].thinking == "Let me see."
    assert [block.type for block in silent.content] == ["text"]
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_conversation_goes_on_with_results_and_pictures(
    tmp_path: Path, streamed: bool
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "see", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        *says("What is there?"),
        {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        *says("And?"),
    ]
    body = {"model": "far", "messages": messages, "stream": streamed}
    async with front(tmp_path) as (first, _):
        got = await first.client.post("/v1/chat/completions", json=body)

    assert got.status_code == 200, got.text
    said = "".join(re.findall(r'"content":"([^"]*)"', got.text))
    assert said == "Hello from behind."
    assert got.headers["x-roundhouse-backend"] == "upstream"


async def test_errors_keep_status_and_message(tmp_path: Path) -> None:
    async with front(tmp_path, capabilities=("vision",)) as (first, _):
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        messages = [{"role": "user", "content": [picture]}]
        got = await first.client.post(
            "/v1/chat/completions", json={"model": "far", "messages": messages}
        )
        text = await first.client.post("/v1/completions", json={"model": "far", "prompt": "Once"})
        several = await first.client.post(
            "/v1/chat/completions", json={"model": "far", "messages": HELLO, "n": 2}
        )

    assert got.status_code == 400
    assert "doesn't support images" in got.json()["error"]["message"]
    assert (text.status_code, text.json()["error"]["param"]) == (400, "prompt")
    assert [choice["index"] for choice in several.json()["choices"]] == [0, 1]  # asked one by one


async def test_what_its_api_has_no_field_for_is_reported_or_refused(tmp_path: Path) -> None:
    async with front(tmp_path) as (first, _):
        body = {"model": "far", "messages": HELLO, "min_p": 0.1, "store": True, "top_k": 2}
        answer = await first.client.post("/v1/chat/completions", json=body)
        strict = await first.client.post(
            "/v1/chat/completions", json={**body, "strict_parameters": True}
        )

    assert answer.headers["x-roundhouse-ignored"] == "min_p"
    assert strict.status_code == 400
    assert "min_p: Anthropic's API has no such field" in strict.json()["error"]["message"]


async def test_its_models_are_discovered_and_brought_there(tmp_path: Path) -> None:
    async with front(tmp_path) as (first, second):
        await first.registry.load("far")
        assert second.registry.status("demo").state in ("loaded", "unloaded")
        listed = (await first.client.get("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == ["far"]
