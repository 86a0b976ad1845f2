"""Tool results matched to their calls: in the calls' order, under their ids, with the names.

Clients append results as they arrive; some templates match them to the calls by their order alone,
some by the id, and some print the function's name, which OpenAI's messages leave out.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.prompt.describing import response_as_user
from gateway.request import Message, ToolCall


def with_results_matched(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with each run of tool messages sorted and named.

    A result under an unknown id answers the first call that nobody else answers. What answers no
    call at all becomes the user's words: templates drop it, or refuse it.
    """
    result: list[Message] = []
    run: list[Message] = []
    calls: tuple[ToolCall, ...] = ()
    for message in messages:
        if message.role == "tool":
            run.append(message)
            continue
        result += _matched(run, calls)
        result.append(message)
        run, calls = [], message.tool_calls
    return (*result, *_matched(run, calls))


def _matched(run: Sequence[Message], calls: Sequence[ToolCall]) -> list[Message]:
    answered = {message.tool_call_id for message in run}
    unanswered = [index for index, call in enumerate(calls) if call.id not in answered]
    place = {call.id: index for index, call in enumerate(calls)}
    placed: list[tuple[int, Message]] = []
    for message in run:
        index = place.get(message.tool_call_id or "")
        if index is None and unanswered:
            index = unanswered.pop(0)
        if index is None:
            placed.append((len(calls), response_as_user(message)))
        else:
            placed.append((index, _answer(message, calls[index])))
    return [message for _, message in sorted(placed, key=lambda pair: pair[0])]


def _answer(message: Message, call: ToolCall) -> Message:
    return replace(message, tool_call_id=call.id, name=message.name or call.name)
