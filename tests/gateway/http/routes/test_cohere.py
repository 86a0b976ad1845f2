"""Cohere's routes through a real server, with its own client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import cohere
import pytest
from cohere.errors import BadRequestError

from tests.gateway.http.serving import Running

pytestmark = pytest.mark.anyio

TINY = "roundhouse-tiny"
COUNT: Any = [{"role": "user", "content": "Count to five."}]
WEATHER: Any = [{"role": "user", "content": "What is the weather in Lisbon?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
async def api(server: Running) -> AsyncIterator[Any]:  # its types allow null nearly everywhere
    async with cohere.AsyncClientV2(api_key="none", base_url=server.url) as client:
        yield client


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


async def test_a_conversation_whole_and_streamed_is_the_same(api: Any) -> None:
    whole = await api.chat(model=TINY, messages=COUNT, temperature=0)
    events = [each async for each in api.chat_stream(model=TINY, messages=COUNT, temperature=0)]
    deltas = [each.delta.message.content for each in events if each.type == "content-delta"]

    assert "1, 2, 3" in text_of(whole.message)
    assert "".join(delta.text or "" for delta in deltas) == text_of(whole.message)
    assert whole.finish_reason == "COMPLETE"
    assert [events[0].type, events[-1].type] == ["message-start", "message-end"]
    assert events[-1].delta.finish_reason == "COMPLETE"
    assert events[-1].delta.usage.tokens == whole.usage.tokens
    started = [each.type for each in events if each.type in ("content-start", "content-end")]
    assert started == ["content-start", "content-end"] * (len(started) // 2)


async def test_a_tool_is_called_and_its_result_answered(api: Any) -> None:
    called = await api.chat(
        model=TINY, messages=WEATHER, tools=[TOOL], tool_choice="REQUIRED", temperature=0
    )
    assert called.finish_reason == "TOOL_CALL"
    (call,) = called.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Lisbon"}
    found = {"type": "document", "document": {"data": "sunny, 21 degrees"}}
    answer = await api.chat(
        model=TINY,
        temperature=0,
        tools=[TOOL],
        messages=[
            *WEATHER,
            {"role": "assistant", "tool_calls": [call], "tool_plan": "I look it up."},
            {"role": "tool", "tool_call_id": call.id, "content": [found]},
        ],
    )
    assert "sunny" in text_of(answer.message)


async def test_a_streamed_call_grows(api: Any) -> None:
    events = [
        each
        async for each in api.chat_stream(
            model=TINY, messages=WEATHER, tools=[TOOL], tool_choice="REQUIRED", temperature=0
        )
    ]
    (start,) = (each for each in events if each.type == "tool-call-start")
    grown = [each.delta.message.tool_calls for each in events if each.type == "tool-call-delta"]
    assert start.delta.message.tool_calls.function.name == "get_weather"
    assert json.loads("".join(each.function.arguments for each in grown)) == {"city": "Lisbon"}
    assert [each.type for each in events].count("tool-call-end") == 1


async def test_a_schema_is_kept_to(api: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    shape: Any = {"type": "json_object", "json_schema": schema}
    answer = await api.chat(model=TINY, messages=COUNT, response_format=shape, temperature=0)
    assert json.loads(text_of(answer.message)).keys() == {"n"}


async def test_log_probabilities(api: Any) -> None:
    answer = await api.chat(model=TINY, messages=COUNT, logprobs=True, temperature=0)
    assert "".join(each.text or "" for each in answer.logprobs or ()) == text_of(answer.message)
    assert all(value <= 0 for each in answer.logprobs or () for value in each.logprobs)


async def test_vectors(api: Any, server: Running) -> None:
    embedded = await api.embed(
        model="minilm",
        texts=["A man is eating.", "It rains."],
        input_type="search_document",
        embedding_types=["float", "base64"],
    )
    again = await server.client.post(
        "/v1/embeddings", json={"model": "minilm", "input": "A man is eating."}
    )
    assert embedded.embeddings.float_ is not None
    assert len(embedded.embeddings.float_) == len(embedded.embeddings.base64 or ()) == 2
    expected = again.json()["data"][0]["embedding"]
    assert embedded.embeddings.float_[0] == pytest.approx(expected, abs=1e-6)
    refused = {"model": "minilm", "texts": ["a"], "embedding_types": ["ubinary"]}
    fault = await server.client.post("/v2/embed", json=refused)
    assert (fault.status_code, fault.json()["param"]) == (400, "embedding_types")


async def test_tokens_there_and_back(api: Any) -> None:
    found = await api.tokenize(text="Hello there", model=TINY, offline=False)
    assert "".join(found.token_strings) == "Hello there"
    assert (
        await api.detokenize(tokens=found.tokens, model=TINY, offline=False)
    ).text == "Hello there"


async def test_a_fault_is_the_client_s_own_exception(api: Any) -> None:
    with pytest.raises(BadRequestError, match="documents"):
        await api.chat(model=TINY, messages=COUNT, documents=["A paper."])
