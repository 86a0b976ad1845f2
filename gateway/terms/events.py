"""The vocabulary between the splitter and the replies: what a model said, phase by phase.

A generation is a sequence of these, ending in exactly one `Finished`. Per tool call: one
`ToolOpened`, any number of `ArgumentsGrown` whose fragments concatenate to one valid JSON object,
one `ToolClosed`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from backends.contract.protocol import Generation, PromptProgress, TokenCounts, TokenLogprob
from backends.contract.remote import RemoteFurther

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Some text of the model's reasoning, markers removed."""

    text: str


class Content(msgspec.Struct, frozen=True, gc=False):
    """Some text of the answer."""

    text: str


class ToolOpened(msgspec.Struct, frozen=True):
    """A call begins: its name is whole. `index` counts the calls of this answer from 0. `further`:
    see `RemoteFurther`.
    """

    index: int
    id: str
    name: str
    further: Mapping[str, Any] = {}


class ArgumentsGrown(msgspec.Struct, frozen=True):
    """Some more of call `index`'s arguments, as JSON text."""

    index: int
    fragment: str


class ToolClosed(msgspec.Struct, frozen=True):
    """The call is complete: its fragments are one JSON object. Without it the call broke off."""

    index: int


def given_object(arguments: str) -> msgspec.Raw:
    """A call's arguments for an API that has them as an object: those of a call that broke off are
    a text in one.
    """
    try:
        msgspec.json.decode(arguments or "{}", type=dict)
    except msgspec.DecodeError:
        return msgspec.Raw(msgspec.json.encode({"_raw": arguments}))
    return msgspec.Raw(arguments.encode() or b"{}")


class Finished(msgspec.Struct, frozen=True):
    """The answer is over. `warning` says what was wrong with the output, for the log; `stop` is the
    stop string that was found. `fault`: how the answer misses the schema that was asked for, where
    the grammar couldn't carry all of it.
    """

    reason: FinishReason
    warning: str | None = None
    stop: str | None = None
    fault: str | None = None


Event: TypeAlias = Reasoning | Content | ToolOpened | ArgumentsGrown | ToolClosed | Finished


def called(events: Sequence[Event]) -> list[tuple[str, str]]:
    """The calls in them: their names and arguments."""
    names = [event.name for event in events if isinstance(event, ToolOpened)]
    return [
        (
            name,
            "".join(
                e.fragment for e in events if isinstance(e, ArgumentsGrown) and e.index == index
            ),
        )
        for index, name in enumerate(names)
    ]


def joined(events: Sequence[Event]) -> list[Event]:
    """The same, with neighbours that continue each other made one."""
    whole: list[Event] = []
    for event in events:
        match whole[-1:], event:
            case [Content(before)], Content(text):
                whole[-1] = Content(before + text)
            case [Reasoning(before)], Reasoning(text):
                whole[-1] = Reasoning(before + text)
            case [ArgumentsGrown(index, before)], ArgumentsGrown(same, more) if index == same:
                whole[-1] = ArgumentsGrown(index, before + more)
            case _:
                whole.append(event)
    return whole


class ServedTool(msgspec.Struct, frozen=True):
    """A tool that this server runs, as clients know it: by its server's label and its own name.
    `waits`: its calls run once their user has allowed them.
    """

    label: str
    name: str
    waits: bool = False


class ListedServer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of an MCP server that the model is shown; each as its server describes it."""

    label: str
    tools: tuple[Mapping[str, Any], ...]


class ToolAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that this server ran has answered call `index`."""

    index: int
    id: str
    tool: ServedTool
    arguments: str
    text: str
    is_error: bool = False
    pictures: tuple[str, ...] = ()  # for the model, as `data:` URLs


class Delta(msgspec.Struct, frozen=True, gc=False):
    """Some more of one choice: its events, and the log probabilities of their tokens.

    `choice` counts the choices of the whole answer: with several prompts it is prompt * n + i.
    `events` may be empty while text is held back; `logprobs` may then not be.
    """

    choice: int
    events: tuple[Event, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    # Of the prompt's next tokens, where it is echoed with its log probabilities.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    tokens: tuple[int, ...] = ()  # what was generated since the last delta, where that is returned
    progress: PromptProgress | None = None  # of prompt processing, where that is reported
    answered: tuple[ToolAnswered, ...] = ()  # behind `events`
    further: RemoteFurther | None = None


class ChangedParameter(msgspec.Struct, frozen=True):
    """A parameter that was applied otherwise than it was asked for."""

    asked: Any
    used: Any
    why: str


class Parameters(msgspec.Struct, frozen=True):
    """A report on a request's parameters, by the names the client gave them."""

    applied: Mapping[str, Any]
    changed: Mapping[str, ChangedParameter]
    unapplied: Mapping[str, str] = msgspec.field(name="ignored")  # and why


class Usage(TokenCounts, frozen=True, kw_only=True):
    """Usage of an answer, all choices together.

    Each prompt of the request counts once, not once for each choice. `reasoning_tokens` are part of
    `completion_tokens`.
    """

    reasoning_tokens: int = 0
    marked: int = 0  # choices whose text shows markers of calls that no format reads
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    queue_seconds: float = 0.0  # waiting for a slot
    is_counted: bool = True  # False: another server gave no counts
    further: Mapping[str, Any] = {}  # what it added, such as its price

    def after(self, first: "Usage") -> "Usage":
        """With the tokens of what was generated for the same request before. The times stay."""
        names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
        both = {name: getattr(first, name) + getattr(self, name) for name in names}
        counted = first.is_counted and self.is_counted
        return msgspec.structs.replace(self, **both, is_counted=counted)


class Encodings(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors or scores, who made them, and what they cost. `vectors`: of each text, as
    `EncoderContainer.encode` gives them.
    """

    model: str
    vectors: Sequence[bytes]
    prompt_tokens: int


NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0)


class ChoiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that has ended: what it alone cost, and how it was generated."""

    usage: Usage
    job: Generation  # within the bounds of its model
    context_length: int
    context_full: bool  # there was no room for more
    prompt: str = ""  # as the model read it, control tokens spelled out; where that is returned


def raw_text(delta: Delta) -> tuple[str, Finished | None]:
    """The text of a delta of raw text, from which nothing is split off, and the end if it came."""
    text, end = "", None
    for event in delta.events:
        match event:
            case Content(more):
                text += more
            case Finished():
                end = event
            case _:
                raise AssertionError(f"raw text is not split, but there came {event!r}")
    return text, end
