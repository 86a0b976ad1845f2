"""Reading streams as clients do, and the exchanges and deltas that tests make replies of."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from backends.contract.protocol import Candidate, TokenLogprob
from gateway.dialects.openai import ChatReply, TextReply, read_chat, read_text
from gateway.dialects.openai.reply import AnswerFacts
from gateway.terms.events import Delta, Event, Finished, Usage

DONE = "[DONE]"
USAGE = Usage(
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=6,
    reasoning_tokens=2,
    prefill_seconds=0.5,
    decode_seconds=2.0,
    queue_seconds=0.25,
)


def chat_reply(**fields: Any) -> ChatReply:
    """The reply to a chat request with `fields`."""
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    exchange = read_chat(msgspec.json.encode(body))
    return ChatReply(
        exchange, AnswerFacts(id="chatcmpl-1", created=1_700_000_000, model="org/model")
    )


def text_reply(**fields: Any) -> TextReply:
    """The reply to a text completion with `fields`."""
    exchange = read_text(msgspec.json.encode({"prompt": "once", **fields}))
    return TextReply(exchange, AnswerFacts(id="cmpl-1", created=1_700_000_000, model="org/model"))


def said(*events: Event, choice: int = 0) -> list[Delta]:
    """One delta for each event."""
    return [Delta(choice, (event,)) for event in events]


def stream(reply: ChatReply | TextReply, deltas: Iterable[Delta]) -> bytes:
    """All bytes of a stream that went well."""
    middle = b"".join(reply.delta(delta) for delta in deltas)
    return reply.opening() + middle + reply.closing(USAGE)


def payloads(data: bytes) -> list[str]:
    """What stands behind `data:`; fails on anything that isn't a plain event of one line."""
    *events, rest = data.decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


def objects(data: bytes) -> list[dict[str, Any]]:
    """The JSON payloads, without `[DONE]`."""
    return [msgspec.json.decode(payload) for payload in payloads(data) if payload != DONE]


def choices(data: bytes) -> list[dict[str, Any]]:
    """The only choice of every payload that has one."""
    return [payload["choices"][0] for payload in objects(data) if payload["choices"]]


def chunks(data: bytes) -> list[ChatCompletionChunk]:
    """The payloads as the official client's type, validated strictly."""
    return [ChatCompletionChunk.model_validate(payload) for payload in objects(data)]


def accumulated(data: bytes) -> ChatCompletion:
    """The stream, put together by the official client."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks(data):
        list(state.handle_chunk(chunk))
    return ChatCompletion.model_validate(state.current_completion_snapshot.model_dump())


def token(
    text: str | bytes, logprob: float = -0.5, top: Sequence[tuple[str | bytes, float]] = ()
) -> TokenLogprob:
    """A chosen token and its alternatives."""
    others = tuple(_candidate(*other) for other in top)
    return TokenLogprob(_candidate(text, logprob), others)


def _candidate(text: str | bytes, logprob: float) -> Candidate:
    return Candidate(7, text.encode() if isinstance(text, str) else text, logprob)


STOP = Finished("stop")
