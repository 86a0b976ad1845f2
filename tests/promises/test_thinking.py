"""Control of thinking, the same words for every family: off, limited, inline, hidden."""

import json
from pathlib import Path
from typing import Any

import pytest

from config.settings import Config, ModelConfig, ServerConfig
from tests.gateway.http.serving import Running, serving

pytestmark = pytest.mark.anyio
STORY: dict[str, Any] = {
    "model": "roundhouse-tiny",
    "temperature": 0,
    "messages": [{"role": "user", "content": "Tell me a short story."}],
}


async def ask(running: Running, **changes: Any) -> dict[str, Any]:
    answer = await running.client.post("/v1/chat/completions", json={**STORY, **changes})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return {
        "reasoning_tokens": body["usage"]["completion_tokens_details"]["reasoning_tokens"],
        **body["choices"][0]["message"],
    }


async def test_it_thinks_by_itself(running: Running) -> None:
    answer = await ask(running)
    assert answer["reasoning_content"]
    assert answer["content"]
    assert answer["reasoning_tokens"] > 3


@pytest.mark.parametrize(
    "off",
    [
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning": {"enabled": False}},
        {"reasoning_effort": "none"},
    ],
)
async def test_every_way_to_switch_it_off(off: dict[str, Any], running: Running) -> None:
    answer = await ask(running, **off)
    assert not answer.get("reasoning_content")
    assert answer["content"]
    assert answer["reasoning_tokens"] == 0


@pytest.mark.parametrize(
    "limit",
    [{"thinking_budget": 3}, {"reasoning_budget_tokens": 3}, {"reasoning": {"max_tokens": 3}}],
)
async def test_every_way_to_limit_it(limit: dict[str, Any], running: Running) -> None:
    answer = await ask(running, **limit)
    free = await ask(running)
    assert free["reasoning_content"].startswith(answer["reasoning_content"])
    assert len(answer["reasoning_content"]) < len(free["reasoning_content"])
    assert answer["content"]


async def test_the_closing_message_is_said(running: Running) -> None:
    answer = await ask(running, thinking_budget=3, reasoning_budget_message=" Enough thought.")
    assert answer["reasoning_content"].endswith("Enough thought.")
    assert answer["content"]


async def test_hidden_reasoning_is_counted_and_not_shown(running: Running) -> None:
    answer = await ask(running, include_reasoning=False)
    assert "reasoning_content" not in answer
    assert answer["reasoning_tokens"] > 3
    assert answer["content"]


async def test_inline_reasoning_keeps_its_tags(running: Running) -> None:
    answer = await ask(running, reasoning_format="none")
    assert answer["content"].startswith("<think>")
    assert "</think>" in answer["content"]


async def test_reasoning_cut_by_the_limit_stays_reasoning(running: Running) -> None:
    answer = await ask(running, max_tokens=5)
    assert answer["reasoning_content"]
    assert not answer["content"]


async def test_a_call_in_reasoning_that_was_not_closed_is_no_reasoning_to_limit(
    tmp_path: Path,
) -> None:
    """Several families call out of open reasoning; a budget was then forced into the call."""
    tool = {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    }
    call = {"name": "look", "arguments": {"at": "the signal behind the bridge"}}
    say = f"I look.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    template = "{{ messages[0].content }}{{ tools }}<think>\n"
    script = tmp_path / "caller.script.json"
    script.write_text(json.dumps({"lines": [{"say": say}], "chat_template": template}))
    model = ModelConfig(name="caller", path=str(script), format="hermes_json")
    async with serving(Config(server=ServerConfig(port=0), models=(model,)), tmp_path) as caller:
        body = {
            "messages": STORY["messages"],
            "tools": [{"type": "function", "function": tool}],
            "thinking_budget": 30,
        }
        answer = await caller.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message["reasoning_content"] == "I look."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == call["arguments"]
