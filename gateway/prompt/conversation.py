"""Arranges a client's messages so that a template takes them, merged or split but never dropped,
and writes them as the dicts that it reads.

What a template demands is in its `TemplateTraits`, which `analysis` finds; Jinja is unknown here.
The dicts have OpenAI's fields and live from here to the rendering, no further. For a model whose
template has no tools, tools are shown in a message and called in Hermes' style.

Of reasoning only the shapes of the markers are known here, enough to close what a prompt opened and
to unwrap what a client sends back. Which markers a model writes in its answers is the splitter's
business.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from gateway.prompt.traced import (
    clients,
    framed,
    from_client,
    joined,
    partition,
    plain,
    stripped,
    text_of,
)
from gateway.splitter.formats import FORMATS
from gateway.splitter.payloads.syntax import PAST_HERMES, PastCalls, ReasoningMarkers
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import (
    ChatRequest,
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    Tool,
    ToolCall,
)

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning", "thinking"]


class ThinkingSwitch(msgspec.Struct, frozen=True):
    """A variable that turns reasoning on and off. A value of None: leave it unset."""

    variable: str
    on: Any
    off: Any


class TemplateTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What the template takes without an error and without losing text.

    The defaults are a modern template's.
    """

    # Messages
    content: Literal["text", "parts"] = "text"  # the form it takes where there is only text
    images: bool = False  # has a place for pictures among a message's parts
    system: Literal["anywhere", "leading", "none"] = "anywhere"  # where system messages may stand
    system_fades: bool = False  # shows system messages only where the user speaks last
    alternates: bool = False  # refuses (or loses) two messages of one role in a row
    assistant_opens: bool = True  # a conversation may begin with the assistant
    empty_answers: bool = True  # an answer may say nothing

    # Tools
    tools: Literal["native", "described"] = "native"  # described: written into a system message
    no_tools: Literal["null", "empty"] = "null"  # what `tools` is when there are none
    calls: Literal["native", "described"] = "native"  # described: calls become text
    results: Literal["native", "described"] = "native"  # described: results are the user's words
    arguments: Literal["text", "object"] = "text"
    call_content: Literal["empty", "null"] = "empty"  # the content of a message that only calls
    calls_with_text: bool = True  # a calling message may also speak
    parallel_calls: bool = True  # several calls in one message
    short_call_ids: bool = False  # wants ids of nine letters and digits

    # Reasoning
    reasoning_field: ReasoningField | None = None  # where it reads an earlier answer's reasoning
    thinking_switches: tuple[ThinkingSwitch, ...] = ()
    efforts: tuple[str, ...] = ()  # the values of `reasoning_effort` that it takes
    keeping_switches: tuple[ThinkingSwitch, ...] = ()  # on: earlier turns' reasoning stays
    opens_reasoning: bool = False  # the generation prompt ends inside reasoning, by default

    @property
    def reasoning(self) -> bool:
        """Whether the template shows any sign that its model reasons."""
        return bool(
            self.reasoning_field or self.thinking_switches or self.efforts or self.opens_reasoning
        )

    def strictest(self) -> "TemplateTraits":
        """The same template with the most restrictive traits: tried when it refuses a request."""
        return msgspec.structs.replace(
            self,
            system="none" if self.system == "none" else "leading",
            alternates=True,
            assistant_opens=False,
            empty_answers=False,
            calls_with_text=False,
            parallel_calls=False,
            reasoning_field=None,
        )


# Opener -> closer, with the opener's variable part carried over. A phrase is a word of a client's.
_LISTED = [entry.reasoning for entry in FORMATS.values() if entry.reasoning]
_MARKERS = (
    (r"<((?:\w+:)?think(?:ing)?(?::\w+)?)>", r"</\1>"),
    (r"<(\w+_think)>", r"</\1>"),
    *((re.escape(text), one.close) for one in _LISTED for text in one.opens if text[0] in "<[◁"),
)
_AT_START = tuple((re.compile(rf"\s*{opener}"), closer) for opener, closer in _MARKERS)
_AT_END = tuple((re.compile(rf"{opener}\s*\Z"), closer) for opener, closer in _MARKERS)
_LONGEST_OPENER = 80  # characters that the longest opener and the white space behind it fit in


