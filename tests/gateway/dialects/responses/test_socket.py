"""What clients say on a socket, and events as messages."""

import json

import pytest

from gateway.dialects.responses.socket import (
    Cancel,
    Create,
    Steer,
    error_message,
    messages,
    read_message,
    steer_failed,
)
from gateway.terms.errors import InvalidRequest, QueueFull

FRAMES = b": still here\n\n" + b"".join(
    b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, "text": text}).encode())
    for kind, text in (("a", "one\n\ndata: {}"), ("b", ": two"))
)


def test_a_request_is_the_body_that_would_be_posted() -> None:
    given = {"type": "response.create", "model": "m", "input": [1.5, 2**70], "stream": False}
    created = read_message(json.dumps({**given, "stream_id": "a", "generate": False}).encode())
    assert isinstance(created, Create)
    assert json.loads(created.body) == {"model": "m", "input": [1.5, 2**70], "stream": True}
    assert (created.lane, created.generates, created.unused) == ("a", False, ())


def test_other_messages_are_read() -> None:
    cancel = read_message(b'{"type": "response.cancel", "response_id": "resp_1"}')
    assert cancel == Cancel(response="resp_1")
    steer = read_message(b'{"type": "response.steer", "input": "Shorter."}')
    assert isinstance(steer, Steer)
    assert json.loads(steer_failed(steer))["steer"] == {"input": "Shorter."}


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"type": 1}', b"\xff", b"[" * 5000, b'{"type":"response.create","stream_id":1}'],
)
def test_what_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_message(text)


def test_frames_become_messages_that_name_their_lane() -> None:
    first, second = map(json.loads, messages(FRAMES, "a", {"x-request-id": "1"}))
    assert first == {
        "type": "a",
        "text": "one\n\ndata: {}",
        "stream_id": "a",
        "headers": {"x-request-id": "1"},
    }
    assert second == {"type": "b", "text": ": two", "stream_id": "a"}
    assert [json.loads(one)["type"] for one in messages(FRAMES)] == ["a", "b"]


def test_an_error_says_its_status_and_lane() -> None:
    error = json.loads(error_message(QueueFull("full"), "a", {"retry-after": "2"}))
    assert (error["type"], error["status"], error["stream_id"]) == ("error", 429, "a")
    assert error["error"]["code"] == "queue_full"
    assert error["headers"] == {"retry-after": "2"}
