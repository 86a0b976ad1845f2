"""What stands behind a body: the items of earlier responses. What bodies mean: request.jsonl."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from gateway.dialects.responses import ResponsesExchange, read_response
from gateway.dialects.responses.items import kept, packed
from gateway.terms.errors import InvalidRequest, NotFound

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


def read(input: Any = "Hi", history: Sequence[Any] = (), **fields: Any) -> ResponsesExchange:
    body = msgspec.json.encode({"model": "m", "input": input, **fields})
    return read_response(body).after(history)


@pytest.mark.parametrize(
    ("status", "continues"), [("incomplete", True), ("completed", False), (None, False)]
)
def test_an_answer_that_was_cut_is_gone_on_with(status: str | None, continues: bool) -> None:
    part = {"type": "output_text", "text": "1, 2,"}
    item = {"type": "message", "role": "assistant", "content": [part], "status": status}
    assert read([{"role": "user", "content": "Count."}, item]).request.continue_final is continues
    assert read("", [item], previous_response_id="r").request.continue_final is continues
    assert read([item]).request.continue_final is continues
    assert read("More.", [item]).request.continue_final is False


def test_history_comes_first_and_instructions_before_it() -> None:
    history = kept(list(read([{"role": "user", "content": "Hi"}, CALL, RESULT]).items), new_id)
    exchange = read("And?", history, instructions="New rules")
    assert [message.role for message in exchange.request.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]


_numbers = count()


def new_id() -> str:
    return str(next(_numbers))


def test_a_prompt_that_is_stored_elsewhere_is_named() -> None:
    with pytest.raises(NotFound, match="'pmpt_1' not found") as missing:
        read(prompt={"id": "pmpt_1", "variables": {"city": "Oslo"}})
    assert missing.value.param == "prompt.id"


def test_what_is_included_in_any_case_is_not_said_to_be_left_out() -> None:
    asked = ["message.input_image.image_url", "code_interpreter_call.outputs"]
    unapplied = read(include=asked).request.answering.unapplied
    assert [field.name for field in unapplied] == ["include[1]"]


def test_kept_items_have_ids_and_parts() -> None:
    items = kept(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho"},
            CALL,
            {"type": "reasoning", "id": "rs_7", "summary": []},
        ],
        new_id,
    )
    assert [item["id"].partition("_")[0] for item in items] == ["msg", "msg", "fc", "rs"]
    assert items[0]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert items[1]["content"] == [{"type": "output_text", "text": "Ho", "annotations": []}]
    assert items[3] == {"type": "reasoning", "id": "rs_7", "summary": []}


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"role": "user", "content": 3}, "content"),
        ({"type": "function_call"}, "call_id"),
        ({"type": "additional_tools", "tools": [{"type": "function"}]}, "tools[0].name"),
        (
            {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
            "approval_request_id",
        ),
    ],
)
def test_a_faulty_item_has_its_own_number_whatever_came_before(item: Any, field: str) -> None:
    hello = {"role": "user", "content": "Hi"}
    summary = {"type": "compaction", "encrypted_content": packed("They met.")}
    for history in ([], [hello], [hello, summary, hello]):
        with pytest.raises(InvalidRequest) as refused:
            read([hello, item], history, previous_response_id="resp_1")
        assert refused.value.param == f"input[1].{field}"