def ends_open(text: str) -> bool:
    """Whether `text` ends with an opening marker, white space after it aside; not a client's."""
    return closed(text) != text


def closed(text: str, own: ReasoningMarkers | None = None) -> str:
    """`text` with the reasoning that it opens at its end closed again, empty; else unchanged.
    `own`: its model's markers.
    """
    tail = framed(text[-_LONGEST_OPENER:])
    found = [match.expand(closer) for opener, closer in _AT_END if (match := opener.search(tail))]
    if own is not None and tail.rstrip().endswith(own.opens):
        found.insert(0, own.close)
    if not found:
        return text
    return joined((stripped(text, left=False, right=True), f"\n\n{found[0].rstrip()}\n\n"))


def _begun(text: str) -> tuple[str, str, str, str] | None:
    """An opening marker that `text` begins with, the reasoning, its closer ("": there is none), and
    what is behind it; None of others.
    """
    for pattern, closer in _AT_START:
        if match := pattern.match(text):
            return match[0], *partition(text[match.end() :], match.expand(closer))
    return None


def unwrapped(text: str) -> tuple[str, str]:
    """Reasoning and answer of a `text` that begins with an opening marker; ("", text) of others.

    Reasoning that isn't closed is all of it. Line ends around the markers belong to neither.
    """
    if (begun := _begun(text)) is None:
        return "", text
    _, reasoning, marker, answer = begun
    reasoning = _without_line_ends(reasoning)
    return (
        stripped(reasoning, left=False, right=True) if marker else reasoning
    ), _without_line_ends(answer)


def without_opener(text: str) -> str:
    """`text` without the opening marker that it begins with."""
    begun = _begun(text)
    return text if begun is None else _without_line_ends(joined(begun[1:]))


def marked(text: str) -> str:
    """A client's `text` that begins with an opening marker: the markers around the reasoning are
    taken as such, and what is between and behind them stays the client's.
    """
    if (begun := _begun(text)) is None:
        return text
    opener, reasoning, closer, answer = begun
    return joined((plain(opener), reasoning, plain(closer), answer))


def _without_line_ends(text: str) -> str:
    return stripped(text, "\r\n", left=True, right=False)


_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_SHORT_ID_LENGTH = 9


def message_dict(
    message: Message, traits: TemplateTraits, image_marker: str | None = None
) -> dict[str, Any]:
    """`image_marker` is written where a picture stands. Without one the template renders pictures
    itself: raises InvalidRequest where it has no place for pictures.
    """
    if image_marker is not None:
        message = replace(message, parts=_marked(message.parts, image_marker))
    written: dict[str, Any] = {"role": message.role, "content": _content(message, traits)}
    if message.name is not None:
        written["name"] = message.name
    if message.tool_call_id is not None:
        written["tool_call_id"] = _call_id(message.tool_call_id, traits)
    if message.tool_calls:
        written["tool_calls"] = [_call_dict(call, traits) for call in message.tool_calls]
    if message.reasoning and traits.reasoning_field is not None:
        written[traits.reasoning_field] = message.reasoning
    return written


def tool_dict(tool: Tool) -> dict[str, Any]:
    """In OpenAI's form. Every field is there: templates add and print them without a check."""
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters if tool.parameters is not None else _NO_PARAMETERS,
    }
    return {"type": "function", "function": function}


def tool_dicts(tools: Sequence[Tool], traits: TemplateTraits) -> list[dict[str, Any]] | None:
    """The variable `tools`. None if there are none, unless the template runs over it unasked."""
    if not tools and traits.no_tools == "null":
        return None
    return [tool_dict(tool) for tool in tools]


def given_variables(reads: frozenset[str], tools: Sequence[Any] | None) -> dict[str, Any]:
    """What llama.cpp gives every template, of the variables that it `reads`: clients and templates
    rely on it. `tools`: as the template gets them.
    """
    now = datetime.now(UTC)
    given: Mapping[str, Callable[[], Any]] = {
        "enable_thinking": lambda: True,
        "date_string": lambda: now.astimezone().strftime("%d %b %Y"),
        "datetime": lambda: now.strftime("%b %d %Y %H:%M:%S GMT"),
        "functions": lambda: _json(tools, indent=2) if tools else "",
    }
    return {name: value() for name, value in given.items() if name in reads}


