"""The items of a response: parsed to messages, and to the form in which they are kept; their
references, and reasoning that clients carry from one request to the next. Knows no template and no
store.

Items stay JSON objects: they are kept, and listed again, as they came; `read_items` reads them. An
item's id contains the 32 digits of the response or conversation that holds it, so that a reference
to it is found without an index.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gateway.dialects.custom import custom_call
from gateway.dialects.fields import TOO_DEEP, Fields, fields_of, nests_deep
from gateway.dialects.parameters import Alternatives, AnswerWire
from gateway.dialects.parts import PartWire, read_parts
from gateway.dialects.responses.past_calls import past_messages
from gateway.dialects.responses.tools import ToolChoiceWire, ToolWire, item_path, joined
from gateway.terms.errors import InvalidRequest, NotFound, TooLarge
from gateway.terms.request import Message, Role, ToolCall

PREFIX = "roundhouse-1."


def packed(text: str) -> str:
    """What `encrypted_content` is of a reasoning of `text`: it is carried from one request to the
    next by clients that don't read it.

    OpenAI encrypts it, because its clients may not read it. Here it is returned as text anyway, so
    it is only packed: clients that send back nothing else of a reasoning item lose none of it, and
    nothing has to be stored.
    """
    return PREFIX + urlsafe_b64encode(text.encode()).decode()


def unpacked(content: str) -> str | None:
    """The reasoning; None where it was packed elsewhere. Linear."""
    if not content.startswith(PREFIX) or not content.isascii():
        return None
    try:
        return urlsafe_b64decode(content.removeprefix(PREFIX)).decode()
    except (Error, UnicodeDecodeError):
        return None


Item: TypeAlias = dict[str, Any]
# A client's own notes, within OpenAI's limits.
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class ItemPartWire(PartWire, frozen=True):
    """A part of an item. An image's address is a text here, and its detail stands beside it."""

    image_url: str | None = None


class ItemWire(msgspec.Struct, frozen=True, kw_only=True):
    """One item; `type` says which of the fields count. One with a role is a message."""

    type: str | None = None
    role: str | None = None
    content: str | list[ItemPartWire] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ItemPartWire] | None = None
    summary: list[ItemPartWire] = []
    encrypted_content: str | None = None
    text: str | None = None  # of a part that stands among the items
    image_url: str | None = None
    status: str | None = None  # what is sent is over


class InputWire(msgspec.Struct, frozen=True):
    """The items as they are read."""

    input: list[ItemWire]


class ReasoningWire(msgspec.Struct, frozen=True):
    """The reasoning effort, and whether the reasoning is sent as a summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # its name before


class FormatWire(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the answer."""

    type: str = "text"
    name: str | None = None  # OpenAI asks for one
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextWire(msgspec.Struct, frozen=True):
    """The format of the answer."""

    format: FormatWire = FormatWire()
    verbosity: str | None = None


class ConversationWire(msgspec.Struct, frozen=True):
    """A conversation, by its id."""

    id: str


class ManagementWire(msgspec.Struct, frozen=True):
    """A summary takes the place of the conversation where that is longer than so many tokens."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None


class PromptWire(msgspec.Struct, frozen=True):
    """A prompt that is stored at the server, by its id, and what stands for its variables."""

    id: str
    variables: dict[str, Any] | None = None
    version: str | None = None


class CreateWire(AnswerWire, frozen=True, kw_only=True):
    """All of a body but the sampling parameters."""

    input: str | list[Item] = ""
    instructions: str | None = None
    tools: Sequence[ToolWire] = ()
    tool_choice: str | ToolChoiceWire | None = None
    parallel_tool_calls: bool = True
    reasoning: ReasoningWire = ReasoningWire()
    text: TextWire = TextWire()
    truncation: str = "disabled"
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    top_logprobs: Alternatives = 0
    include: Sequence[str] = ()
    metadata: Metadata = msgspec.field(default_factory=dict)
    store: bool = True
    background: bool = False
    previous_response_id: str | None = None
    conversation: str | ConversationWire | None = None
    context_management: Sequence[ManagementWire] = ()
    prompt: PromptWire | None = None


def is_plain(item: Item) -> bool:
    """`ItemWire` reads it: also to refuse a type that is no text."""
    kind = item.get("type")
    return not isinstance(kind, str) or kind in PLAIN


ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXTS = ("input_text", "output_text", "text")
_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
}
# The items that `ItemWire` reads; all others are tools', see `past_calls`.
PLAIN = frozenset(("message", "reasoning", *_PREFIXES))


def as_items(given: str | list[Item]) -> list[Item]:
    """The items of an `input`. A text, and parts that stand for themselves, are the user's."""
    if isinstance(given, str):
        return [_of_user([{"type": "input_text", "text": given}])] if given else []
    found: list[Item] = []
    parts: list[Item] = []
    for item in given:
        if item.get("type") in (*_TEXTS, "input_image") and "role" not in item:
            if not parts:
                found.append(_of_user(parts))
            parts.append(item)
        else:
            parts = []
            found.append(item)
    return found


