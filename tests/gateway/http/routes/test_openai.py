"""The clients people use, on a real socket, with the bundled model: openai and huggingface_hub."""

import json
from typing import Any

import openai
import pytest
from huggingface_hub import AsyncInferenceClient

from tests.gateway.http.serving import HELLO, Running, events

pytestmark = pytest.mark.anyio

WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Lisbon?"}]
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


def client(running: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


async def test_streamed_and_whole_are_the_same(running: Running) -> None:
    async with client(running) as api:
        whole = await api.chat.completions.create(
            model="roundhouse-tiny", messages=HELLO, temperature=0
        )
        async with api.chat.completions.stream(
            model="roundhouse-tiny",
            messages=HELLO,
            temperature=0,
            stream_options={"include_usage": True},
        ) as stream:
            streamed = await stream.get_final_completion()
    message, said = whole.choices[0].message, streamed.choices[0].message
    assert said.content == message.content
    assert said.content
    assert said.model_extra is not None
    assert message.model_extra is not None
    assert said.model_extra["reasoning_content"] == message.model_extra["reasoning_content"]
    assert streamed.usage is not None
    assert whole.usage is not None
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens


async def test_a_tool_is_called_and_its_result_answered(running: Running) -> None:
    async with client(running) as api:
        async with api.chat.completions.stream(
            model="roundhouse-tiny", messages=WEATHER, tools=[TOOL], temperature=0
        ) as stream:
            called = (await stream.get_final_completion()).choices[0]
        assert called.finish_reason == "tool_calls"
        assert called.message.tool_calls is not None
        (call,) = called.message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Lisbon"}
        answer = await api.chat.completions.create(
            model="roundhouse-tiny",
            temperature=0,
            tools=[TOOL],
            messages=[
                *WEATHER,
                called.message.model_dump(include={"role", "tool_calls"}),  # type: ignore[list-item]
                {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"},
            ],
        )
    assert "sunny" in (answer.choices[0].message.content or "")


async def test_tool_choice_none_never_calls(running: Running) -> None:
    async with client(running) as api:
        answer = await api.chat.completions.create(
            model="roundhouse-tiny",
            messages=WEATHER,
            tools=[TOOL],
            tool_choice="none",
            temperature=0,
        )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


async def test_several_choices_share_one_prompt(running: Running) -> None:
    async with client(running) as api:
        answer = await api.chat.completions.create(
            model="roundhouse-tiny", messages=HELLO, n=3, seed=5, temperature=4, max_tokens=12
        )
        again = await api.chat.completions.create(
            model="roundhouse-tiny", messages=HELLO, n=3, seed=5, temperature=4, max_tokens=12
        )
        single = await api.chat.completions.create(
            model="roundhouse-tiny", messages=HELLO, max_tokens=1
        )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({str(choice.message) for choice in answer.choices}) > 1
    assert [str(c.message) for c in answer.choices] == [str(c.message) for c in again.choices]
    assert answer.usage is not None
    assert single.usage is not None
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens


async def test_thinking_can_be_switched_off_and_shown_inline(running: Running) -> None:
    async with client(running) as api:
        off = await api.chat.completions.create(
            model="roundhouse-tiny",
            messages=HELLO,
            temperature=0,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        inline = await api.chat.completions.create(
            model="roundhouse-tiny",
            messages=HELLO,
            temperature=0,
            extra_body={"reasoning_format": "none"},
        )
    assert "reasoning_content" not in (off.choices[0].message.model_extra or {})
    assert off.usage is not None
    assert off.usage.completion_tokens_details is not None
    assert off.usage.completion_tokens_details.reasoning_tokens == 0
    assert "</think>" in (inline.choices[0].message.content or "")


async def test_a_trailing_assistant_message_is_a_prefix(running: Running) -> None:
    async with client(running) as api:
        answer = await api.chat.completions.create(
            model="roundhouse-tiny",
            temperature=0,
            max_tokens=40,
            messages=[
                {"role": "user", "content": "Count to 9."},
                {"role": "assistant", "content": "1, 2, 3,"},
            ],
        )
    assert (answer.choices[0].message.content or "").strip().startswith("4")


@pytest.mark.parametrize(
    "flag", [{"continue_final_message": False}, {"add_generation_prompt": True}]
)
async def test_a_trailing_assistant_message_may_be_finished(
    flag: dict[str, bool], running: Running
) -> None:
    said = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "1,"}]
    prompts = []
    for fields in ({}, flag):
        body = {"messages": said, **fields}
        answer = await running.client.post("/apply-template", json=body)
        prompts.append(answer.json()["prompt"])
    assert prompts[0].endswith("assistant\n1,")
    assert prompts[1].endswith("1,<|im_end|>\n<|im_start|>assistant\n")


async def test_a_prompt_may_end_before_the_model_s_turn(running: Running) -> None:
    body = {"messages": HELLO, "add_generation_prompt": False}
    answer = await running.client.post("/apply-template", json=body)
    opened = await running.client.post("/apply-template", json={"messages": HELLO})
    assert answer.json()["prompt"].endswith("Hello!<|im_end|>\n")
    assert opened.json()["prompt"] == answer.json()["prompt"] + "<|im_start|>assistant\n"
    assert "x-roundhouse-ignored" not in answer.headers
    counted = [
        (await running.client.post("/tokenize", json=each)).json()["count"]
        for each in (body, {"messages": HELLO})
    ]
    assert counted[0] < counted[1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_comes_with_every_chunk_where_that_is_wanted(
    running: Running, path: str
) -> None:
    text: dict[str, Any] = {"prompt": "Hello"} if path == "/v1/completions" else {"messages": HELLO}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**text, "stream": True, "stream_options": options, "max_tokens": 60, "ignore_eos": True}
    chunks = events((await running.client.post(path, json=body)).text.replace("data: [DONE]", ""))

    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] <= 60
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {
        chunks[-1]["usage"]["prompt_tokens"]
    }
    assert [bool(chunk["choices"]) for chunk in chunks[-2:]] == [True, False]


