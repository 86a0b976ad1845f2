"""Fields of answers that mean nothing here: they reach the client, and go back to the server that
added them. And what a server without a parser leaves in its content.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backends.places.upstream.far import chunk, far, streams, text, with_status
from tests.gateway.http.serving import HELLO, events
from tests.promises.upstreams.test_upstreams import answer, ask, relaying

pytestmark = pytest.mark.anyio

CITED = [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}]
PICTURES = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
SIGNED = {"google": {"thought_signature": "c2ln"}}
THOUGHT = {"type": "reasoning.text", "index": 0, "format": "x", "text": "Let me"}
THOUGHT_ON = {"type": "reasoning.text", "index": 0, "text": " see.", "signature": "s"}
CALL = {
    "index": 0,
    "id": "c",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
    "extra_content": SIGNED,
}
SAID = (
    chunk({"reasoning": "Let me", "reasoning_details": [THOUGHT]}),
    chunk({"reasoning": " see.", "reasoning_details": [THOUGHT_ON]}),
    {**chunk({"content": "Seen."}), "citations": ["https://example.org"]},
    {**chunk({"content": " It is."}), "citations": ["https://example.org"]},
    chunk({"annotations": CITED, "images": PICTURES}),
    chunk({"tool_calls": [CALL]}),
    chunk({}, finish="tool_calls"),
    {
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "cost": 0.25},
    },
)
WHOLE = [{**THOUGHT, **THOUGHT_ON, "text": "Let me see."}]


async def test_a_whole_answer_has_what_its_server_added(tmp_path: Path) -> None:
    body = (await answer(tmp_path, streams(*SAID))).json()
    message = body["choices"][0]["message"]
    assert message["content"] == "Seen. It is."
    assert message["reasoning_content"] == "Let me see."
    assert message["reasoning_details"] == WHOLE
    assert message["annotations"] == CITED
    assert message["images"] == PICTURES
    assert message["tool_calls"][0]["extra_content"] == SIGNED
    assert body["citations"] == ["https://example.org"]
    assert body["usage"]["cost"] == 0.25


async def test_so_has_one_that_the_server_sent_whole(tmp_path: Path) -> None:
    message = {"content": "Seen.", "annotations": CITED, "tool_calls": [CALL], "images": None}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    got = await answer(tmp_path, with_status(200, msgspec.json.encode({**body, "provider": "p"})))
    found = got.json()["choices"][0]["message"]
    assert found["annotations"] == CITED
    assert found["tool_calls"][0]["extra_content"] == SIGNED
    assert "images" not in found
    assert got.json()["provider"] == "p"


async def test_a_stream_has_it_too_and_what_is_repeated_once(tmp_path: Path) -> None:
    got = await answer(
        tmp_path, streams(*SAID), stream=True, stream_options={"include_usage": True}
    )
    chunks = events(got.text.replace("data: [DONE]", ""))
    deltas = [one["choices"][0]["delta"] for one in chunks if one["choices"]]
    details = [one["reasoning_details"] for one in deltas if "reasoning_details" in one]
    assert details == [[THOUGHT], [THOUGHT_ON]]
    assert [one["citations"] for one in chunks if "citations" in one] == [["https://example.org"]]
    assert [one["annotations"] for one in deltas if "annotations" in one] == [CITED]
    (call,) = [one["tool_calls"][0] for one in deltas if "id" in str(one.get("tool_calls", ""))][:1]
    assert call["extra_content"] == SIGNED
    assert chunks[-1]["usage"]["cost"] == 0.25
    assert "".join(one.get("content", "") for one in deltas) == "Seen. It is."


async def test_what_came_goes_back_to_the_server(tmp_path: Path) -> None:
    turn: dict[str, Any] = {
        "role": "assistant",
        "content": "Seen.",
        "reasoning_details": WHOLE,
        "images": PICTURES,
        "tool_calls": [{name: value for name, value in CALL.items() if name != "index"}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "It is there."}
    async with far(streams(*text("Fine."))) as one, relaying(tmp_path, one) as running:
        got = await ask(running, messages=[*HELLO, turn, result], stream=True)
    assert got.text.endswith("data: [DONE]\n\n")
    assert "x-roundhouse-ignored" not in got.headers
    sent = one.asked[0].json["messages"][len(HELLO)]
    assert sent["reasoning_details"] == WHOLE
    assert sent["images"] == PICTURES
    assert sent["tool_calls"][0]["extra_content"] == SIGNED
    assert sent["tool_calls"][0]["function"] == CALL["function"]


async def test_a_format_is_not_named_to_a_server_that_splits_by_itself(tmp_path: Path) -> None:
    async with far(streams(*text("Fine."))) as one, relaying(tmp_path, one) as running:
        got = await ask(running, answer_format="hermes_json")
    assert (got.status_code, got.json()["error"]["param"]) == (400, "answer_format")
    assert not [asked for asked in one.asked if asked.method == "POST"]


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_that_a_server_left_in_the_content_are_calls(
    stream: bool, tmp_path: Path
) -> None:
    words = ["Well.\n", "<tool", '_call>\n{"name": "look", ', '"arguments": {}}\n</tool_', "call>"]
    got = await answer(tmp_path, streams(*text(*words)), tools=[LOOK], stream=stream)
    if not stream:
        (choice,) = got.json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert choice["message"]["content"] == "Well."
        assert (call["function"]["name"], choice["finish_reason"]) == ("look", "tool_calls")
        return
    chunks = [one["choices"][0] for one in events(got.text.replace("data: [DONE]", ""))]
    assert "".join(one["delta"].get("content", "") for one in chunks) == "Well."
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert "look" in [
        one["delta"]["tool_calls"][0]["function"].get("name")
        for one in chunks
        if "tool_calls" in one["delta"]
    ]


async def test_the_end_of_reasoning_that_the_prompt_began_is_split_off(tmp_path: Path) -> None:
    said = streams(*text("Let me see.", "\n</think>", "\n\nSeen."))
    message = (await answer(tmp_path, said)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Seen.")