def spelled_object(arguments: str) -> dict[str, Any] | None:
    """The object that `arguments` spells; None where it spells none."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return from_client(value) if isinstance(value, dict) else None


def arguments_object(arguments: str) -> dict[str, Any]:
    """The object that `arguments` spells. Templates take nothing else, and a history is no error:
    what spells none, as a call that was cut, stands in one as a text.
    """
    if (spelled := spelled_object(arguments)) is not None:
        return spelled
    return {} if arguments.strip() in {"", "null", "[]"} else {"_raw": arguments}


def is_broken(call: ToolCall) -> bool:
    """Whether the arguments of a past call are shown otherwise than they were sent."""
    return bool(call.arguments.strip()) and spelled_object(call.arguments) is None


def _marked(parts: Sequence[Part], marker: str) -> tuple[Part, ...]:
    """Texts alone: a picture's marker joins the text before it, and the text behind it joins in."""
    texts: list[str] = []
    for part in parts:
        piece = part.text if isinstance(part, TextPart) else marker
        if texts and marker in (piece, texts[-1][-len(marker) :]):
            texts[-1] = joined((texts[-1], piece))
        else:
            texts.append(piece)
    return tuple(map(TextPart, texts))


def _content(message: Message, traits: TemplateTraits) -> Any:
    if any(isinstance(part, ImagePart) for part in message.parts):
        if not traits.images:
            raise InvalidRequest(
                "This model's chat template doesn't support images.", param="messages"
            )
        return [_part_shape(part) for part in message.parts]
    if not message.parts and message.tool_calls and traits.call_content == "null":
        return None
    if traits.content == "parts":
        return [_part_shape(part) for part in message.parts]
    return text_of(message)


def _part_shape(part: Part) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ImagePart():
            return {"type": "image"}


