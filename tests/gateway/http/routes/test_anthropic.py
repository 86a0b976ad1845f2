"""Anthropic's client on a real socket, with the bundled model and a script."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import anyio
import msgspec
import pytest
from anthropic import beta_async_tool
from anthropic.types import ModelCapabilities
from pydantic import BaseModel

from config.settings import KeyConfig, ModelConfig, ServerConfig
from tests.gateway.http.serving import HELLO, LASTING, LONG, Running, config, events, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Lisbon?"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
THINKS: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture
async def api(running: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client(running) as one:
        yield one


def client(running: Running, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=running.url, api_key=key, max_retries=0)


async def test_streamed_and_whole_are_the_same(api: anthropic.AsyncAnthropic) -> None:
    asked: Any = {
        "model": "roundhouse-tiny",
        "messages": HELLO,
        "max_tokens": 300,
        "extra_body": {"temperature": 0},
        "thinking": THINKS,
    }
    whole = await api.messages.create(**asked)
    async with api.messages.stream(**asked) as stream:
        text = "".join([part async for part in stream.text_stream])
        streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert whole.stop_reason == "end_turn"
    blocks = [block.model_dump(exclude={"signature"}) for block in whole.content]
    assert [
        block.model_dump(exclude={"signature", "parsed_output"}) for block in streamed.content
    ] == blocks
    assert text == blocks[1]["text"]
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert whole.id.startswith("msg_")


async def test_without_thinking_the_first_block_is_the_answer(
    api: anthropic.AsyncAnthropic,
) -> None:
    message = await api.messages.create(model="roundhouse-tiny", messages=HELLO, max_tokens=300)
    assert [block.type for block in message.content] == ["text"]


async def test_the_tool_runner_calls_and_goes_on(api: anthropic.AsyncAnthropic) -> None:
    asked = []

    @beta_async_tool
    async def get_weather(city: str) -> str:
        """Get the weather of a city"""
        asked.append(city)
        return "sunny, 21 degrees"

    runner = api.beta.messages.tool_runner(
        model="roundhouse-tiny",
        max_tokens=300,
        messages=WEATHER,
        tools=[get_weather],
        extra_body={"temperature": 0},
    )
    last = await runner.until_done()
    assert asked == ["Lisbon"]
    assert last.content[-1].type == "text"
    assert "sunny" in last.content[-1].text


async def test_a_streamed_call_and_its_failed_result(api: anthropic.AsyncAnthropic) -> None:
    asked: Any = {
        "model": "roundhouse-tiny",
        "max_tokens": 300,
        "tools": [TOOL],
        "extra_body": {"temperature": 0},
    }
    async with api.messages.stream(messages=WEATHER, **asked) as stream:
        kinds = [event.type async for event in stream]
        called = await stream.get_final_message()
    assert "input_json" in kinds
    assert called.stop_reason == "tool_use"
    (call,) = (block for block in called.content if block.type == "tool_use")
    assert call.input == {"city": "Lisbon"}
    result: Any = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "is_error": True,
        "content": "down",
    }
    answer = await api.messages.create(
        messages=[
            *WEATHER,
            {"role": "assistant", "content": called.content},
            {"role": "user", "content": [result]},
        ],
        **asked,
    )
    assert answer.stop_reason == "end_turn"


CLOCK: Any = {"name": "get_time", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"get_weather", "get_time"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"get_weather", "get_time"}),
        ({"type": "tool", "name": "get_time"}, {"get_time"}),
    ],
)
@pytest.mark.parametrize("thinking", [THINKS, {"type": "disabled"}])
async def test_a_call_that_is_demanded_is_made(
    api: anthropic.AsyncAnthropic, choice: Any, names: set[str], thinking: Any
) -> None:
    asked: Any = {
        "model": "roundhouse-tiny",
        "messages": HELLO,
        "max_tokens": 400,
        "tools": [TOOL, CLOCK],
        "tool_choice": choice,
        "thinking": thinking,
        "extra_body": {"temperature": 0},
    }
    whole = await api.messages.create(**asked)
    async with api.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        called = [block["name"] for block in blocks(message) if block["type"] == "tool_use"]
        assert called
        assert set(called) <= names
        assert len(called) == 1 or choice == {"type": "any"}


def blocks(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [block.model_dump() for block in message.content]


class Forecast(BaseModel):
    """Small, so that a model that knows nothing comes to its end."""

    sky: Literal["clear", "grey"]
    warm: bool


@pytest.mark.parametrize("thinking", [THINKS, {"type": "disabled"}])
async def test_an_output_format_is_kept_to(api: anthropic.AsyncAnthropic, thinking: Any) -> None:
    asked: Any = {
        "model": "roundhouse-tiny",
        "messages": HELLO,
        "max_tokens": 400,
        "thinking": thinking,
        "extra_body": {"temperature": 1.5, "seed": 1},
    }
    parsed = await api.messages.parse(output_format=Forecast, **asked)
    async with api.messages.stream(output_format=Forecast, **asked) as stream:
        streamed = await stream.get_final_message()
    assert isinstance(parsed.parsed_output, Forecast)
    assert isinstance(streamed.parsed_output, Forecast)
    schema = {**Forecast.model_json_schema(), "additionalProperties": False}
    named: Any = {"type": "json_schema", "schema": schema}
    whole = await api.messages.create(output_config={"format": named}, **asked)
    assert whole.content[-1].type == "text"
    Forecast.model_validate_json(whole.content[-1].text)


async def test_a_prefill_is_gone_on_from_and_stop_sequences_end(running: Running) -> None:
    body = {
        "model": "scripted",
        "max_tokens": 100,
        "messages": [*HELLO, {"role": "assistant", "content": "Well, "}],
        "stop_sequences": ["script"],
    }
    answer = await running.client.post("/v1/messages", json=body)
    message = answer.json()
    assert message["content"] == [{"type": "text", "text": "Hello from the "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "script")


async def test_the_cached_part_of_a_prompt_is_reported(api: anthropic.AsyncAnthropic) -> None:
    talk: Any = [{"role": "user", "content": "Repeat: " + "apple " * 30}]
    first = await api.messages.create(model="roundhouse-tiny", messages=talk, max_tokens=5)
    again = await api.messages.create(model="roundhouse-tiny", messages=talk, max_tokens=5)
    assert again.usage.cache_read_input_tokens
    assert first.usage.cache_read_input_tokens is not None
    sums = {
        usage.input_tokens + (usage.cache_read_input_tokens or 0)
        for usage in (first.usage, again.usage)
    }
    count = await api.messages.count_tokens(model="roundhouse-tiny", messages=talk)
    assert sums == {count.input_tokens}


def agents_body(**fields: Any) -> dict[str, Any]:
    """What a coding agent sends: some 30,000 tokens of system text, twenty tools."""
    tools = [
        {
            "name": f"tool_{number}",
            "description": "Does something with files. " * 20,
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "The absolute path"},
                    "edits": {"type": "array", "items": {"type": "object"}, "minItems": 1},
                },
                "required": ["path"],
                "additionalProperties": False,
            },
            "cache_control": {"type": "ephemeral"},
        }
        for number in range(20)
    ]
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    return {
        "model": "wide",
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=12345;"},
            {"type": "text", "text": "You are a coding agent.", **cached},
            {"type": "text", "text": "Follow the rules of the house. " * 4_000, **cached},
        ],
        "tools": tools,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Today.</system-reminder>"},
                    {"type": "text", "text": "Hello!", **cached},
                ],
            }
        ],
        "metadata": {"user_id": "user_0_account__session_1"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        **fields,
    }


AGENTS_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,never-heard-of-2027",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
}


async def test_what_a_coding_agent_sends_is_answered(tmp_path: Path) -> None:
    script = tmp_path / "wide.script.json"
    script.write_text('{"context_length": 262144, "lines": [{"say": "Done."}]}')
    settings = config(tmp_path, keys=(KeyConfig(key="secret"),))
    wide = ModelConfig(name="wide", path=str(script))
    settings = msgspec.structs.replace(settings, models=(*settings.models, wide))
    async with serving(settings, tmp_path) as running:
        # Loaded first: a stream that waits for its model begins without the answer's headers.
        hello = {"model": "wide", "max_tokens": 1, "messages": [*HELLO]}
        await running.client.post("/v1/messages", json=hello, headers={"x-api-key": "secret"})
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            answer = await running.client.post(
                "/v1/messages?beta=true", json=agents_body(), headers={**AGENTS_HEADERS, **headers}
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-roundhouse-ignored"] == "system[0]"
            sent = events(answer.text)
            assert sent[-1] == {"type": "message_stop"}
            said = [event["delta"].get("text", "") for event in sent if "delta" in event]
            assert "".join(said) == "Done."
        counted = await running.client.post(
            "/v1/messages/count_tokens?beta=true",
            json=agents_body(),
            headers={**AGENTS_HEADERS, "x-api-key": "secret"},
        )
        assert counted.json()["input_tokens"] > 120_000  # a token is a byte there
        refused = await running.client.post("/v1/messages", json=agents_body())
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"


async def test_errors_are_the_clients_own_classes(api: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await api.messages.create(model="nobody", messages=HELLO, max_tokens=1)
    assert missing.value.request_id is not None
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await api.messages.create(model="scripted", messages=[], max_tokens=1)
    error = wrong.value.body
    assert isinstance(error, dict)
    assert error["error"]["param"] == "messages"
    with pytest.raises(anthropic.NotFoundError) as absent:
        await api.messages.batches.list()
    assert absent.value.request_id is not None
    error = absent.value.body
    assert isinstance(error, dict)
    assert error["type"] == "error"
    assert "GET /v1/messages/batches" in error["error"]["message"]
    picture: Any = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    with pytest.raises(anthropic.BadRequestError, match="doesn't support images") as blind:
        await api.messages.create(
            model="scripted", messages=[{"role": "user", "content": [picture]}], max_tokens=1
        )
    assert "messages[0].content[0].source" in str(blind.value.body)


async def test_a_broken_stream_ends_with_an_error_event(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running, client(running) as api:
        with pytest.raises(anthropic.APIStatusError, match="the script fails"):
            async with api.messages.stream(
                model="scripted", messages=[{"role": "user", "content": "break"}], max_tokens=50
            ) as stream:
                await stream.get_final_message()


@pytest.mark.slow
async def test_pings_keep_a_stream_alive_before_and_while_it_is_reported(tmp_path: Path) -> None:
    quick = ServerConfig(comment_after=0.0)
    settings = config(tmp_path, server=quick, load_seconds=2.5, tokens_per_second=LASTING)
    ping = "event: ping\n"
    async with serving(settings, tmp_path) as running, client(running) as api:
        body: Any = {"model": "scripted", "messages": HELLO, "max_tokens": 4}
        long = {**body, "messages": LONG, "max_tokens": 1800, "stream": True}
        async with running.client.stream("POST", "/v1/messages", json=long) as answer:
            received = ""
            async for part in answer.aiter_text():
                received += part
                if ping in received.partition("message_start")[2]:
                    break
        before = received.partition("message_start")[0]
        assert ": loading scripted" in before
        assert ping in before
        await running.registry.unload("scripted")
        async with api.messages.stream(**body) as stream:
            assert await stream.get_final_text() == "Hell"


@pytest.mark.parametrize("streamed", [True, False])
async def test_who_leaves_gives_the_model_back(streamed: bool, tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=LASTING), tmp_path) as running:

        def in_use() -> int:
            return running.registry.status("scripted").in_use

        async def ask() -> None:
            body = {
                "model": "scripted",
                "messages": LONG,
                "max_tokens": 4000,
                "stream": streamed,
            }
            await running.client.post("/v1/messages", json=body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(HANG):
                while not in_use():
                    await anyio.sleep(0.005)
                tasks.cancel_scope.cancel()
        with anyio.fail_after(HANG):
            while in_use():
                await anyio.sleep(0.005)


async def test_its_clients_read_the_list_of_models(api: anthropic.AsyncAnthropic) -> None:
    # A list doesn't wait for what it takes long to find out of a model; now it is known of them.
    retrieved = [await api.models.retrieve(name) for name in ("roundhouse-tiny", "scripted")]
    page = await api.models.list()
    assert {model.id for model in page.data} == {"roundhouse-tiny", "scripted"}
    assert not page.has_more
    assert page.data == retrieved


async def test_its_clients_read_what_a_model_can_do(api: anthropic.AsyncAnthropic) -> None:
    model = await api.models.retrieve("roundhouse-tiny")
    can = model.capabilities
    assert can is not None
    assert can.to_dict(exclude_unset=False).keys() == ModelCapabilities.model_fields.keys()
    assert can.thinking.supported
    assert can.thinking.types.enabled.supported
    assert can.structured_outputs.supported
    not_here = (can.image_input, can.pdf_input, can.batch, can.server_tools)
    assert not any(one.supported for one in not_here)
    assert model.max_input_tokens == model.max_tokens == 2048


SEARCHED: list[Any] = [
    {"role": "user", "content": "Does it rain?"},
    {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "r"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s",
                "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
            },
        ],
    },
    {"role": "user", "content": "Well?"},
]


async def test_tools_and_history_of_anthropics_servers_are_said(
    api: anthropic.AsyncAnthropic,
) -> None:
    raw = await api.beta.messages.with_raw_response.create(
        model="scripted",
        max_tokens=20,
        messages=SEARCHED,
        tools=[
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20260318", "name": "web_search"},
        ],
        betas=["context-management-2025-06-27"],
        context_management={"edits": [{"type": "clear_thinking_20251015"}]},
    )
    assert raw.headers["x-roundhouse-ignored"] == "tools[1].web_search_20260318"
    relaxed = raw.headers["x-roundhouse-relaxed"].split(", ")
    kinds = ("server_tool_use", "web_search_tool_result")
    assert relaxed == [f"messages[].content[].{kind}" for kind in kinds]
    managed = (await raw.parse()).context_management
    assert managed is not None
    assert managed.applied_edits == []


async def test_what_is_not_offered_is_a_clear_404(api: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="/v1/messages/batches"):
        await api.messages.batches.create(requests=[])
    with pytest.raises(anthropic.NotFoundError, match="/v1/files"):
        await api.beta.files.list()
