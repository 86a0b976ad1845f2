"""Every family's output through splitter and reply into the clients that people use: what the
openai package and huggingface_hub make of the stream is what the model meant.
"""

import json
from collections.abc import Sequence

from huggingface_hub.inference._common import _stream_chat_completion_response

from gateway.terms.events import Delta
from tests.every import for_every
from tests.gateway.dialects.openai.streams import USAGE, accumulated, chat_reply, stream
from tests.gateway.splitter.corpus import Call, Case, load

CASES = for_every("case", load("cases.jsonl"), label=lambda case: case.id)
STEP = 4  # characters, about a token


def streamed(case: Case) -> bytes:
    splitter = case.splitter()
    pieces = [case.raw[at : at + STEP] for at in range(0, len(case.raw), STEP)]
    deltas = [Delta(0, tuple(splitter.feed(piece))) for piece in pieces]
    return stream(chat_reply(), [*deltas, Delta(0, tuple(splitter.finish(case.finish_reason)))])


def same_calls(expected: Sequence[Call], names: Sequence[str], arguments: Sequence[str]) -> None:
    assert [call.name for call in expected] == list(names)
    assert [call.arguments for call in expected] == [json.loads(text) for text in arguments]


@CASES
def test_every_client_makes_the_same_of_it(case: Case) -> None:
    sent = streamed(case)
    openai_s_accumulator(case, sent)
    the_hub_s_client(case, sent)
    the_whole_answer(case)


def openai_s_accumulator(case: Case, sent: bytes) -> None:
    choice = accumulated(sent).choices[0]
    calls = choice.message.tool_calls or []
    extra = choice.message.model_extra or {}
    assert (choice.message.content or "").strip() == (case.expect.content or "").strip()
    assert (extra.get("reasoning_content") or "").strip() == (case.expect.reasoning or "").strip()
    functions = [call.function for call in calls if call.type == "function"]
    same_calls(
        case.expect.tool_calls,
        [function.name for function in functions],
        [function.arguments for function in functions],
    )


def the_whole_answer(case: Case) -> None:
    splitter, reply = case.splitter(), chat_reply()
    reply.add(Delta(0, tuple(splitter.feed(case.raw))))
    reply.add(Delta(0, tuple(splitter.finish(case.finish_reason))))
    message = json.loads(reply.whole(USAGE))["choices"][0]["message"]
    assert (message.get("content") or "").strip() == (case.expect.content or "").strip()
    functions = [call["function"] for call in message.get("tool_calls", ())]
    same_calls(
        case.expect.tool_calls,
        [function["name"] for function in functions],
        [function["arguments"] for function in functions],
    )


def the_hub_s_client(case: Case, sent: bytes) -> None:
    names: list[str] = []
    arguments: dict[int, str] = {}
    content = ""
    for output in _stream_chat_completion_response(sent.decode().splitlines()):
        delta = output.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or ():
            if call.function.name:
                names.append(call.function.name)
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert content.strip() == (case.expect.content or "").strip()
    same_calls(case.expect.tool_calls, names, list(arguments.values()))