async def test_logprobs_are_real(running: Running) -> None:
    async with client(running) as api:
        answer = await api.chat.completions.create(
            model="roundhouse-tiny",
            messages=HELLO,
            temperature=0,
            logprobs=True,
            top_logprobs=3,
            extra_body={"enable_thinking": False},
        )
    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.content
    assert tokens
    *said, end = [token.token for token in tokens]
    assert ("".join(said).strip(), end) == (answer.choices[0].message.content, "<|im_end|>")
    for token in tokens:
        assert token.logprob <= 0
        assert token.top_logprobs[0].token == token.token
        assert len(token.top_logprobs) == 3


async def test_text_completion_is_raw(running: Running) -> None:
    prompt = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    async with client(running) as api:
        one = await api.completions.create(model="", prompt=prompt, temperature=0, max_tokens=60)
        tokens = [
            chunk
            async for chunk in await api.completions.create(
                model="", prompt=prompt, temperature=0, max_tokens=60, stream=True
            )
        ]
        two = await api.completions.create(
            model="", prompt=[prompt, "Once upon"], n=2, temperature=0, max_tokens=4, echo=True
        )
    assert "<think>" in one.choices[0].text
    assert (
        "".join(chunk.choices[0].text for chunk in tokens if chunk.choices) == one.choices[0].text
    )
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert two.choices[2].text.startswith("Once upon")


