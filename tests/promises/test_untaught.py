"""A base model, which brings no chat template, is for completions; a chat with it says so, and ends
where its turn does.
"""

from pathlib import Path
from typing import Any

from tests.served import Serve, scripted

TURN = "Blue.<|im_end|>\n<|im_start|>user\nrubbish"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
WHY = "no chat template: use completions"


def test_a_chat_with_a_base_model_ends_with_its_turn_and_says_what_it_is(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve({"models": [scripted(tmp_path, "base", TURN, chat_template=None)]})

    def chat(**fields: Any) -> Any:
        messages = [{"role": "user", "content": "Which colour?"}]
        return server.client.post(
            "/v1/chat/completions", json={"model": "base", "messages": messages, **fields}
        )

    plain, with_tools = chat(), chat(tools=[TOOL], chat_template_kwargs={"enable_thinking": True})

    for answer in (plain, with_tools):
        (choice,) = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Blue.", "stop")
        assert "messages" in answer.headers["x-roundhouse-relaxed"]
    assert "tools" in with_tools.headers["x-roundhouse-ignored"]
    assert plain.json()["usage"]["prompt_tokens"] == with_tools.json()["usage"]["prompt_tokens"]
    assert chat(tools=[TOOL], tool_choice="required").status_code == 400
    (card,) = server.client.get("/v1/models").json()["data"]
    assert (card["capabilities"], card["output_format"]) == ([], {"id": "plain", "why": WHY})
    assert server.stop() == 0  # all of its log is read
    assert len(server.log.records(WHY)) == 1


def test_a_template_that_is_configured_teaches_it(serve: Serve, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    model = scripted(tmp_path, "base", TURN, chat_template=None) | {"template": str(template)}
    server = serve({"models": [model]})

    answer = server.client.post(
        "/v1/chat/completions",
        json={"model": "base", "messages": [{"role": "user", "content": "Hi"}]},
    )

    assert answer.json()["choices"][0]["message"]["content"] == TURN
    assert "x-roundhouse-relaxed" not in answer.headers
    assert not server.log.records(WHY)
