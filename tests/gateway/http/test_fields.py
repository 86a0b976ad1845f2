"""What becomes of a request's fields: named where they are not used, as the client wrote them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.http.exchange import MOST_LETTERS, MOST_NAMES, names_line
from tests.gateway.http.serving import HELLO, Running, config, serving

pytestmark = pytest.mark.anyio

IGNORED = "x-roundhouse-ignored"
STRICT = {"type": "function", "function": {"name": "f", "strict": True}}
UNUSED: dict[str, Any] = {"foo": 1, "best_of": 4, "prediction": {"type": "content"}}


@asynccontextmanager
async def api(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "tools": [STRICT]}),
        ("/v1/completions", {"prompt": "Once"}),
        ("/completion", {"prompt": "Once"}),
    ],
)
async def test_what_is_read_and_not_used_is_named(
    path: str, body: dict[str, Any], stream: bool, running: Running
) -> None:
    asked = {"model": "scripted", "stream": stream, "adaptive_target": 0.4, "user": "me", **UNUSED}
    answer = await running.client.post(path, json={**body, **asked})
    assert answer.status_code == 200
    named = set(answer.headers[IGNORED].split(", "))
    assert {"foo", "best_of", "prediction", "adaptive_target"} <= named
    assert ("tools[].function.strict" in named) == ("tools" in body)
    assert "user" not in named


async def test_what_an_engine_lacks_is_named_as_the_client_wrote_it(running: Running) -> None:
    body = {"model": "scripted", "messages": HELLO, "repetition_penalty_range": 64, "rep_pen": 1.5}
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert answer.headers[IGNORED] == "rep_pen, repetition_penalty_range"


async def test_a_request_that_is_used_whole_has_nothing_named(running: Running) -> None:
    body = {"model": "roundhouse-tiny", "messages": HELLO, "temperature": 0, "user": "me"}
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert IGNORED not in answer.headers


async def test_a_clients_names_can_neither_end_a_line_nor_fill_the_headers(
    running: Running,
) -> None:
    strange = {f"{number}\r\nset-cookie: é{'x' * 500}": 1 for number in range(200)}
    body = {"model": "scripted", "messages": HELLO, **strange}
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    named = answer.headers[IGNORED]
    assert named.endswith(" and more")
    assert named.isascii()
    assert len(named) <= MOST_NAMES * (MOST_LETTERS + 2) + len(" and more")


async def test_a_stream_that_began_with_a_comment_names_them_in_another(tmp_path: Path) -> None:
    settings = config(tmp_path, load_seconds=1.5)  # longer than a client waits for the status
    async with serving(settings, tmp_path) as running:
        body = {"model": "scripted", "messages": HELLO, "stream": True, "x\ndata: {}": 1, "foo": 2}
        answer = await running.client.post("/v1/chat/completions", json=body)
    assert IGNORED not in answer.headers
    assert f"{IGNORED}=foo, x?data????\n\n" in answer.text
    assert "data: {}" not in answer.text.splitlines()


def test_a_name_that_stands_twice_is_named_once() -> None:
    assert names_line(["foo", "bar", "foo"]) == "foo, bar"


async def test_equal_prompts_are_billed_one_by_one_and_their_choices_are_not(
    running: Running,
) -> None:
    async with api(running) as client:

        async def billed(prompt: Any, n: int = 1) -> int:
            answer = await client.completions.create(
                model="roundhouse-tiny", prompt=prompt, n=n, max_tokens=2
            )
            assert answer.usage is not None
            return answer.usage.prompt_tokens

        one = await billed("Once upon")
        assert await billed(["Once upon"] * 5) == 5 * one
        assert await billed(["Once upon"] * 2, n=3) == 2 * one


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
async def test_integral_floats_are_integers_and_others_name_their_field(
    path: str, running: Running
) -> None:
    body = {"model": "scripted", "messages": HELLO, "prompt": "Once", "n": 1.0}
    answer = await running.client.post(path, json={**body, "max_tokens": 3.0, "stream": True})
    assert answer.status_code == 200
    assert '"error"' not in answer.text
    answer = await running.client.post(path, json={**body, "max_new_tokens": 5.5})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_new_tokens"


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")]
)
async def test_a_prompt_that_is_too_long_is_called_as_the_client_calls_it(
    path: str, field: str, running: Running
) -> None:
    long = "word " * 5000
    body: dict[str, Any] = {"prompt": long, "messages": [{"role": "user", "content": long}]}
    answer = await running.client.post(path, json={"model": "roundhouse-tiny", field: body[field]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