def _call_dict(call: ToolCall, traits: TemplateTraits) -> dict[str, Any]:
    arguments: Any = arguments_object(call.arguments)
    if traits.arguments == "text":
        spelled = spelled_object(call.arguments) is not None
        arguments = call.arguments if spelled else _json(arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": _call_id(call.id, traits), "type": "function", "function": function}


def _call_id(call_id: str, traits: TemplateTraits) -> str:
    """The client's id, or a short stand-in that is the same for the call and for its result."""
    if not traits.short_call_ids or (len(call_id) == _SHORT_ID_LENGTH and call_id.isalnum()):
        return call_id
    return blake2b(call_id.encode(), digest_size=8).hexdigest()[:_SHORT_ID_LENGTH]


_HEAD = """\
# Tools

You can call functions to help with the user's request. Their signatures, as JSON, are:
<tools>
"""
_TAIL = """
</tools>

To call a function, write a JSON object with its name and its arguments inside <tool_call> tags,
one pair of tags for each call:
<tool_call>
{"name": "<function name>", "arguments": {<arguments>}}
</tool_call>"""


def with_tools_described(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """`messages` whose leading system message also lists `tools`; a new one if there is none."""
    if not tools:
        return tuple(messages)
    signatures = joined((_json(tool_dict(tool)) for tool in tools), "\n")
    description = TextPart(joined((_HEAD, signatures, _TAIL)))
    if messages and messages[0].role == "system":
        head = messages[0]
        pictures = (part for part in head.parts if isinstance(part, ImagePart))
        words = TextPart(joined((text_of(head), description.text), "\n\n"))
        return (msgspec.structs.replace(head, parts=(*pictures, words)), *messages[1:])
    return (Message(role="system", parts=(description,)), *messages)


def with_calls_described(
    messages: Sequence[Message], traits: TemplateTraits, past: PastCalls
) -> tuple[Message, ...]:
    """`messages` with every call turned into text, as `past` has it; and every result, too, where
    the template shows none.
    """
    result: list[Message] = []
    number = 0  # of calls so far
    for message in messages:
        if message.role == "tool" and traits.results == "described":
            result.append(response_as_user(message))
            continue
        calls = message.tool_calls
        parts = (
            (*message.parts, TextPart(_written(calls, past, number))) if calls else message.parts
        )
        result.append(replace(message, parts=parts, tool_calls=()))
        number += len(calls)
    return tuple(result)


def response_as_user(message: Message) -> Message:
    """A tool's result as the user's words, for templates that don't take it as what it is."""
    before, after = TextPart("<tool_response>"), TextPart("</tool_response>")
    return Message(role="user", parts=(before, *message.parts, after))


def _written(calls: Sequence[ToolCall], past: PastCalls, number: int) -> str:
    texts: list[str] = []
    for place, call in enumerate(calls, number):
        name = f"{call.name}:{place}" if past.numbered else call.name
        given = arguments_object(call.arguments)
        keywords = (joined((key, "=", _json(value))) for key, value in given.items())
        arguments = joined(keywords, ", ") if past.pythonic else _json(given)
        texts.append(joined((past.before, clients(name), past.between, arguments, past.after)))
    return joined((past.begin, joined(texts, past.separator), past.end))


def _json(value: Any, indent: int | None = None) -> str:
    """All of it marked as the client's text."""
    return clients(json.dumps(value, ensure_ascii=False, indent=indent))


# The text of a filler turn, between two that the template doesn't take side by side.
_SILENCE = "..."


def arranged(
    messages: Sequence[Message], traits: TemplateTraits, past: PastCalls = PAST_HERMES
) -> tuple[Message, ...]:
    """`messages` as a template with `traits` takes them.

    No text is dropped and none changes its place, but for tool results: they follow their calls.
    """
    calls = any(message.role == "tool" or message.tool_calls for message in messages)
    result = tuple(messages)
    if traits.reasoning_field is not None:
        result = tuple(map(_with_reasoning_apart, result))
    if not traits.empty_answers:
        result = tuple(
            one for one in result if one.role != "assistant" or one.tool_calls or one.text
        )
    if calls:
        result = with_results_matched(result)
        if traits.calls == "described":
            result = with_calls_described(result, traits, past)
    if traits.system != "anywhere":
        result = _with_systems_placed(result, traits)
    if calls:
        result = _with_calls_parted(result, traits)
    return _alternating(result, traits) if traits.alternates else _opened(result, traits)


def _with_reasoning_apart(message: Message) -> Message:
    """An answer as the client got it whole, with the reasoning before it: templates have a field
    for that, and some refuse their own markers.
    """
    if message.role != "assistant" or message.reasoning:
        return message
    reasoning, text = unwrapped(text_of(message))
    if not reasoning:
        return message
    others = (part for part in message.parts if not isinstance(part, TextPart))
    return replace(message, parts=(*others, TextPart(text)), reasoning=reasoning)


def _with_systems_placed(
    messages: Sequence[Message], traits: TemplateTraits
) -> tuple[Message, ...]:
    """System messages where the template takes them; the others become the user's, in place."""
    if not messages:
        return ()
    lost = traits.system_fades and messages[-1].role not in {"user", "system"}
    leading = 0 if lost or traits.system == "none" else _leading_systems(messages)
    head, rest = messages[:leading], messages[leading:]
    merged = (_merged(head),) if head else ()
    as_users = (replace(one, role="user") if one.role == "system" else one for one in rest)
    return (*merged, *as_users)


def _leading_systems(messages: Sequence[Message]) -> int:
    roles = [message.role for message in messages]
    leading = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
    if leading == len(roles):
        return max(leading - 1, 0)  # without a user message, the last system message is one
    return leading


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
        awaits_result = last is not None and (last.role == "tool" or last.tool_calls)
        return "assistant" if awaits_result else None
    if message.role != "assistant":
        return None
    if last is None or last.role == "system":
        return None if traits.assistant_opens else "user"
    return "user" if last.role == "assistant" and not last.tool_calls else None


def _silent(role: Role) -> Message:
    return Message(role=role, parts=(TextPart(_SILENCE),))


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


def continuation(request: ChatRequest) -> Continuation:
    """What the answer to `request` goes on from.

    That it does is the dialect's to say: clients of some APIs send no flag. Raises InvalidRequest
    where there is nothing to continue.
    """
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