def _of_user(parts: list[Item]) -> Item:
    return {"type": "message", "role": "user", "content": parts}


def kept(items: Sequence[Item], new_id: Callable[[], str]) -> list[Item]:
    """`items` as they are kept: each with its type, an id and a status, texts as parts."""
    return [_kept(item, new_id) for item in items]


def _kept(item: Item, new_id: Callable[[], str]) -> Item:
    kind = item.get("type") or "message"
    whole = {**item, "type": kind}
    if not (isinstance(whole.get("id"), str) and whole["id"]):
        whole["id"] = _PREFIXES.get(kind, "item_") + new_id()
    if kind != "reasoning":
        whole.setdefault("status", "completed")
    if kind == "message" and isinstance(item.get("content"), str):
        text = "output_text" if item.get("role") == "assistant" else "input_text"
        part: Item = {"type": text, "text": item["content"]}
        if text == "output_text":
            part["annotations"] = []
        whole["content"] = [part]
    return whole


def read_items(
    items: Sequence[Item], root: str = "input", *, first: int = 0
) -> tuple[Message, ...]:
    """The conversation that `items` are, whose numbers begin with `first`. Raises InvalidRequest,
    which names a field of `root`.
    """
    turns: list[list[Message]] = []  # each is one message to a template
    thoughts: list[str] = []  # for the next message of the assistant
    for k, item in enumerate(items, first):
        for said in _said(item, f"{item_path(k, root)}."):
            if isinstance(said, str):
                thoughts.append(said)
                continue
            message = said
            if thoughts and said.role == "assistant":
                message = msgspec.structs.replace(said, reasoning="\n\n".join(thoughts))
                thoughts = []
            if message.tool_calls and turns and turns[-1][0].role == "assistant":
                turns[-1].append(message)
            else:
                turns.append([message])
    return tuple(map(_together, turns))


def _said(item: Item, place: str) -> Iterable[Message | str]:
    """The messages that an item is, or its reasoning."""
    if not is_plain(item):
        return past_messages(item, _summary(item))
    fields = fields_of(item, place)
    wire = fields.read(ItemWire)
    if wire.type == "reasoning":
        return filter(None, (_thought(wire),))
    return (_message(fields, wire),)


def _together(turn: Sequence[Message]) -> Message:
    """A text and the calls behind it are items of their own, and one message to a template."""
    if len(turn) == 1:
        return turn[0]
    return msgspec.structs.replace(
        turn[0],
        reasoning="\n\n".join(said.reasoning for said in turn if said.reasoning) or None,
        tool_calls=tuple(call for said in turn for call in said.tool_calls),
    )


def since_compaction(items: Sequence[Item]) -> list[Item]:
    """`items` without what the last compaction stands for: before it only what users said, and what
    says something of the request, remains. One that was packed elsewhere stands for nothing here.
    """
    places = [
        k for k, item in enumerate(items)
        if item.get("type") == "compaction" and _summary(item) is not None
    ]  # fmt: skip
    if not places:
        return list(items)
    before = [item for item in items[: places[-1]] if _outlives(item)]
    return [*before, *items[places[-1] :]]


def _outlives(item: Item) -> bool:
    kind = item.get("type", "message")
    is_said = kind == "message" and item.get("role") in ("user", "system", "developer")
    return is_said or kind in ("additional_tools", "tool_search_output")


def _thought(wire: ItemWire) -> str:
    """The reasoning: as text, or packed; or its summary."""
    content = wire.content if isinstance(wire.content, list) else []
    thought = "".join(part.text or "" for part in content) or unpacked(wire.encrypted_content or "")
    return thought or "".join(part.text or "" for part in wire.summary)


def _summary(item: Item) -> str | None:
    content = item.get("encrypted_content")
    return unpacked(content) if isinstance(content, str) else None


