"""The format of a model's answers: what was recognised, what a request names instead, and where
that shows.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from gateway.splitter import FORMATS
from tests.gateway.prompt.new_families import TEMPLATES
from tests.promises.test_calls import TEMPLATE
from tests.served import Serve, Served, command, scripted, served

CHAT = "/v1/chat/completions"
CALL = '[TOOL_CALLS]look[ARGS]{"at": "it"}'
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Look."}], "tools": [TOOL]}
MISTRAL: dict[str, Any] = {**ASKED, "model": "box", "answer_format": "mistral_v11"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("formats")
    box = scripted(folder, "box", CALL, chat_template=TEMPLATE)
    with served(folder, {"models": [box]}) as running:
        yield running


def test_a_request_names_the_format_of_its_answer(server: Served) -> None:
    def answered(name: str, **fields: Any) -> Any:
        headers = {"x-request-id": name}
        answer = server.client.post(CHAT, json={**MISTRAL, **fields}, headers=headers)
        seen = server.client.get(f"/v1/admin/requests/{name}").json()
        return answer.json()["choices"][0]["message"], seen["split"]

    message, split = answered("named")
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"it"}'}
    assert split == {"format": "mistral_v11", "why": "named in the request"}
    message, split = answered("not named", answer_format=None)
    assert message["content"] == CALL
    assert split["format"] == "hermes_json"
    held, _ = answered("held", tool_choice="required")
    assert held["tool_calls"][0]["function"]["arguments"] == '{"at":"it"}'


def test_a_format_that_is_none_is_refused_with_those_there_are(server: Served) -> None:
    answer = server.client.post(CHAT, json={**MISTRAL, "answer_format": "hermes"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "answer_format")
    assert all(name in error["message"] for name in FORMATS)


def test_the_log_says_once_how_a_format_was_recognised(serve: Serve, tmp_path: Path) -> None:
    server = serve({"models": [scripted(tmp_path, "box", CALL, chat_template=TEMPLATE)]})
    for _ in range(2):
        server.client.post(CHAT, json={**ASKED, "model": "box"})
    assert server.stop() == 0  # all of its log is read
    (line,) = server.log.records("format of answers")
    assert (line["id"], line["model"]) == ("hermes_json", "box")
    assert line["why"] == "the chat template contains '<tool_call>'"


def test_another_roundhouse_is_told_the_format_and_no_other_server(
    server: Served, serve: Serve, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.jinja"
    plain.write_text(TEMPLATE)
    here = {"models": {"far": "box"}, "split": "here", "template": str(plain)}
    for way, name in (({"prefix": "their-"}, "their-box"), (here, "far")):
        front = serve({"upstreams": [{"name": "house", "urls": [f"{server.url}/v1"], **way}]})
        for _ in range(100):  # until the list of the server behind has come
            if front.client.get("/v1/models").json()["data"]:
                break
            sleep(0.1)
        answer = front.client.post(CHAT, json={**MISTRAL, "model": name})
        assert answer.status_code == 200, answer.text
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"at": "it"}
        front.stop()


def test_a_learned_thought_is_closed_where_nothing_turns_it_off(
    serve: Serve, tmp_path: Path
) -> None:
    """K2 Horizon's prompts end with `<ifm|think>`, which no list has."""
    template = TEMPLATES["K2 Horizon"]
    server = serve({"models": [scripted(tmp_path, "k2", "Well.", chat_template=template)]})
    body = {"model": "k2", "messages": ASKED["messages"], "enable_thinking": False}
    answer = server.client.post(CHAT, json=body, headers={"x-request-id": "off"}).json()
    message = answer["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content")) == ("Well.", None)
    (prompt,) = server.client.get("/v1/admin/requests/off").json()["prompts"]
    assert prompt["text"].endswith("<ifm|think>\n\n</ifm|think>\n\n")


def test_check_says_how_each_format_was_recognised(tmp_path: Path) -> None:
    models = [
        scripted(tmp_path, "listed", chat_template=TEMPLATE),
        scripted(tmp_path, "learned", chat_template=TEMPLATES["dots"]),
        {**scripted(tmp_path, "named", chat_template=TEMPLATE), "format": "glm45"},
    ]
    config = tmp_path / "roundhouse.yaml"
    config.write_text(json.dumps({"models": models}))
    with command("check", "--config", str(config), folder=tmp_path) as checked:
        pass
    lines = checked.out.text.splitlines()
    assert "named answers as glm45: named in the configuration" in lines
    assert "listed answers as hermes_json: the chat template contains '<tool_call>'" in lines
    proof = "20 of the 20 answers that it writes are read back"
    assert f"learned answers as learned: learned from the chat template; {proof}" in lines
