"""Responses and conversations with OpenAI's client on a real socket."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx
import msgspec
import openai
import pytest
from pydantic import BaseModel, Field

from config.settings import Config, KeyConfig, StoreConfig
from tests.gateway.http.serving import HELLO, LASTING, Running, config, endings, events, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
WEATHER = "What is the weather in Lisbon?"
TINY: Any = {"model": "roundhouse-tiny", "temperature": 0}


def client(running: Running, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def api(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(running) as one:
        yield one


def kept(folder: Path, *keys: str, tokens_per_second: float) -> Config:
    """With a store that outlives the server."""
    known = [KeyConfig(key=key) for key in keys]
    settings = config(folder, keys=known, tokens_per_second=tokens_per_second)
    store = StoreConfig(path=str(folder / "store.sqlite"))
    return msgspec.structs.replace(settings, store=store)


async def test_streamed_and_whole_are_the_same(api: openai.AsyncOpenAI) -> None:
    whole = await api.responses.create(input="Hello!", **TINY)
    async with api.responses.stream(input="Hello!", **TINY) as stream:
        streamed = await stream.get_final_response()
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.output_text
    assert streamed.output_text == whole.output_text
    assert streamed.usage is not None
    assert whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert whole.usage.output_tokens_details.reasoning_tokens > 0


async def test_a_tool_is_called_and_its_result_answered(api: openai.AsyncOpenAI) -> None:
    async with api.responses.stream(input=WEATHER, tools=[TOOL], **TINY) as stream:
        kinds = [event.type async for event in stream]
        called = await stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    (call,) = (item for item in called.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Lisbon"}
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "sunny, 21 degrees",
    }
    stateful = await api.responses.create(
        input=[result], previous_response_id=called.id, tools=[TOOL], **TINY
    )
    asked: list[Any] = [{"role": "user", "content": WEATHER}]
    output: list[Any] = list(called.output)
    stateless = await api.responses.create(
        input=[*asked, *output, result], store=False, tools=[TOOL], **TINY
    )
    assert "sunny" in stateful.output_text
    assert stateless.output_text == stateful.output_text
    assert stateful.usage is not None
    assert stateless.usage is not None
    assert stateful.usage.input_tokens == stateless.usage.input_tokens


async def test_items_are_named_instead_of_sent(api: openai.AsyncOpenAI) -> None:
    """Of a response and of a conversation; what goes on is the same as if they had been sent."""
    first = await api.responses.create(input="Hello!", **TINY)
    talk = await api.conversations.create(
        items=[{"type": "message", "role": "user", "content": "Hello!"}]
    )
    asked = [item.id async for item in api.conversations.items.list(talk.id)]
    kept = [item.id async for item in api.responses.input_items.list(first.id)]
    output: list[Any] = list(first.output)
    ids = [item.id for item in output]
    more: Any = {"role": "user", "content": "Again!"}
    sent: list[Any] = [{"role": "user", "content": "Hello!"}, *output, more]
    whole = await api.responses.create(input=sent, **TINY)
    for names in ([*asked, *ids], [*kept, *ids]):
        named: list[Any] = [{"type": "item_reference", "id": name} for name in names]
        same = await api.responses.create(input=[*named, more], **TINY)
        assert same.output_text == whole.output_text
        assert same.usage is not None
        assert whole.usage is not None
        assert same.usage.input_tokens == whole.usage.input_tokens
        listed = [item async for item in api.responses.input_items.list(same.id, order="asc")]
        assert [item.id for item in listed][:-1] == names


@pytest.mark.parametrize("summary", [None, "auto"])
async def test_a_client_that_keeps_nothing_carries_the_reasoning(
    summary: Literal["auto"] | None, api: openai.AsyncOpenAI
) -> None:
    """It sends back ids and what it can't read, as agents do."""
    more: Any = {"role": "user", "content": "Again!"}
    asked: Any = {"include": ["reasoning.encrypted_content"], "store": False, **TINY}
    if summary is not None:
        asked["reasoning"] = {"summary": summary}
    async with api.responses.stream(input="Hello!", **asked) as stream:
        first = await stream.get_final_response()
    thought = next(item for item in first.output if item.type == "reasoning")
    assert thought.encrypted_content
    output: list[Any] = list(first.output)
    bare = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    carried: list[Any] = [bare if item is thought else item for item in output]
    texts = []
    for items in (output, carried):
        start: Any = {"role": "user", "content": "Hello!"}
        answer = await api.responses.with_raw_response.create(input=[start, *items, more], **asked)
        assert "encrypted" not in answer.headers.get("x-roundhouse-ignored", "")
        texts.append(answer.parse())
    assert texts[0].usage is not None
    assert texts[1].usage is not None
    assert texts[0].usage.input_tokens == texts[1].usage.input_tokens
    assert texts[0].output_text == texts[1].output_text


