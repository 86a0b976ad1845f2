"""Conversations with calls and reasoning in them, as clients send them back: with the templates
that models bring they are answered, and what stands in the prompt is the family's own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bundled
from tests.backends import gguf_raw
from tests.backends.gguf_raw import STRING
from tests.gateway.prompt.corpus import templates
from tests.served import Serve, Served, scripted, served

pytestmark = pytest.mark.slow  # the templates may have to be downloaded

GEMMA, LFM, MISTRAL, EMPTY = (
    "google-gemma-4-31B-it",
    "LFM2-8B-A1B",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "mistralai-Ministral-3-14B-Reasoning-2512",
)
CODER, DEEPSEEK, GPT_OSS = "Qwen3-Coder", "deepseek-ai-DeepSeek-V3.1", "openai-gpt-oss-120b"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SAYS = {
    DEEPSEEK: "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    '{"city": "Ulm"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    GPT_OSS: "<|channel|>analysis<|message|>Hm.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Hi",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("past")
    models = [
        scripted(folder, name, SAYS.get(name, "Fine."), chat_template=templates()[name])
        for name in (GEMMA, LFM, MISTRAL, EMPTY, CODER, DEEPSEEK, GPT_OSS)
    ]
    with served(folder, {"models": models}) as running:
        yield running


def called(arguments: Any = '{"city": "Ulm"}', text: str = "") -> list[dict[str, Any]]:
    call: dict[str, Any] = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": arguments}
    return [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sun"},
    ]


def prompt(server: Served, model: str, messages: list[dict[str, Any]]) -> str:
    asked = {"model": model, "messages": messages, "tools": [TOOL]}
    answer = server.client.post("/apply-template", json=asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt"])


def answered(server: Served, model: str, messages: list[dict[str, Any]], **fields: Any) -> Any:
    asked = {"model": model, "messages": messages, "tools": [TOOL], **fields}
    answer = server.client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (GEMMA, 'call:weather{city:<|"|>Ulm<|"|>}'),
        (LFM, '<|tool_call_start|>[weather(city="Ulm")]<|tool_call_end|>'),
        (LFM, "<|im_start|>tool\n<|tool_response_start|>Sun<|tool_response_end|>"),
        (MISTRAL, '[/INST]I look.[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}'),
    ],
)
def test_a_past_call_stands_in_the_familys_own_form(server: Served, model: str, shown: str) -> None:
    assert shown in prompt(server, model, called(text="I look."))


@pytest.mark.parametrize("arguments", ['{"city": "Ul', "[]", "null", [1], None])
def test_a_broken_past_call_is_answered_and_named(server: Served, arguments: Any) -> None:
    answer = answered(server, CODER, called(arguments))
    assert answer.json()["choices"][0]["message"]["content"] == "Fine."
    relaxed = answer.headers.get("x-roundhouse-relaxed")
    named = "messages[].tool_calls[].function.arguments"
    assert relaxed == (named if arguments is not None else None)


def test_calls_of_the_family_are_read_where_the_template_shows_no_tools(server: Served) -> None:
    answer = answered(server, DEEPSEEK, called()[:1]).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":"Ulm"}'


def test_an_answer_with_its_reasoning_inside_can_be_sent_back(server: Served) -> None:
    question = {"role": "user", "content": "Hi"}
    first = answered(server, GPT_OSS, [question], reasoning_format="none").json()
    message = first["choices"][0]["message"]
    assert "Hm." in message["content"]
    again = [question, message, question]
    assert "<|channel|>final<|message|>Hi<|end|>" in prompt(server, GPT_OSS, again)


def test_an_empty_past_answer_is_taken(server: Served) -> None:
    question = {"role": "user", "content": "Hi"}
    messages = [question, {"role": "assistant", "content": ""}, question]
    assert answered(server, EMPTY, messages).json()["choices"][0]["message"]["content"] == "Fine."


def test_the_template_for_tools_is_taken_where_there_are_tools(
    serve: Serve, tmp_path: Path
) -> None:
    own = b"{% for m in messages %}{{ m.content }}{% endfor %}"
    file = gguf_raw.read(bundled.GGUF).with_value("tokenizer.chat_template", STRING, own)
    file = file.with_value(
        "tokenizer.chat_template.tool_use", STRING, b"{{ tools | tojson }}" + own
    )
    gguf_raw.write(file, path := tmp_path / "two.gguf")
    server = serve({"models": [{"name": "two", "path": str(path)}]})
    question = {"role": "user", "content": "Hi"}
    assert '"weather"' in prompt(server, "two", [question])
    asked = {"model": "two", "messages": [question]}
    assert server.client.post("/apply-template", json=asked).json()["prompt"] == "Hi"
