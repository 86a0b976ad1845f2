"""Arranges a client's messages so that a template takes them: merged or split, never dropped.

Pure: messages in, messages out. What the template demands is in its traits; Jinja is unknown here.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from gateway.errors import InvalidRequest
from gateway.prompt.reasoning import marked, unwrapped
from gateway.prompt.template_input import response_as_user, with_calls_described
from gateway.prompt.traced import joined, text_of
from gateway.prompt.traits import TemplateTraits
from gateway.request import ChatRequest, Message, Part, Role, TextPart, ToolCall

# The text of a filler turn, between two that the template doesn't take side by side.
_SILENCE = "..."


def arranged(messages: Sequence[Message], traits: TemplateTraits) -> tuple[Message, ...]:
    """`messages` as a template with `traits` takes them.

    No text is dropped and none changes its place, but for tool results: they follow their calls.
    """
    result = with_results_matched(messages)
    if traits.calls == "described":
        result = with_calls_described(result)
    result = _with_systems_placed(result, traits)
    result = _with_calls_parted(result, traits)
    return _alternating(result, traits) if traits.alternates else _opened(result, traits)


# --------------------------------------------------------------------------------- system messages


def _with_systems_placed(
    messages: Sequence[Message], traits: TemplateTraits
) -> tuple[Message, ...]:
    """System messages where the template takes them; the others become the user's, in place."""
    if traits.system == "anywhere" or not messages:
        return tuple(messages)
    lost = traits.system_fades and messages[-1].role not in {"user", "system"}
    leading = 0 if lost or traits.system == "none" else _leading_systems(messages)
    head, rest = messages[:leading], messages[leading:]
    merged = (_merged(head),) if head else ()
    return (*merged, *(_system_as_user(message) for message in rest))


def _leading_systems(messages: Sequence[Message]) -> int:
    roles = [message.role for message in messages]
    leading = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
    if leading == len(roles):
        return max(leading - 1, 0)  # without a user message, the last system message is one
    return leading


def _system_as_user(message: Message) -> Message:
    return replace(message, role="user") if message.role == "system" else message


# ------------------------------------------------------------------------------------------- calls


def _with_calls_parted(messages: Sequence[Message], traits: TemplateTraits) -> tuple[Message, ...]:
    """Calling messages as the template takes them: without text, or of one call each."""
    result: list[Message] = []
    for message in messages:
        if message.role == "tool" and not traits.parallel_calls:
            _put_behind_its_call(result, message)
        elif message.tool_calls:
            result += _parted(message, traits)
        else:
            result.append(message)
    return tuple(result)


def _parted(message: Message, traits: TemplateTraits) -> list[Message]:
    parted: list[Message] = []
    if message.parts and not traits.calls_with_text:
        parted.append(replace(message, tool_calls=()))
        message = replace(message, parts=(), reasoning=None)
    if traits.parallel_calls:
        return [*parted, message]
    first, *others = message.tool_calls
    parted.append(replace(message, tool_calls=(first,)))
    return parted + [Message(role="assistant", tool_calls=(call,)) for call in others]


def _put_behind_its_call(result: list[Message], answer: Message) -> None:
    """Behind the latest message that makes the call, and behind the results that it already has."""
    behind = 1 + max(  # there is one: results were matched to their calls
        at
        for at, message in enumerate(result)
        if any(call.id == answer.tool_call_id for call in message.tool_calls)
    )
    while behind < len(result) and result[behind].role == "tool":
        behind += 1
    result.insert(behind, answer)


# ------------------------------------------------------------------------------------------- turns


def _opened(messages: Sequence[Message], traits: TemplateTraits) -> tuple[Message, ...]:
    """A user message comes first, where the template demands only that."""
    first = next((at for at, message in enumerate(messages) if message.role != "system"), None)
    if first is None or messages[first].role != "assistant" or traits.assistant_opens:
        return tuple(messages)
    return (*messages[:first], _silent("user"), *messages[first:])


