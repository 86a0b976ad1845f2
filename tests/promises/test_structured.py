"""Structured output and tool choice as clients ask for them, on the bundled model."""

import json
import re
from typing import Any, Literal

import msgspec
import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from gateway.splitter.grammar import OutputGrammar
from tests.gateway.http.routes.test_openai import TOOL, WEATHER, client
from tests.gateway.http.serving import HELLO, Running, events

pytestmark = pytest.mark.anyio

CLOCK: Any = {"type": "function", "function": {"name": "get_time"}}
QUIET: Any = {"chat_template_kwargs": {"enable_thinking": False}}
UNIQUE = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 3}


class Person(BaseModel):
    """Small, so that a model that knows nothing comes to its end."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)
    tags: list[Literal["a", "b"]] = Field(max_length=3)


async def ask(running: Running, **fields: Any) -> Any:
    body = {"model": "roundhouse-tiny", "messages": HELLO, "max_tokens": 300, **fields}
    return await running.client.post("/v1/chat/completions", json=body)


def content(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


def named(schema: Any, **more: Any) -> dict[str, Any]:
    inner = {"name": "x", "schema": schema, **more}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_parse_gives_the_model_of_the_client(running: Running, temperature: float) -> None:
    async with client(running) as api:
        answer = await api.chat.completions.parse(
            model="roundhouse-tiny",
            messages=HELLO,
            response_format=Person,
            temperature=temperature,
            seed=7,
            max_tokens=300,
        )
        async with api.chat.completions.stream(
            model="roundhouse-tiny",
            messages=HELLO,
            response_format=Person,
            temperature=temperature,
            seed=7,
            max_tokens=300,
        ) as stream:
            streamed = await stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert streamed.choices[0].message.parsed == answer.choices[0].message.parsed


async def test_reasoning_stays_free_before_the_shape(running: Running) -> None:
    answer = await ask(running, guided_choice=["yes", "no"], temperature=0)
    assert content(answer) in {"yes", "no"}
    assert answer.json()["choices"][0]["message"]["reasoning_content"]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"regex_pattern": "[0-9]{3}-[a-z]{2}"}, "[0-9]{3}-[a-z]{2}"),
        ({"grammar": 'root ::= "a" [0-9] "b"'}, "a[0-9]b"),
        ({"grammar_string": 'start: "a" /[0-9]/ "b"'}, "a[0-9]b"),
        ({"structured_outputs": {"choice": ["x", "xy"]}}, "xy?"),
    ],
)
@pytest.mark.parametrize("thinks", [True, False])
async def test_the_content_is_exactly_the_shape(
    running: Running, fields: dict[str, Any], pattern: str, thinks: bool
) -> None:
    for seed in range(4):
        off = {} if thinks else QUIET
        assert re.fullmatch(pattern, content(await ask(running, **fields, **off, seed=seed)))
    body = {"model": "roundhouse-tiny", "prompt": "Hi", "max_tokens": 50, **fields}
    text = await running.client.post("/v1/completions", json=body)
    assert re.fullmatch(pattern, text.json()["choices"][0]["text"])


SMALL = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "grey"]}, "warm": {"type": "boolean"}},
    "required": ["sky", "warm"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields", [{"json_schema": SMALL}, {"json_schema": json.dumps(SMALL)}, {"guided_json": SMALL}]
)
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_a_text_completion_has_the_shape(
    running: Running, path: str, fields: dict[str, Any]
) -> None:
    body = {"prompt": "Hi", "n_predict": 90, "temperature": 1.5, "seed": 4, **fields}
    answer = (await running.client.post(path, json=body)).json()
    text = answer["content"] if path == "/completion" else answer["choices"][0]["text"]
    assert json.loads(text).keys() == {"sky", "warm"}
    streamed = await running.client.post(path, json={**body, "stream": True})
    chunks = events(streamed.text.replace("data: [DONE]", ""))
    parts = [
        one["content"] if path == "/completion" else one["choices"][0]["text"] for one in chunks
    ]
    assert "".join(parts) == text


async def test_llama_servers_completion_takes_its_grammar(running: Running) -> None:
    body = {"prompt": "Hi", "n_predict": 20, "grammar": 'root ::= "a" [0-9] [0-9] "b"', "seed": 4}
    answer = await running.client.post("/completion", json=body)
    assert re.fullmatch("a[0-9]{2}b", answer.json()["content"])


async def test_an_object_may_be_cut_by_the_limit_and_says_so(running: Running) -> None:
    answer = await ask(running, response_format={"type": "json_object"}, max_tokens=25)
    choice = answer.json()["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    else:
        assert choice["finish_reason"] == "length"


async def test_what_the_grammar_does_not_carry_is_named_and_checked(running: Running) -> None:
    faults = set()
    for seed in range(32):
        answer = await ask(running, **named(UNIQUE), seed=seed, temperature=1.5)
        assert answer.headers["x-roundhouse-relaxed"] == "$.uniqueItems"
        values = json.loads(content(answer))
        fault = answer.json()["choices"][0].get("schema_fault")
        assert (fault is not None) == (len(set(values)) < len(values))
        faults.add(fault is not None)
    assert faults == {True, False}


async def test_a_stream_says_how_it_misses_the_schema(running: Running) -> None:
    schema = {**UNIQUE, "items": {"const": 1}, "minItems": 2}
    answer = await ask(running, **named(schema), stream=True)
    last = events(answer.text.replace("data: [DONE]", ""))[-1]
    assert "unique" in last["choices"][0]["schema_fault"]


async def test_strict_refuses_what_can_not_be_enforced(running: Running) -> None:
    answer = await ask(running, **named({"properties": {"a": UNIQUE}}, strict=True))
    assert answer.status_code == 400
    assert "$.properties.a" in answer.json()["error"]["message"]
    assert "uniqueItems" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (named({"type": "nothing"}), "response_format.json_schema.schema"),
        ({"regex_pattern": "("}, "regex_pattern"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"guided_choice": []}, None),
    ],
)
async def test_a_faulty_shape_names_its_field(
    running: Running, fields: dict[str, Any], param: str | None
) -> None:
    answer = await ask(running, **fields)
    if param is None:  # an empty list asks for nothing
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


async def test_the_same_seed_gives_the_same_constrained_answer(running: Running) -> None:
    fields = {**named(Person.model_json_schema()), "seed": 3, "temperature": 1.2}
    first, second = await ask(running, **fields), await ask(running, **fields)
    assert first.json()["choices"] == second.json()["choices"]


async def test_several_choices_are_each_in_shape(running: Running) -> None:
    answer = await ask(running, guided_choice=["yes", "no", "maybe"], n=4, temperature=1.5, **QUIET)
    for choice in answer.json()["choices"]:
        assert choice["message"]["content"] in {"yes", "no", "maybe"}


async def test_log_probabilities_of_a_constrained_answer_are_of_each_token(
    running: Running,
) -> None:
    answer = await ask(running, guided_choice=["yes", "no"], logprobs=True, top_logprobs=2)
    (choice,) = answer.json()["choices"]
    text = "".join(one["token"] for one in choice["logprobs"]["content"])
    assert text == choice["message"]["content"]


# ------------------------------------------------------------------------------------- tool choice


async def called(api: openai.AsyncOpenAI, **fields: Any) -> ChatCompletion:
    answer: ChatCompletion = await api.chat.completions.create(
        **{"model": "roundhouse-tiny", "messages": HELLO, "max_tokens": 300, **fields}
    )
    return answer


def calls(answer: ChatCompletion) -> list[tuple[str, Any]]:
    """The names and arguments of the calls in it."""
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in answer.choices[0].message.tool_calls or ()
        if call.type == "function"
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_required_is_a_call_whatever_was_said(running: Running, temperature: float) -> None:
    async with client(running) as api:
        answer = await called(
            api, tools=[TOOL], tool_choice="required", temperature=temperature, seed=1
        )
    name, arguments = calls(answer)[0]
    assert name == "get_weather"
    assert isinstance(arguments["city"], str)


async def test_a_named_tool_is_the_one_that_is_called(running: Running) -> None:
    async with client(running) as api:
        answer = await called(
            api,
            messages=WEATHER,
            tools=[TOOL, CLOCK],
            tool_choice={"type": "function", "function": {"name": "get_time"}},
        )
    assert [name for name, _ in calls(answer)] == ["get_time"]
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_among_allowed_tools_one_is_called(running: Running) -> None:
    async with client(running) as api:
        answer = await called(
            api,
            messages=WEATHER,
            tools=[TOOL, CLOCK],
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [CLOCK]},
            },
        )
    assert {name for name, _ in calls(answer)} == {"get_time"}


async def test_another_list_of_allowed_tools_finds_the_prompt_in_the_cache(
    running: Running,
) -> None:
    lengths, cached = [], []
    dice: Any = {"type": "function", "function": {"name": "roll_dice", "parameters": {}}}
    async with client(running) as api:
        for allowed in ([TOOL, CLOCK, dice], [CLOCK], [TOOL]):
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
            answer = await called(
                api, messages=WEATHER, tools=[TOOL, CLOCK, dice], tool_choice=choice
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            lengths.append(answer.usage.prompt_tokens)
            cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
            assert {name for name, _ in calls(answer)} <= {
                one["function"]["name"] for one in allowed
            }
    assert len(set(lengths)) == 1
    assert min(cached[1:]) >= lengths[0] - 8


async def test_auto_calls_where_the_model_would(running: Running) -> None:
    async with client(running) as api:
        answer = await called(api, messages=WEATHER, tools=[TOOL], temperature=0)
        plain = await called(api, tools=[TOOL], temperature=0)
        free = await called(api, temperature=0)
    assert calls(answer) == [("get_weather", {"city": "Lisbon"})]
    assert not plain.choices[0].message.tool_calls
    assert plain.choices[0].message.content
    assert free.choices[0].message.content


async def test_a_shape_and_a_demanded_call_contradict_each_other(running: Running) -> None:
    answer = await ask(
        running, tools=[TOOL], tool_choice="required", response_format={"type": "json_object"}
    )
    assert answer.status_code == 400


async def test_a_begun_answer_takes_no_shape(running: Running) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "{"}]
    answer = await ask(running, messages=messages, response_format={"type": "json_object"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format"


UNSPEAKABLE: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": 7}}}


async def test_tools_whose_schema_is_none_are_served_and_named(running: Running) -> None:
    answer = await ask(running, messages=WEATHER, tools=[TOOL, UNSPEAKABLE], temperature=0)
    assert answer.status_code == 200
    assert answer.headers["x-roundhouse-relaxed"] == "tools.f.parameters"
    assert answer.json()["choices"][0]["message"]["tool_calls"]


async def test_a_strict_tool_whose_schema_is_none_is_refused(running: Running) -> None:
    strict = {"type": "function", "function": {**UNSPEAKABLE["function"], "strict": True}}
    answer = await ask(running, tools=[strict])
    assert answer.status_code == 400
    assert "tools.f.parameters" in answer.json()["error"]["message"]


async def test_a_grammar_that_the_engine_refuses_costs_nobody_an_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked for it: with tools and `auto` the answer goes without, and says so."""

    def refused(*_: Any, **__: Any) -> OutputGrammar:
        return OutputGrammar(
            msgspec.json.encode({"grammars": [{"lark_grammar": "start: ("}]}).decode()
        )

    monkeypatch.setattr("gateway.answers.constraints.output_grammar", refused)
    answer = await ask(running, messages=WEATHER, tools=[CLOCK, TOOL], temperature=0)
    assert answer.status_code == 200
    assert answer.headers["x-roundhouse-relaxed"] == "tools"
    assert answer.json()["choices"][0]["message"]["tool_calls"]
    demanded = await ask(running, tools=[CLOCK, TOOL], tool_choice="required")
    assert demanded.status_code == 400


STRICT: dict[str, Any] = {"name": "f", "strict": True}
BEGUN: Any = {"messages": [*HELLO, {"role": "assistant", "content": "Well"}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("path", "tool", "talk", "relaxed"),
    [
        ("chat/completions", {"type": "function", "function": STRICT}, {"messages": HELLO}, None),
        ("chat/completions", {"type": "function", "function": STRICT}, BEGUN, "tools[].strict"),
        ("messages", {**STRICT, "input_schema": {"type": "object"}}, {"messages": HELLO}, None),
        ("messages", {**STRICT, "input_schema": {"type": "object"}}, BEGUN, "tools[].strict"),
        ("responses", {"type": "function", **STRICT}, {"input": "Hi"}, None),
    ],
)
async def test_strict_tools_are_relaxed_only_in_an_answer_that_was_begun(
    running: Running, path: str, tool: Any, talk: dict[str, Any], relaxed: str | None
) -> None:
    body = {"model": "roundhouse-tiny", "tools": [tool], "temperature": 0, **talk}
    answer = await running.client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200
    assert "x-roundhouse-ignored" not in answer.headers
    assert answer.headers.get("x-roundhouse-relaxed") == relaxed
