"""Bodies of `/v1/messages` that are none. What the others mean: request.jsonl."""

import pytest

from gateway.dialects.anthropic import read_messages
from gateway.terms.errors import InvalidRequest


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}"]
)
def test_bodies_that_are_none(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_messages(body)