@pytest.mark.parametrize("limit", [0, 1])
async def test_a_prompt_is_scored_as_evaluation_harnesses_do(limit: int, running: Running) -> None:
    """Echo, logprobs and no new token, or one: by text and by token ids, whole and streamed."""
    text = "Once upon 🚂 a time"
    async with client(running) as api:
        encoded = await running.client.post("/v1/token/encode", json={"text": text})
        ids: list[int] = encoded.json()["tokens"]
        whole, by_ids = [
            await api.completions.create(
                model="", prompt=prompt, echo=True, logprobs=2, max_tokens=limit, temperature=0
            )
            for prompt in (text, ids)
        ]
        chunks = [
            chunk.choices[0]
            async for chunk in await api.completions.create(
                model="", prompt=text, echo=True, logprobs=2, max_tokens=limit, stream=True
            )
            if chunk.choices
        ]
        plain = await api.completions.create(model="", prompt=text, echo=True, max_tokens=limit)
    [choice] = whole.choices
    assert by_ids.choices == whole.choices
    assert choice.logprobs is not None
    tokens, offsets = choice.logprobs.tokens or [], choice.logprobs.text_offset or []
    nothing, *likely = list[Any](choice.logprobs.token_logprobs or [])
    no_others, *others = list[Any](choice.logprobs.top_logprobs or [])
    assert len(tokens) == len(offsets) == len(ids) + limit
    assert nothing is no_others is None
    assert max(likely) <= 0
    assert min(map(len, others)) >= 2
    units = choice.text.encode("utf-16-le")
    for token, offset in zip(tokens, offsets, strict=True):
        if "\ufffd" not in token:
            assert units[2 * offset :].decode("utf-16-le").startswith(token)
    assert choice.text.startswith(text)
    assert (choice.text == text) == (limit == 0)
    assert choice.finish_reason == "length"
    assert "".join(chunk.text for chunk in chunks) == choice.text == plain.choices[0].text
    streamed = [chunk.logprobs for chunk in chunks if chunk.logprobs]
    assert [one for part in streamed for one in part.tokens or ()] == tokens
    assert [one for part in streamed for one in part.text_offset or ()] == offsets
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(ids)
    assert whole.usage.completion_tokens == limit


async def test_models_are_listed_and_found_by_ids_with_slashes(running: Running) -> None:
    async with client(running) as api:
        assert [model.id async for model in await api.models.list()] == [
            "roundhouse-tiny",
            "scripted",
        ]
        assert (await api.models.retrieve("org/tiny")).id == "roundhouse-tiny"


@pytest.mark.parametrize(
    ("wrong", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", None),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", None),
        (
            {"messages": [{"role": "user", "content": "long " * 5000}]},
            "messages",
            "context_length_exceeded",
        ),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"suffix": 3}, None, None),
    ],
)
async def test_mistakes_name_their_field_before_any_stream(
    wrong: dict[str, Any], param: str | None, code: str | None, running: Running
) -> None:
    body = {"model": "", "messages": HELLO, "stream": True, "max_tokens": 3, **wrong}
    answer = await running.client.post("/v1/chat/completions", json=body)
    if param is None:  # unknown here, so accepted
        assert answer.status_code == 200
        return
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


async def test_an_unknown_model_is_not_answered_by_another(running: Running) -> None:
    async with client(running) as api:
        with pytest.raises(openai.NotFoundError, match="roundhouse-tiny") as caught:
            await api.chat.completions.create(model="roundhouse-tinny", messages=HELLO)
    assert caught.value.code == "model_not_found"


async def test_the_hub_s_client_streams_and_calls(running: Running) -> None:
    async with AsyncInferenceClient(running.url) as hub:
        payloads = [
            payload
            async for payload in await hub.chat_completion(
                HELLO, stream=True, model="roundhouse-tiny", max_tokens=20
            )
        ]
        called = await hub.chat_completion(
            WEATHER, tools=[TOOL], model="roundhouse-tiny", temperature=0
        )
    first, *middle, last = payloads
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content is None
    assert all(payload.choices[0].delta.role is None for payload in middle)
    assert last.choices[0].finish_reason in ("stop", "length")
    assert called.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions"])
async def test_the_version_may_be_left_out(path: str, running: Running) -> None:
    answer = await running.client.post(path, json={"messages": HELLO, "max_tokens": 1})
    assert answer.json()["object"] == "chat.completion"
    assert answer.headers["x-roundhouse-model"] == "roundhouse-tiny"
