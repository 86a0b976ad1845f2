"""From the items of a response to messages, and to the form in which they are kept. Knows no
template and no store.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from gateway.dialects.fields import TOO_DEEP, Fields, fields_of, nests_deep
from gateway.dialects.responses.encrypted_content import unpacked
from gateway.dialects.responses.wire import Item, ItemWire, PartWire
from gateway.request import ImagePart, Message, Part, Role, TextPart, ToolCall

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_IMAGE_SCHEMES = ("data:", "http:", "https:")
_TEXTS = ("input_text", "output_text", "text")
_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
}


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
    items: Sequence[Item], root: str = "input", passing: Callable[[Item], bool] = lambda _: False
) -> tuple[Message, ...]:
    """The conversation that `items` are, those that are `passing` left out. Raises InvalidRequest,
    which names a field of `root`.
    """
    talk = _Talk()
    for k, item in enumerate(items):
        if passing(item):
            continue
        fields = fields_of(item, f"{root}[{k}].")
        wire = fields.read(ItemWire)
        if wire.type == "reasoning":
            talk.think(_thought(wire))
        else:
            talk.say(_message(fields, wire))
    return talk.messages()


class _Talk:
    """Messages as they come together. A text and the calls behind it are items of their own here,
    and one message to a template; reasoning belongs to the message behind it.
    """

    def __init__(self) -> None:
        self._found: list[Message] = []
        self._thoughts: list[str] = []  # for the next message of the assistant
        self._reasoning: list[str] = []  # of the last message
        self._calls: list[ToolCall] = []  # likewise

    def think(self, thought: str) -> None:
        if thought:
            self._thoughts.append(thought)

    def say(self, message: Message) -> None:
        is_call = bool(message.tool_calls)
        if not (is_call and self._found and self._found[-1].role == "assistant"):
            self._settle()
            self._found.append(message)
        if message.role == "assistant":
            self._reasoning += self._thoughts
            self._thoughts = []
            self._calls += message.tool_calls

    def messages(self) -> tuple[Message, ...]:
        self._settle()
        return tuple(self._found)

    def _settle(self) -> None:
        """The last message is whole."""
        if self._reasoning or self._calls:
            self._found[-1] = msgspec.structs.replace(
                self._found[-1],
                reasoning="\n\n".join(self._reasoning) or None,
                tool_calls=tuple(self._calls),
            )
            self._reasoning, self._calls = [], []


def _thought(wire: ItemWire) -> str:
    """The reasoning: as text, or packed; or its summary."""
    content = wire.content if isinstance(wire.content, list) else []
    thought = "".join(part.text or "" for part in content) or unpacked(wire.encrypted_content or "")
    return thought or "".join(part.text or "" for part in wire.summary)


def _message(fields: Fields, wire: ItemWire) -> Message:
    match wire:
        case ItemWire(type="function_call", call_id=str(call_id), name=str(name)):
            if nests_deep(wire.arguments or ""):
                raise fields.wrong("arguments", TOO_DEEP)
            call = ToolCall(call_id, name, wire.arguments or "{}")
            return Message(role="assistant", tool_calls=(call,))
        case ItemWire(type="function_call_output", call_id=str(call_id)):
            parts = tuple(_parts(fields, "output", wire.output))
            return Message(role="tool", parts=parts, tool_call_id=call_id)
        case ItemWire(type="function_call" | "function_call_output"):
            raise fields.wrong("call_id", "This field and the name of a call are required.")
        case ItemWire(type="message" | None, role=str(role)) if role in ROLES:
            return Message(role=ROLES[role], parts=tuple(_parts(fields, "content", wire.content)))
        case ItemWire(type="message" | None):
            names = ", ".join(repr(name) for name in ROLES)
            raise fields.wrong("role", f"Expected one of {names}, got {wire.role!r:.64}.")
    raise fields.wrong("type", f"Items of type {wire.type!r:.64} are not supported.")


def _parts(fields: Fields, path: str, content: str | list[PartWire] | None) -> Iterator[Part]:
    if isinstance(content, str):
        yield from (TextPart(content),) if content else ()
        return
    for k, part in enumerate(content or ()):
        yield _part(fields, f"{path}[{k}]", part)


def _part(fields: Fields, path: str, wire: PartWire) -> Part:
    match wire:
        case PartWire(type="input_text" | "output_text" | "text", text=str(text)):
            return TextPart(text)
        case PartWire(type="refusal", refusal=str(text)):
            return TextPart(text)
        case PartWire(type="input_image", image_url=str(url)) if url.startswith(_IMAGE_SCHEMES):
            return ImagePart(url, field=f"{fields.prefix}{path}.image_url")
        case PartWire(type="input_image"):
            names = ", ".join(repr(name) for name in _IMAGE_SCHEMES)
            raise fields.wrong(f"{path}.image_url", f"Expected a URL that starts with {names}.")
        case PartWire(type="input_text" | "output_text" | "text" | "refusal"):
            raise fields.wrong(f"{path}.text", "This field is required.")
    raise fields.wrong(f"{path}.type", f"Parts of type {wire.type!r:.64} are not supported.")


def decoded(data: bytes) -> list[Any]:
    """Items that were kept."""
    return msgspec.json.decode(data, type=list[Any])


def history(parts: Sequence[bytes]) -> list[Any]:
    """Items of several arrays that were kept, in their order."""
    return [item for part in parts for item in decoded(part)]