class Forecast(BaseModel):
    """Small, so that a model that knows nothing comes to its end."""

    sky: Literal["clear", "grey"]
    degrees: int = Field(ge=-50, le=50)


async def test_a_text_format_is_kept_to(api: openai.AsyncOpenAI, running: Running) -> None:
    hot: Any = {"model": "roundhouse-tiny", "input": "Hello!", "temperature": 1.5}
    seeded: Any = {"extra_body": {"seed": 1}, **hot}
    parsed = await api.responses.parse(text_format=Forecast, **seeded)
    async with api.responses.stream(text_format=Forecast, **seeded) as stream:
        streamed = await stream.get_final_response()
    assert isinstance(parsed.output_parsed, Forecast)
    assert isinstance(streamed.output_parsed, Forecast)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    made = await api.responses.create(
        text={"format": {"type": "json_object"}},
        max_output_tokens=400,
        reasoning={"effort": "none"},
        extra_body={"logit_bias": await endings(running), "seed": 1},
        **hot,
    )
    assert made.status == "completed"
    assert isinstance(json.loads(made.output_text), dict)


CLOCK: Any = {"type": "function", "name": "get_time", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "name": "get_time"}, {"get_time"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_time"}],
            },
            {"get_time"},
        ),
    ],
)
async def test_a_call_that_is_demanded_is_made(
    api: openai.AsyncOpenAI, choice: Any, names: set[str]
) -> None:
    asked: Any = {"input": "Hello!", "tools": [TOOL, CLOCK], "tool_choice": choice, **TINY}
    made = await api.responses.create(parallel_tool_calls=False, **asked)
    async with api.responses.stream(**asked) as stream:
        streamed = await stream.get_final_response()
    (call,) = (item for item in made.output if item.type == "function_call")
    assert call.name in names
    assert isinstance(json.loads(call.arguments), dict)
    called = [item.name for item in streamed.output if item.type == "function_call"]
    assert called
    assert set(called) <= names


async def test_instructions_are_those_of_the_last_request_alone(running: Running) -> None:
    async with client(running) as api:
        long = "Be brief. " * 20
        first = await api.responses.create(input="Hi", instructions=long, **TINY)
        second = await api.responses.create(input="Hi", previous_response_id=first.id, **TINY)
        again = await api.responses.create(
            input="Hi", previous_response_id=first.id, instructions=long, **TINY
        )
    assert second.usage is not None
    assert again.usage is not None
    assert again.usage.input_tokens > second.usage.input_tokens + 40


async def test_what_is_kept_can_be_read_listed_and_deleted(api: openai.AsyncOpenAI) -> None:
    made = await api.responses.create(
        input=[{"role": "user", "content": "Hi"}, {"role": "user", "content": "Hello!"}], **TINY
    )
    found = await api.responses.retrieve(made.id)
    assert found == made
    listed: Any = await api.responses.input_items.list(made.id, order="asc", limit=1)
    assert [item.content[0].text for item in listed.data] == ["Hi"]
    assert [item.type async for item in listed] == ["message", "message"]
    newest: Any = await api.responses.input_items.list(made.id)
    assert newest.data[0].content[0].text == "Hello!"
    await api.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as lost:
        await api.responses.create(input="Hi", previous_response_id=made.id, **TINY)
    assert lost.value.code == "previous_response_not_found"
    unkept = await api.responses.create(input="Hi", store=False, **TINY)
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(unkept.id)


