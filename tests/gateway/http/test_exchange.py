"""What becomes of a request's fields: named where they are not used, as the client wrote them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from config.settings import ServerConfig
from gateway.answers.encoding import Encoded
from gateway.http.exchange import MOST_CHARACTERS, MOST_NAMES, about, names_line
from gateway.terms.request import Unapplied
from tests.gateway.http.serving import HELLO, Running, config, events, serving

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
    assert "tools[].function.strict" not in named  # it is enforced
    assert "user" not in named


async def test_what_an_engine_lacks_is_named_as_the_client_wrote_it(running: Running) -> None:
    body = {"model": "scripted", "messages": HELLO, "repetition_penalty_range": 64, "rep_pen": 1.5}
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert answer.headers[IGNORED] == "rep_pen, repetition_penalty_range"


async def test_a_request_that_is_used_whole_has_nothing_named(running: Running) -> None:
    body = {"model": "roundhouse-tiny", "messages": HELLO, "user": "me", "max_tokens": 2}
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
    assert len(named) <= MOST_NAMES * (MOST_CHARACTERS + 2) + len(" and more")


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
                model="scripted", prompt=prompt, n=n, max_tokens=2
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


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
@pytest.mark.parametrize(
    ("prompts", "n", "field"), [(1000, 128, "n"), (1000, 1, "prompt"), (3, 100, "n")]
)
async def test_more_choices_than_a_request_may_have_are_refused(
    path: str, prompts: int, n: int, field: str, running: Running
) -> None:
    body = {"model": "scripted", "prompt": ["x"] * prompts, "n": n}
    answer = await running.client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert str(prompts * n) in error["message"]
    assert "server.max_choices" in error["message"]


async def test_a_chat_has_no_more_choices_than_the_server_gives(tmp_path: Path) -> None:
    async with serving(config(tmp_path, server=ServerConfig(max_choices=2)), tmp_path) as running:
        body = {"model": "scripted", "messages": HELLO, "max_tokens": 1}
        answer = await running.client.post("/v1/chat/completions", json={**body, "n": 3})
        assert answer.json()["error"]["param"] == "n"
        answer = await running.client.post("/v1/chat/completions", json={**body, "n": 2})
        assert len(answer.json()["choices"]) == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", [10**6]),
        ("custom_token_bans", f"1,{10**6}"),
        ("logit_bias", {str(10**6): 1}),
        ("rep_pen", 1e30),
    ],
)
async def test_what_no_model_can_have_is_refused_by_the_clients_name(
    path: str, field: str, value: Any, running: Running
) -> None:
    body = {"model": "scripted", "messages": HELLO, "prompt": "Once", field: value}
    answer = await running.client.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: ")


STOPPED = {"model": "scripted", "messages": [{"role": "user", "content": "think"}]}


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stop_string_applies_to_the_answer_and_is_reported(
    n: int, running: Running
) -> None:
    async with api(running) as client:
        body: Any = {**STOPPED, "stop": ["see", "n."], "n": n}
        whole = await client.chat.completions.create(**body)
        body |= {"stream_options": {"include_usage": True}}
        async with client.chat.completions.stream(**body) as stream:
            streamed = await stream.get_final_completion()
    for answer in (whole, streamed):
        assert len(answer.choices) == n
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            assert choice.message.content == "See"
            assert choice.message.model_extra is not None
            assert choice.message.model_extra["reasoning_content"] == "Let me see."
    assert whole.choices[0].model_extra == {"stop_reason": "n.", "stop_str": "n."}
    assert whole.usage is not None
    assert streamed.usage is not None
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens


async def test_a_stop_string_applies_to_reasoning_where_that_is_asked_for(running: Running) -> None:
    body = {**STOPPED, "stop": "see", "stop_in_reasoning": True}
    answer = await running.client.post("/v1/chat/completions", json=body)
    (choice,) = answer.json()["choices"]
    assert choice["message"]["reasoning_content"] == "Let me "
    assert choice["message"]["content"] == ""
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "see")


@pytest.mark.parametrize("field", ["stop", "stop_sequence"])
async def test_a_stop_string_has_a_length(field: str, running: Running) -> None:
    body = {**STOPPED, field: "x" * 1001}
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert answer.json()["error"]["param"] == field


async def test_raw_text_tells_its_stop_string_in_every_dialect(running: Running) -> None:
    body = {"model": "scripted", "prompt": "Hi", "stop": ["script"]}
    completion = (await running.client.post("/completion", json=body)).json()
    assert (completion["stop_type"], completion["stopping_word"]) == ("word", "script")
    (choice,) = (await running.client.post("/v1/completions", json=body)).json()["choices"]
    assert (choice["text"], choice["stop_str"]) == ("Hello from the ", "script")
    streamed = await running.client.post("/v1/completions", json={**body, "stream": True})
    assert '"stop_str":"script"' in streamed.text


async def test_each_token_with_probabilities_is_an_event_of_its_own(running: Running) -> None:
    body = {"model": "scripted", "prompt": "Hi", "n_predict": 40, "n_probs": 2, "stream": True}
    answer = await running.client.post("/completion", json=body)
    *tokens, _ = events(answer.text)
    assert len(tokens) == len("Hello from the script.")
    for one in tokens:
        (token,) = one["completion_probabilities"]
        assert token["token"] == one["content"]


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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_full_of_tools_says_so_and_what_to_do(
    stream: bool, running: Running
) -> None:
    properties = {f"option_{k}": {"type": "string", "description": "One"} for k in range(8)}
    parameters = {"type": "object", "properties": properties}
    tools = [
        {"type": "function", "function": {"name": f"tool_{k}", "parameters": parameters}}
        for k in range(36)
    ]
    system = {"role": "system", "content": "Be kind. " * 2000}
    body = {"model": "roundhouse-tiny", "messages": [system, *HELLO], "tools": tools}
    answer = await running.client.post("/v1/chat/completions", json={**body, "stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "tools (36)" in error["message"]
    assert "Builtin Tools" in error["message"]
    assert "system messages" in error["message"]
    assert "context_length" in error["message"]


async def test_a_prompt_that_is_too_long_without_tools_speaks_of_none(running: Running) -> None:
    messages = [{"role": "user", "content": "word " * 5000}]
    body = {"model": "roundhouse-tiny", "messages": messages}
    answer = await running.client.post("/v1/chat/completions", json=body)
    message = answer.json()["error"]["message"]
    assert "tools" not in message
    assert message.endswith("Send less, or load the model with a larger context_length.")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
async def test_an_answer_tells_what_became_of_its_parameters(
    path: str, usage: bool, stream: bool, running: Running
) -> None:
    body: dict[str, Any] = {"messages": HELLO} if "chat" in path else {"prompt": "Once"}
    body |= {"model": "roundhouse-tiny", "max_tokens": 2, "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if usage else {}
    body |= {"rep_pen": 1.2, "top_k": 10**6, "mirostat": 2, "top_p": 0.5, "foo": 1}
    body |= {"temperature": 1}
    answer = await running.client.post(path, json=body)
    assert "parameters" not in answer.text
    answer = await running.client.post(path, json={**body, "return_parameters": True})
    chunks = events(answer.text.replace("data: [DONE]", "")) if stream else [answer.json()]
    parameters = chunks[-1]["parameters"]
    assert parameters["applied"]["rep_pen"] == 1.2
    assert parameters["applied"]["max_tokens"] == 2
    assert parameters["ignored"]["foo"]
    assert parameters["ignored"]["top_p"] == "mirostat takes its place"
    assert set(parameters["ignored"]) == {"foo", "top_p", "top_k"}
    assert set(answer.headers[IGNORED].split(", ")) == {"foo", "top_p", "top_k"}


async def test_a_changed_parameter_tells_what_was_asked_and_what_was_used(running: Running) -> None:
    body = {"model": "roundhouse-tiny", "prompt": "Once", "max_tokens": 10**6, "top_k": 10**6}
    body |= {"return_parameters": True, "stop": "."}
    answer = await running.client.post("/v1/completions", json=body)
    changed = answer.json()["parameters"]["changed"]
    assert changed["top_k"]["asked"] == 10**6 > changed["top_k"]["used"]
    assert changed["max_tokens"]["asked"] == 10**6 > changed["max_tokens"]["used"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
async def test_a_request_may_insist_on_its_parameters(path: str, running: Running) -> None:
    body = {"messages": HELLO, "prompt": "Once", "max_tokens": 2, "strict_parameters": True}
    body.pop("prompt" if "chat" in path else "messages")
    asked = {**body, "model": "scripted", "rep_pen": 1.2}
    answer = await running.client.post(path, json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "rep_pen"
    answer = await running.client.post(path, json={**asked, "model": "roundhouse-tiny"})
    assert answer.status_code == 200
    answer = await running.client.post(path, json={**body, "model": "scripted", "foo": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "foo")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_what_counting_tokens_does_not_read_is_named(path: str, running: Running) -> None:
    body = {"model": "roundhouse-tiny", "content": "Once", "tokens": [3]}
    body.pop("tokens" if path == "/tokenize" else "content")
    answer = await running.client.post(path, json={**body, "bar": True, "foo": 1})
    assert answer.headers[IGNORED] == "bar, foo"
    answer = await running.client.post(path, json=body)
    assert IGNORED not in answer.headers


def test_each_header_of_vectors_says_what_its_name_says() -> None:
    """Their values were put to the names by position: one more in the middle mislabelled them."""
    done = Encoded(
        model="minilm",
        backend="llamacpp",
        queued_seconds=0.25,
        load_seconds=1.5,
        vectors=(b"",),
        prompt_tokens=3,
        cut=2,
        unapplied=(Unapplied("foo", "unknown"), Unapplied("bar", "partly", partly=True)),
    )
    assert about(done) == {
        "x-roundhouse-model": "minilm",
        "x-roundhouse-backend": "llamacpp",
        "x-roundhouse-queue-time": "0.250",
        "x-roundhouse-load-time": "1.500",
        "x-roundhouse-ignored": "foo",
        "x-roundhouse-relaxed": "bar",
        "x-roundhouse-truncated": "2",
    }
