"""Clients that send a schema as pydantic writes it, which says nothing of further properties and
nothing of the size of a number: each comes to an end on the bundled model, and its answer fits.

`instructor` asks for an older `rich` than this project's, so its requests are sent as it writes
them (1.17.0, three modes; its others send no schema). `guidance` asks for another llguidance.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import anyio
import httpx
import msgspec
import ollama
import openai
import pytest
from pydantic import BaseModel, Field

from tests.gateway.http.serving import Running
from tests.hang import HANG

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUESTION = "What is the weather in Lisbon?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
MODEL = "roundhouse-tiny"


class Weather(BaseModel):
    city: Annotated[str, Field(max_length=20)]  # a small model's texts have no end of their own
    degrees: int


class Day(BaseModel):
    sky: Literal["sunny", "cloudy"]
    degrees: float


class Forecast(BaseModel):
    city: Annotated[str, Field(max_length=20)]
    days: list[Day]
    windy: bool | None = None


Asked = type[BaseModel]
ASKED: list[Asked] = [Weather, Forecast]


def posted(url: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        json={"model": MODEL, "messages": MESSAGES, "temperature": 0, **body},
        timeout=HANG,
    )
    assert answer.status_code == 200
    return answer.json()["choices"][0]


def instructor_tools(url: str, asked: Asked) -> Any:
    """Its modes TOOLS and TOOLS_STRICT."""
    name, schema = asked.__name__, asked.model_json_schema()
    schema.pop("title")
    tool = {"name": name, "description": f"Correctly extracted `{name}`", "parameters": schema}
    body = {
        "tool_choice": {"type": "function", "function": {"name": name}},
        "tools": [{"type": "function", "function": tool}],
    }
    (call,) = posted(url, body)["message"]["tool_calls"]
    return asked.model_validate_json(call["function"]["arguments"])


def instructor_schema(url: str, asked: Asked) -> Any:
    shape = {"name": asked.__name__, "schema": asked.model_json_schema()}
    body = {"response_format": {"type": "json_schema", "json_schema": shape}}
    return asked.model_validate_json(posted(url, body)["message"]["content"])


def langchain(method: Any, url: str, asked: Asked) -> Any:
    from langchain_openai import ChatOpenAI

    with httpx.Client(timeout=HANG) as http:
        model: Any = ChatOpenAI(
            model=MODEL, base_url=f"{url}/v1", api_key=lambda: "none", temperature=0,
            max_retries=0, http_client=http,
        )  # fmt: skip
        return model.with_structured_output(asked, method=method).invoke(QUESTION)


def pydantic_ai(output: str, url: str, asked: Asked) -> Any:
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def answer() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
            provider = OpenAIProvider(openai_client=api)
            wanted: Any = {"tool": ToolOutput, "native": NativeOutput}[output](asked)
            agent: Any = Agent(OpenAIChatModel(MODEL, provider=provider), output_type=wanted)
            return (await agent.run(QUESTION, model_settings={"temperature": 0})).output

    return anyio.run(answer)


def outlines(url: str, asked: Asked) -> Any:
    import outlines as library

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        written: Any = library.from_openai(api, MODEL)(QUESTION, asked, temperature=0)
    return asked.model_validate_json(written)


def ollama_format(url: str, asked: Asked) -> Any:
    with ollama.Client(host=url) as api:
        answer = api.chat(
            MODEL, messages=MESSAGES, format=asked.model_json_schema(), options={"temperature": 0}
        )
    assert answer.done_reason == "stop"
    return asked.model_validate_json(answer.message.content or "")


CLIENTS: dict[str, Callable[[str, Asked], Any]] = {
    "instructor's tools": instructor_tools,
    "instructor's schema": instructor_schema,
    "langchain's tools": partial(langchain, "function_calling"),
    "langchain's schema": partial(langchain, "json_schema"),
    "pydantic-ai's tools": partial(pydantic_ai, "tool"),
    "pydantic-ai's schema": partial(pydantic_ai, "native"),
    "outlines": outlines,
    "ollama's format": ollama_format,
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_s_schema_comes_to_its_end(
    running: Running, client: str, asked: Asked
) -> None:
    answer = await anyio.to_thread.run_sync(CLIENTS[client], running.url, asked)

    assert isinstance(answer, asked)
    assert answer.model_extra is None


async def test_what_was_closed_is_named(running: Running) -> None:
    shape = {"name": "w", "schema": Weather.model_json_schema()}
    body = {"response_format": {"type": "json_schema", "json_schema": shape}, "max_tokens": 1}
    answer = await running.client.post(
        "/v1/chat/completions", content=msgspec.json.encode({"messages": MESSAGES, **body}),
        headers={"content-type": "application/json"},
    )  # fmt: skip
    assert answer.headers["x-roundhouse-relaxed"] == "$.additionalProperties"