async def test_what_ends_early_is_incomplete(api: openai.AsyncOpenAI) -> None:
    made = await api.responses.create(input="Hello!", max_output_tokens=3, **TINY)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


async def test_a_conversation_grows_with_each_response(api: openai.AsyncOpenAI) -> None:
    talk = await api.conversations.create(
        items=[{"role": "user", "content": "Hi"}], metadata={"topic": "weather"}
    )
    assert (await api.conversations.retrieve(talk.id)).metadata == {"topic": "weather"}
    made = await api.responses.create(input=WEATHER, conversation=talk.id, tools=[TOOL], **TINY)
    (call,) = (item for item in made.output if item.type == "function_call")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answer = await api.responses.create(input=[result], conversation=talk.id, tools=[TOOL], **TINY)
    assert "sunny" in answer.output_text
    found = [item async for item in await api.conversations.items.list(talk.id, order="asc")]
    kinds = [item.type for item in found if item.type != "reasoning"]
    assert kinds == ["message", "message", "function_call", "function_call_output", "message"]
    added = await api.conversations.items.create(
        talk.id, items=[{"role": "user", "content": "Bye"}]
    )
    one = await api.conversations.items.retrieve(added.data[0].id or "", conversation_id=talk.id)
    assert one == added.data[0]
    await api.conversations.items.delete(one.id or "", conversation_id=talk.id)
    await api.conversations.update(talk.id, metadata={"topic": "none"})
    assert (await api.conversations.retrieve(talk.id)).metadata == {"topic": "none"}
    await api.conversations.delete(talk.id)
    with pytest.raises(openai.NotFoundError):
        await api.responses.create(input="Hi", conversation=talk.id, **TINY)


async def test_errors_name_the_field(api: openai.AsyncOpenAI) -> None:
    robot: Any = {"role": "robot", "content": ""}
    with pytest.raises(openai.BadRequestError) as wrong:
        await api.responses.create(input=[robot], **TINY)
    assert wrong.value.param == "input[0].role"
    with pytest.raises(openai.NotFoundError) as missing:
        await api.responses.create(input="Hi", model="nobody")
    assert missing.value.code == "model_not_found"
    picture: Any = {"type": "input_image", "image_url": "https://a.example/b.png"}
    with pytest.raises(openai.BadRequestError, match="doesn't support images") as blind:
        await api.responses.create(input=[{"role": "user", "content": [picture]}], model="scripted")
    assert blind.value.param == "input[0].content[0].image_url"


async def test_the_length_of_a_prompt(api: openai.AsyncOpenAI) -> None:
    made = await api.responses.create(input="Hello!", **TINY)
    count = await api.responses.input_tokens.count(model="roundhouse-tiny", input="Hello!")
    assert made.usage is not None
    assert count.input_tokens == made.usage.input_tokens


