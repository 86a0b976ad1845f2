"""An answer that was begun already: the conversation's last message, read as the model's own words.

Clients send it in three ways: as text; as text with the reasoning in tags before it (SillyTavern);
as text and reasoning apart (Open WebUI). Here they become one thing.
"""

import msgspec

from gateway.errors import InvalidRequest
from gateway.prompt.reasoning import marked, unwrapped
from gateway.prompt.traced import text_of
from gateway.request import ChatRequest, Message


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """What has been written of the answer. With `reasoning` and no `text`, reasoning goes on."""

    message: Message
    reasoning: str
    text: str
    raw: str  # reasoning and text as the client wrote them in tags; "" if there were none


def continuation(request: ChatRequest) -> Continuation | None:
    """What the answer to `request` goes on from; None if it begins anew.

    A last message of the assistant is continued, flag or no flag: many clients send none. Raises
    InvalidRequest if the flag is set and there is nothing to continue.
    """
    last = request.messages[-1] if request.messages else None
    if last is None or last.role != "assistant" or last.tool_calls:
        if request.continue_final:
            raise InvalidRequest(
                "Only a last message of the assistant, without tool calls, can be continued.",
                param="messages",
            )
        return None
    words = text_of(last)
    reasoning, text = unwrapped(words)
    if reasoning:
        return Continuation(message=last, reasoning=reasoning, text=text, raw=marked(words))
    return Continuation(message=last, reasoning=last.reasoning or "", text=words, raw="")
