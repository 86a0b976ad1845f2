"""The corpus of replies: what models say, and how every API tells it, as a stream and whole.

`API/reply.jsonl` has a case on each line: the answer (of `ANSWERS`, the same for all APIs), the
body that it answers, the bytes of its stream, by lines, and its whole body. `python -m
tests.gateway.dialects.replies` writes down anew what is sent; what it changes is to be read as any
other change of the code. That clients read it: the tests beside the tables, with their own.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import msgspec

from backends.contract.protocol import Candidate, TokenLogprob
from gateway.dialects import cohere, kobold, ollama, openai, responses, tgi
from gateway.dialects.anthropic import MessagesReply
from gateway.dialects.llamaserver.completion import CompletionReply
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    Usage,
)
from tests.gateway.dialects.corpus import HERE, READERS

USAGE = Usage(
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=6,
    reasoning_tokens=2,
    prefill_seconds=0.5,
    decode_seconds=2.0,
    queue_seconds=0.25,
)
CREATED = 1_700_000_000


def _likely(text: str, token: int) -> TokenLogprob:
    chosen = Candidate(token, text.encode(), -0.5)
    return TokenLogprob(chosen, (chosen, Candidate(9, b"x", -1.0)))


def _each(*events: Event) -> tuple[Delta, ...]:
    return tuple(Delta(0, (event,)) for event in events)


ANSWERS: Mapping[str, tuple[Delta, ...]] = {
    "text": _each(Content("Hel"), Content('l"o\n'), Finished("stop")),
    "nothing": _each(Finished("stop")),
    "cut": _each(Content("Hel"), Finished("length")),
    "stop string": _each(Content("a"), Content("b"), Finished("stop", stop="END")),
    "reasoning": _each(
        Reasoning("Let "), Reasoning("me"), Content("Yes"), Content("."), Finished("stop")
    ),
    "calls": _each(
        Content("I'll look."),
        ToolOpened(0, "call_1", "weather"),
        ArgumentsGrown(0, '{"city":'),
        ArgumentsGrown(0, '"Rome"}'),
        ToolClosed(0),
        ToolOpened(1, "call_2", "now"),
        ArgumentsGrown(1, "{}"),
        ToolClosed(1),
        Finished("tool_calls"),
    ),
    "logprobs": (
        Delta(0, (Content(" upon a"),), (_likely(" upon", 1), _likely(" a", 2))),
        Delta(0, (), (_likely("t", 3),)),
        Delta(0, (Content("time"), Finished("stop")), (_likely("ime", 4),)),
    ),
}
TEXTS = ("text", "nothing", "cut", "stop string", "logprobs")  # what raw text knows


class Reply(Protocol):
    """What every dialect's reply does."""

    def opening(self) -> bytes: ...
    def delta(self, delta: Delta) -> bytes: ...
    def closing(self, usage: Usage) -> bytes: ...
    def add(self, delta: Delta) -> object: ...
    def whole(self, usage: Usage) -> bytes: ...


def _anthropic(exchange: Any) -> Reply:
    return MessagesReply(exchange, id="msg_1", model="m", prompt_tokens=10)


def _cohere(exchange: Any) -> Reply:
    logprobs = exchange.answering.logprobs is not None
    return cohere.CohereReply(id="1", logprobs=logprobs)


def _kobold(exchange: Any) -> Reply:
    results = exchange.request.answering.n
    return kobold.KoboldReply(results=results, shows_stop=exchange.shows_stop)


def _llamaserver(exchange: Any) -> Reply:
    return CompletionReply(exchange, model="m", report=lambda _: None)


def _ollama(exchange: Any) -> Reply:
    return ollama.OllamaReply(
        model="m",
        created_at="2026-01-01T00:00:00.000000Z",
        chat=hasattr(exchange, "messages"),
        hides_thinking=False,
        load_seconds=1.0,
    )


def _openai(exchange: Any) -> Reply:
    if isinstance(exchange, openai.TextExchange):
        return openai.TextReply(
            exchange, openai.AnswerFacts(id="cmpl-1", created=CREATED, model="m")
        )
    return openai.ChatReply(
        exchange, openai.AnswerFacts(id="chatcmpl-1", created=CREATED, model="m")
    )


def _responses(exchange: Any) -> Reply:
    numbers = count()
    reply = responses.ResponsesReply(
        exchange,
        id="resp_1",
        created=CREATED,
        new_id=lambda: str(next(numbers)),
        clock=lambda: CREATED,
    )
    return reply.answered_by("m")


def _tgi(exchange: Any) -> Reply:
    return tgi.TgiReply(exchange)


MAKERS: Mapping[str, Callable[[Any], Reply]] = {
    "anthropic": _anthropic,
    "cohere": _cohere,
    "kobold": _kobold,
    "llamaserver": _llamaserver,
    "ollama": _ollama,
    "openai": _openai,
    "responses": _responses,
    "tgi": _tgi,
}


class Case(msgspec.Struct, frozen=True):
    """An answer to a body, and what is sent of it."""

    answer: str
    reader: str
    body: Any
    stream: tuple[str, ...] = ()  # its lines
    whole: Any = None


def load(api: str) -> list[Case]:
    """The cases of an API."""
    lines = (HERE / api / "reply.jsonl").read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Case) for line in lines]


def outcome(api: str, case: Case) -> Case:
    """The case, with what is sent now."""
    exchange = READERS[api][case.reader](msgspec.json.encode(case.body))
    streamed, whole = MAKERS[api](exchange), MAKERS[api](exchange)
    deltas: Sequence[Delta] = ANSWERS[case.answer]
    steps = (streamed.opening(), *map(streamed.delta, deltas), streamed.closing(USAGE))
    for delta in deltas:
        whole.add(delta)
    return msgspec.structs.replace(
        case,
        stream=tuple(b"".join(steps).decode().split("\n")),
        whole=msgspec.json.decode(whole.whole(USAGE)),
    )


def write(api: str, cases: Sequence[Case]) -> None:
    """The file of an API."""
    lines = [msgspec.json.encode(outcome(api, case)) for case in cases]
    (HERE / api / "reply.jsonl").write_bytes(b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    for name in MAKERS:
        write(name, load(name))