async def test_a_conversation_that_is_too_long_is_cut_where_its_client_wants_that(
    running: Running,
) -> None:
    turns: list[Any] = [{"role": "user", "content": f"Line {k}. " * 40} for k in range(40)]
    body: Any = {"model": "scripted", "input": [*turns, {"role": "user", "content": "Hello"}]}
    refused = await running.client.post("/v1/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    answer = await running.client.post("/v1/responses", json={**body, "truncation": "auto"})
    assert answer.json()["status"] == "completed"
    assert answer.json()["usage"]["input_tokens"] > 1_000
    hopeless = {"model": "scripted", "input": "Hello " * 2_000, "truncation": "auto"}
    assert (await running.client.post("/v1/responses", json=hopeless)).status_code == 400


async def test_a_broken_stream_ends_with_a_failed_response(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        body = {"model": "scripted", "input": "break", "stream": True}
        sent = events((await running.client.post("/v1/responses", json=body)).text)
        assert sent[-1]["type"] == "response.failed"
        assert "the script fails" in sent[-1]["response"]["error"]["message"]


# ------------------------------------------------------------------------------------- background


async def test_one_in_the_background_is_polled(running: Running) -> None:
    async with client(running) as api:
        made = await api.responses.create(input="Hello!", background=True, **TINY)
        assert made.status == "queued"
        with anyio.fail_after(HANG):
            while (found := await api.responses.retrieve(made.id)).status != "completed":
                assert found.status in ("queued", "in_progress")
                await anyio.sleep(0.01)
        assert found.output_text
        after = await api.responses.create(input="Hi", previous_response_id=made.id, **TINY)
        assert after.previous_response_id == made.id


async def test_a_stream_that_was_cut_goes_on_where_it_ended(tmp_path: Path) -> None:
    async with serving(kept(tmp_path, tokens_per_second=40), tmp_path) as running:
        async with client(running) as api:
            stream = await api.responses.create(
                model="scripted", input="Hello", background=True, stream=True
            )
            first = []
            async for event in stream:
                first.append(event)
                if len(first) == 8:
                    break
            await stream.close()
            made = first[0].response.id  # type: ignore[union-attr]
            rest = [
                event
                async for event in await api.responses.retrieve(
                    made, stream=True, starting_after=first[-1].sequence_number
                )
            ]
            both = [event.sequence_number for event in [*first, *rest]]
            assert both == list(range(len(both)))
            assert rest[-1].type == "response.completed"
            deltas = [e.delta for e in [*first, *rest] if e.type == "response.output_text.delta"]
            assert "".join(deltas) == "Hello from the script."
            again = [event async for event in await api.responses.retrieve(made, stream=True)]
            assert again == [*first, *rest]
            async with api.responses.stream(response_id=made, starting_after=5) as helper:
                assert (await helper.get_final_response()).output_text == "Hello from the script."


async def test_one_in_the_background_is_cancelled(tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=LASTING), tmp_path) as running:
        async with client(running) as api:
            made = await api.responses.create(model="scripted", input="long", background=True)
            with anyio.fail_after(HANG):
                while not running.registry.status("scripted").in_use:
                    await anyio.sleep(0.005)
                with pytest.raises(openai.BadRequestError, match="still running"):
                    await api.responses.create(
                        model="scripted", input="Hi", previous_response_id=made.id
                    )
                async with await api.responses.retrieve(
                    made.id, stream=True, starting_after=-9
                ) as all_events:
                    assert (await anext(all_events)).sequence_number == 0
                cancelled = await api.responses.cancel(made.id)
                assert cancelled.status == "cancelled"
                while running.registry.status("scripted").in_use:
                    await anyio.sleep(0.005)
            assert (await api.responses.retrieve(made.id)).status == "cancelled"
            other = await api.responses.create(model="scripted", input="Hello", max_output_tokens=2)
            with pytest.raises(openai.BadRequestError):
                await api.responses.cancel(other.id)


async def test_one_in_the_background_fails_where_it_is_read(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running, client(running) as api:
        for name, text in (("scripted", "the script fails"), ("nobody", "not found")):
            made = await api.responses.create(model=name, input="break", background=True)
            with anyio.fail_after(HANG):
                while (found := await api.responses.retrieve(made.id)).status != "failed":
                    await anyio.sleep(0.01)
            assert found.error is not None
            assert text in found.error.message


# ------------------------------------------------------------------------------------------- kept


async def test_another_keys_responses_and_conversations_are_not_there(tmp_path: Path) -> None:
    settings = kept(tmp_path, "one", "two", tokens_per_second=LASTING)
    async with (
        serving(settings, tmp_path) as running,
        client(running, "one") as one,
        client(running, "two") as two,
    ):
        short: Any = {"model": "scripted", "input": "Hello", "max_output_tokens": 2}
        made = await one.responses.create(**short)
        for who, item in ((two, made.output[0].id), (one, "msg_" + "0" * 40)):
            named: Any = [{"type": "item_reference", "id": item}]
            with pytest.raises(openai.NotFoundError) as missing:
                await who.responses.create(**{**short, "input": named})
            assert missing.value.param == "input[0].id"
        talk = await one.conversations.create()
        runs = await one.responses.create(model="scripted", input="long", background=True)
        with anyio.fail_after(HANG):
            while (await one.responses.retrieve(runs.id)).status != "in_progress":
                await anyio.sleep(0.01)
        attempts: list[Any] = [
            two.responses.create(previous_response_id=made.id, **short),
            two.responses.create(conversation=talk.id, **short),
            two.responses.input_items.list(made.id),
            two.conversations.retrieve(talk.id),
            two.conversations.update(talk.id, metadata={}),
            two.conversations.items.list(talk.id),
            two.conversations.items.create(talk.id, items=[]),
            two.conversations.delete(talk.id),
        ]
        for name in (made.id, runs.id):
            attempts += [
                two.responses.retrieve(name),
                two.responses.retrieve(name, stream=True),
                two.responses.cancel(name),
                two.responses.delete(name),
            ]
        for attempt in attempts:
            with pytest.raises((openai.NotFoundError, openai.BadRequestError), match="not found"):
                await attempt
        assert (await one.responses.retrieve(made.id)).id == made.id
        assert (await one.responses.retrieve(runs.id)).status == "in_progress"
        await one.responses.cancel(runs.id)


async def test_a_restart_keeps_what_was_kept_and_ends_what_ran(tmp_path: Path) -> None:
    settings = kept(tmp_path, tokens_per_second=LASTING)
    async with serving(settings, tmp_path) as running, client(running) as api:
        done = await api.responses.create(model="scripted", input="Hi", max_output_tokens=2)
        runs = await api.responses.create(model="scripted", input="long", background=True)
        with anyio.fail_after(HANG):
            while not running.registry.status("scripted").in_use:
                await anyio.sleep(0.005)
    async with serving(settings, tmp_path) as running, client(running) as api:
        assert (await api.responses.retrieve(done.id)).status == "incomplete"
        lost = await api.responses.retrieve(runs.id)
        assert lost.status == "failed"
        assert lost.error is not None


async def test_what_cannot_be_kept_is_no_success(tmp_path: Path) -> None:
    settings = kept(tmp_path, tokens_per_second=1_000)
    async with serving(settings, tmp_path) as running:
        with closing(sqlite3.connect(tmp_path / "store.sqlite")) as other, other:
            other.execute("DROP TABLE responses")
        body = {"model": "scripted", "input": "Hello"}
        whole = await running.client.post("/v1/responses", json=body)
        assert whole.status_code == httpx.codes.INTERNAL_SERVER_ERROR
        streamed = await running.client.post("/v1/responses", json={**body, "stream": True})
        kinds = [event["type"] for event in events(streamed.text)]
        assert kinds[-1] == "response.failed"
        assert "response.completed" not in kinds
        unkept = await running.client.post("/v1/responses", json={**body, "store": False})
        assert unkept.status_code == httpx.codes.OK


async def test_who_leaves_gives_the_model_back(tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=LASTING), tmp_path) as running:

        def in_use() -> int:
            return running.registry.status("scripted").in_use

        async def ask() -> None:
            body = {"model": "scripted", "input": "long", "stream": True}
            await running.client.post("/v1/responses", json=body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(HANG):
                while not in_use():
                    await anyio.sleep(0.005)
                tasks.cancel_scope.cancel()
        with anyio.fail_after(HANG):
            while in_use():
                await anyio.sleep(0.005)


async def test_what_is_not_applied_is_said(running: Running) -> None:
    body = {
        "model": "scripted",
        "input": HELLO,
        "tools": [{"type": "web_search"}],
        "speed": "fast",
    }
    answer = await running.client.post("/v1/responses", json=body)
    assert answer.status_code == httpx.codes.OK
    assert answer.headers["x-roundhouse-ignored"] == "speed, tools[0]"