def _message(fields: Fields, wire: ItemWire) -> Message:
    match wire:
        case ItemWire(type="custom_tool_call", call_id=str(call_id), name=str(name)):
            call = custom_call(call_id, joined(wire.namespace or "", name), wire.input or "")
            return Message(role="assistant", tool_calls=(call,))
        case ItemWire(type="function_call", call_id=str(call_id), name=str(name)):
            if nests_deep(wire.arguments or ""):
                raise fields.wrong("arguments", TOO_DEEP)
            name = joined(wire.namespace or "", name)
            call = ToolCall(call_id, name, wire.arguments or "{}")
            return Message(role="assistant", tool_calls=(call,))
        case ItemWire(
            type="function_call_output" | "custom_tool_call_output", call_id=str(call_id)
        ):
            parts = read_parts(fields, "output", wire.output)
            return Message(role="tool", parts=parts, tool_call_id=call_id)
        case ItemWire(type=str(kind)) if kind.endswith(("_call", "_call_output")):
            raise fields.wrong("call_id", "This field and the name of a call are required.")
        case ItemWire(type="message" | None):
            role = fields.meant("role", wire.role, ROLES)
            return Message(role=role, parts=read_parts(fields, "content", wire.content))
    raise fields.wrong("type", f"Items of type {wire.type!r:.64} are not supported.")


def decoded(data: bytes) -> list[Any]:
    """Items that were kept."""
    return msgspec.json.decode(data, type=list[Any])


def history(parts: Sequence[bytes]) -> list[Any]:
    """Items of several arrays that were kept, in their order."""
    return [item for part in parts for item in decoded(part)]


_RESULTS = ("function_call_output", "custom_tool_call_output")


def require_calls(items: Sequence[Item], whole: Sequence[Item]) -> None:
    """Each result among `items` is one of a call that stands somewhere in `whole`, unless a
    compaction stands for some of that. Raises InvalidRequest.
    """
    if any(item.get("type") == "compaction" for item in whole):
        return
    called = {str(item.get("call_id")) for item in whole if item.get("type") not in _RESULTS}
    for k, item in enumerate(items):
        if item.get("type") in _RESULTS and str(item.get("call_id")) not in called:
            path = f"input[{k}].call_id"
            raise InvalidRequest.at(path, f"No call {item.get('call_id')!r:.80} stands before it.")


REFERENCE = "item_reference"
LONGEST = 64 << 20  # bytes of all items that stand for references; as the largest body

_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]+", re.ASCII)


class _Named(msgspec.Struct, frozen=True):
    id: Any


def numbered(home: str) -> Callable[[], str]:
    """Names of items that are kept in what `home` (32 digits) names, one after the other."""
    numbers = count()
    return lambda: f"{home}{next(numbers):04x}"


def home_of(name: str) -> str | None:
    """What an item of that id is kept in; None for an id that was not made here."""
    found = _ID.fullmatch(name)
    return found[1] if found else None


def is_reference(item: Item) -> bool:
    """OpenAI lets the type be left out."""
    kind = item.get("type")
    return kind == REFERENCE or (kind is None and "role" not in item and "id" in item)


def referred(items: Sequence[Item]) -> list[str]:
    """The ids that `items` refer to. Raises InvalidRequest."""
    found = []
    for k, item in enumerate(items):
        if is_reference(item):
            if not isinstance(item.get("id"), str):
                raise InvalidRequest.at(f"input[{k}].id", "Expected an id.")
            found.append(item["id"])
    return found


def among(parts: Sequence[bytes], wanted: Sequence[str]) -> dict[str, Item]:
    """The items that are `wanted`, of `parts` (arrays of items, as JSON). Raises TooLarge where
    those that stand for references are too long together: one may be named many times.
    """
    times = Counter(wanted)
    found: dict[str, Item] = {}
    size = 0
    for part in parts:
        for raw in msgspec.json.decode(part, type=list[msgspec.Raw]):
            name = msgspec.json.decode(raw, type=_Named).id
            if isinstance(name, str) and name in times and name not in found:
                size += len(raw) * times[name]
                refuse_long(size)
                found[name] = msgspec.json.decode(raw)
    return found


def refuse_long(size: int) -> None:
    """Raises TooLarge."""
    if size > LONGEST:
        text = f"The items that are referred to have more than {LONGEST:,} bytes together."
        raise TooLarge.at("input", text)


def resolved(items: Sequence[Item], found: Mapping[str, Item]) -> tuple[Item, ...]:
    """`items` with those of `found` in the place of references. Raises NotFound."""
    whole = []
    for k, item in enumerate(items):
        if is_reference(item) and item["id"] not in found:
            text = f"input[{k}].id: Item {item['id']!r:.80} not found; kept are items of stored"
            raise NotFound(f"{text} responses and of conversations.", param=f"input[{k}].id")
        whole.append(found[item["id"]] if is_reference(item) else item)
    return tuple(whole)