def _alternating(messages: Sequence[Message], traits: TemplateTraits) -> tuple[Message, ...]:
    """User and assistant in turn: neighbours of one role are merged, missing turns filled in."""
    result: list[Message] = []
    for message in messages:
        last = result[-1] if result else None
        if last is not None and _mergeable(last, message, traits):
            result[-1] = _merged((last, message))
            continue
        if (missing := _missing(last, message, traits)) is not None:
            result.append(_silent(missing))
        result.append(message)
    return tuple(result)


def _mergeable(last: Message, message: Message, traits: TemplateTraits) -> bool:
    if last.role != message.role or message.role == "tool" or last.tool_calls:
        return False
    return traits.calls_with_text or not message.tool_calls


def _missing(last: Message | None, message: Message, traits: TemplateTraits) -> Role | None:
    """Whose turn must come between `last` and `message`; None if they may stand side by side."""
    if message.role == "user":
        return "assistant" if _awaits_result(last) else None
    if message.role != "assistant":
        return None
    if last is None or last.role == "system":
        return None if traits.assistant_opens else "user"
    return "user" if last.role == "assistant" and not last.tool_calls else None


def _awaits_result(last: Message | None) -> bool:
    """Whether a tool's result may follow `last`."""
    return last is not None and (last.role == "tool" or bool(last.tool_calls))


def _silent(role: Role) -> Message:
    return Message(role=role, parts=(TextPart(_SILENCE),))


# ----------------------------------------------------------------------------------------- merging


def _merged(messages: Sequence[Message]) -> Message:
    """One message with the texts of all, a blank line between. Calls and name are the last's."""
    parts: tuple[Part, ...] = ()
    for message in messages:
        parts = _appended(parts, message.parts)
    thoughts = [message.reasoning for message in messages if message.reasoning]
    return replace(messages[-1], parts=parts, reasoning=joined(thoughts, "\n\n") or None)


def _appended(before: tuple[Part, ...], after: tuple[Part, ...]) -> tuple[Part, ...]:
    if not before or not after:
        return before + after
    match before[-1], after[0]:
        case TextPart(first), TextPart(second):
            return (*before[:-1], TextPart(joined((first, second), "\n\n")), *after[1:])
        case _:
            return before + after


# ------------------------------------------------------------------------------------- continuation
# An answer that was begun already: the conversation's last message, read as the model's own words.
#
# Clients send it in three ways: as text; as text with the reasoning in tags before it
# (SillyTavern); as text and reasoning apart (Open WebUI). Here they become one thing.


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """What has been written of the answer. With `reasoning` and no `text`, reasoning goes on."""

    message: Message
    reasoning: str
    text: str
    raw: str  # reasoning and text as the client wrote them in tags; "" if there were none


def continuation(request: ChatRequest) -> Continuation | None:
    """What the answer to `request` goes on from; None if it begins anew.

    Whether it does is the dialect's to say: clients of some APIs send no flag. Raises
    InvalidRequest where there is nothing to continue.
    """
    if not request.continue_final:
        return None
    last = request.messages[-1] if request.messages else None
    if last is None or last.role != "assistant" or last.tool_calls:
        raise InvalidRequest(
            "Only a last message of the assistant, without tool calls, can be continued.",
            param="messages",
        )
    words = text_of(last)
    reasoning, text = unwrapped(words)
    if reasoning:
        return Continuation(message=last, reasoning=reasoning, text=text, raw=marked(words))
    return Continuation(message=last, reasoning=last.reasoning or "", text=words, raw="")


# ------------------------------------------------------------------------------------------ results
# Tool results matched to their calls: in the calls' order, under their ids, with the names.
#
# Clients append results as they arrive; some templates match them to the calls by their order
# alone, some by the id, and some print the function's name, which OpenAI's messages leave out.


def with_results_matched(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with each run of tool messages sorted and named.

    A result under an unknown id answers the first call that no other result answers. What answers
    no call at all becomes the user's words: templates drop it, or refuse it.
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
