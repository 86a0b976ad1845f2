"""Tool results in the order of their calls, with the names of the functions that gave them.

Clients append results as they arrive; some templates match them to the calls by their order alone,
and some print the function's name, which OpenAI's messages leave out.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.request import Message


def with_results_in_order(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with each run of tool messages sorted. Results of unknown calls come last."""
    result: list[Message] = []
    run: list[Message] = []
    caller: Message | None = None
    for message in messages:
        if message.role == "tool":
            run.append(message)
            continue
        result += _sorted(run, caller)
        result.append(message)
        run, caller = [], message
    return (*result, *_sorted(run, caller))


def _sorted(run: Sequence[Message], caller: Message | None) -> list[Message]:
    calls = caller.tool_calls if caller is not None else ()
    place = {call.id: index for index, call in enumerate(calls)}

    def named(message: Message) -> Message:
        index = place.get(message.tool_call_id or "")
        if message.name is not None or index is None:
            return message
        return replace(message, name=calls[index].name)

    return sorted(
        map(named, run), key=lambda message: place.get(message.tool_call_id or "", len(calls))
    )
