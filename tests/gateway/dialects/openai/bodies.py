"""Bodies as clients send them, and how they are read."""

from typing import Any

import msgspec
import pytest

from gateway.dialects.openai import ChatExchange, TextExchange, read_chat, read_text
from gateway.terms.errors import InvalidRequest

USER: dict[str, Any] = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> ChatExchange:
    """A chat body with one message, unless `messages` says otherwise."""
    return read_chat(msgspec.json.encode({"messages": [USER], **fields}))


def text(**fields: Any) -> TextExchange:
    """A text completion of one prompt, unless `prompt` says otherwise."""
    return read_text(msgspec.json.encode({"prompt": "once", **fields}))


def chat_fault(**fields: Any) -> InvalidRequest:
    """The error that such a chat body is answered with."""
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    return caught.value


def text_fault(**fields: Any) -> InvalidRequest:
    """The error that such a text completion is answered with."""
    with pytest.raises(InvalidRequest) as caught:
        text(**fields)
    return caught.value
