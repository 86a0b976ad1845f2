"""An agent's turns on a real engine: what changes near the beginning is said, what needn't change
doesn't.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import bundled
from tests.served import Served, served

NAMES = ("read", "write", "run")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    models = [{"name": "tiny", "path": str(bundled.GGUF)}]
    with served(tmp_path_factory.mktemp("partings"), {"models": models}) as running:
        yield running


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]


def turn(server: Served, messages: list[Any], *names: str, time: str = "10:30") -> str | None:
    """What is said of where the prompt parted; the answer is added to `messages`."""
    system = {"role": "system", "content": f"You edit.\nIt is {time}."}
    body = {
        "model": "tiny",
        "messages": [system, *messages],
        "tools": tools(*names),
        "max_tokens": 4,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    answer = server.client.post(
        "/v1/chat/completions", json=body, headers={"x-session-id": messages[0]["content"]}
    )
    assert answer.status_code == 200, answer.text
    content = answer.json()["choices"][0]["message"]["content"] or "-"
    messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "More."}]
    parted: str | None = answer.headers.get("x-roundhouse-parted")
    return parted


def talk(server: Served, name: str) -> Any:
    listed = server.client.get("/v1/admin/conversations").json()["data"]
    return next(one for one in listed if one["conversation"] == name)


def test_other_orders_of_tools_are_one_prompt_and_other_tools_are_said(server: Served) -> None:
    messages = [{"role": "user", "content": "orders"}]
    assert turn(server, messages, *NAMES) is None
    assert turn(server, messages, *reversed(NAMES)) is None
    assert talk(server, "orders")["hit_rate"] > 0.5
    added = turn(server, messages, "search", *NAMES)
    assert added is not None
    assert added.startswith("tool list changed (+search) at token ")
    found = talk(server, "orders")
    assert (found["turns"], found["partings"]) == (3, {"tools": 1})
    assert 0 < found["parting"]["at"] < found["parting"]["of"]
    assert found["parting"]["sentence"] == added
    metrics = server.client.get("/metrics").text
    assert 'roundhouse_prompt_partings_total{model="tiny",what="tools"} 1.0' in metrics
    assert 'roundhouse_turn_tokens_total{kind="cached",model="tiny"}' in metrics


def test_a_time_in_the_system_prompt_is_said_to_the_log_too(server: Served) -> None:
    messages = [{"role": "user", "content": "times"}]
    assert turn(server, messages) is None
    parted = turn(server, messages, time="10:31")
    assert parted is not None
    assert parted.startswith("system prompt changed (line 2, a time) at token ")
    assert server.log.wait_for("request", lambda record: record.get("parted") == parted)


def test_the_same_request_again_and_another_conversation_part_from_nothing(server: Served) -> None:
    messages = [{"role": "user", "content": "again"}]
    assert turn(server, messages[:]) is None
    assert turn(server, messages[:]) is None
    assert turn(server, [{"role": "user", "content": "another"}]) is None
