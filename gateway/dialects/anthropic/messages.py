"""From Anthropic's blocks to messages. Knows no template.

A user's turn holds the results of tools beside what the user says; here each result is a message
of its own. What a result is marked with (`is_error`) is said in its text, which is all that a model
reads.
"""

from collections.abc import Iterator, Sequence

import msgspec

from gateway.dialects.anthropic.wire import BlockWire, MessageWire, SourceWire
from gateway.dialects.fields import Fields
from gateway.request import ImagePart, Message, Part, TextPart, ToolCall

ERROR = "Error: "  # before the result of a tool that failed
# A line that a coding agent puts first into the system prompt, for billing. It differs in each
# request, so a prompt that began with it would never hit the prefix cache.
BOOKKEEPING = "x-anthropic-billing-header:"

_URLS = ("http:", "https:", "data:")


def read_system(fields: Fields, system: str | list[BlockWire]) -> tuple[Message, ...]:
    """The system prompt as a message; none if it is empty. Raises InvalidRequest."""
    blocks = _blocks(system)
    kept = [block for block in blocks if not is_bookkeeping(block)]
    parts = _parts(fields, "system", kept, ("text",)) if kept else ()
    return (Message(role="system", parts=parts),) if parts else ()


def is_bookkeeping(block: BlockWire) -> bool:
    """Whether the block is not meant for the model."""
    return (block.text or "").startswith(BOOKKEEPING)


def read_turn(fields: Fields, path: str, wire: MessageWire) -> Iterator[Message]:
    """The messages that one turn is. Raises InvalidRequest."""
    blocks = _blocks(wire.content)
    match wire.role:
        case "user":
            yield from _user(fields, path, blocks)
        case "assistant":
            yield _assistant(fields, path, blocks)
        case "system":
            parts = _parts(fields, f"{path}.content", blocks, ("text",))
            yield Message(role="system", parts=parts)
        case role:
            message = f"Expected 'user', 'assistant' or 'system', got {role!r:.64}."
            raise fields.wrong(f"{path}.role", message)


def _blocks(content: str | list[BlockWire]) -> list[BlockWire]:
    if isinstance(content, list):
        return content
    return [BlockWire(type="text", text=content)] if content else []


def _user(fields: Fields, path: str, blocks: Sequence[BlockWire]) -> Iterator[Message]:
    parts: list[Part] = []
    for k, block in enumerate(blocks):
        place = f"{path}.content[{k}]"
        if block.type != "tool_result":
            parts += _part(fields, place, block)
            continue
        if parts:
            yield Message(role="user", parts=tuple(parts))
            parts = []
        yield _result(fields, place, block)
    if parts or not blocks:
        yield Message(role="user", parts=tuple(parts))


def _result(fields: Fields, path: str, block: BlockWire) -> Message:
    if block.tool_use_id is None:
        raise fields.wrong(f"{path}.tool_use_id", "This field is required.")
    parts = _parts(fields, f"{path}.content", _blocks(block.content or ""))
    if block.is_error:
        parts = _marked(parts)
    return Message(role="tool", parts=parts, tool_call_id=block.tool_use_id)


def _marked(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    match parts:
        case (TextPart(text), *rest):
            return (TextPart(ERROR + text), *rest)
        case _:
            return (TextPart(ERROR), *parts)


def _assistant(fields: Fields, path: str, blocks: Sequence[BlockWire]) -> Message:
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for k, block in enumerate(blocks):
        place = f"{path}.content[{k}]"
        match block:
            case BlockWire(type="thinking", thinking=str(text)):
                thoughts.append(text)
            case BlockWire(type="redacted_thinking"):
                pass  # encrypted by Anthropic; listed in `x-roundhouse-ignored`
            case BlockWire(type="tool_use", id=str(call_id), name=str(name)):
                calls.append(ToolCall(call_id, name, _json(block)))
            case BlockWire(type="thinking" | "tool_use"):
                raise fields.wrong(place, f"A {block.type} block lacks one of its fields.")
            case _:
                parts += _part(fields, place, block, ("text",))
    return Message(
        role="assistant",
        parts=tuple(parts),
        reasoning="\n\n".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _json(block: BlockWire) -> str:
    return msgspec.json.encode(block.input or {}).decode()


# ------------------------------------------------------------------------------------------- blocks

_KNOWN = ("text", "image", "document", "search_result")


def _parts(
    fields: Fields, path: str, blocks: Sequence[BlockWire], known: Sequence[str] = _KNOWN
) -> tuple[Part, ...]:
    found: list[Part] = []
    for k, block in enumerate(blocks):
        found += _part(fields, f"{path}[{k}]", block, known)
    return tuple(found)


def _part(
    fields: Fields, path: str, block: BlockWire, known: Sequence[str] = _KNOWN
) -> tuple[Part, ...]:
    """What one block says; nothing for an empty text."""
    if block.type not in known:
        names = ", ".join(repr(name) for name in known)
        raise fields.wrong(f"{path}.type", f"Expected one of {names} here, got {block.type!r:.64}.")
    match block:
        case BlockWire(type="text", text=str(text)):
            return (TextPart(text),) if text else ()
        case BlockWire(type="text"):
            raise fields.wrong(f"{path}.text", "This field is required.")
        case BlockWire(type="image", source=SourceWire() as source):
            return (_image(fields, f"{path}.source", source),)
        case BlockWire(type="document", source=SourceWire() as source):
            return _document(fields, path, block, source)
        case BlockWire(type="search_result", source=str(source)):
            return _headed((block.title, source), _inside(fields, path, block.content))
        case _:
            raise fields.wrong(f"{path}.source", "This field is required.")


def _image(fields: Fields, path: str, source: SourceWire) -> ImagePart:
    match source:
        case SourceWire(type="base64", data=str(data)):
            return ImagePart(f"data:{source.media_type};base64,{data}", field=f"{path}.data")
        case SourceWire(type="url", url=str(url)) if url.startswith(_URLS):
            return ImagePart(url, field=f"{path}.url")
        case SourceWire(type="base64" | "url"):
            raise fields.wrong(path, "A picture needs its data, or an http: or https: URL.")
    raise fields.wrong(f"{path}.type", f"Expected 'base64' or 'url', got {source.type!r:.64}.")


def _document(fields: Fields, path: str, block: BlockWire, source: SourceWire) -> tuple[Part, ...]:
    """A plain text, or blocks. PDF is not supported."""
    match source:
        case SourceWire(type="text", data=str(data)):
            return _headed((block.title, block.context), (TextPart(data),))
        case SourceWire(type="content"):
            inside = _inside(fields, f"{path}.source", source.content)
            return _headed((block.title, block.context), inside)
    message = f"Documents of type {source.type!r:.64} are not supported; send their text."
    raise fields.wrong(f"{path}.source.type", message)


def _inside(fields: Fields, path: str, content: str | list[BlockWire] | None) -> tuple[Part, ...]:
    return _parts(fields, f"{path}.content", _blocks(content or ""), ("text", "image"))


def _headed(lines: Sequence[str | None], parts: tuple[Part, ...]) -> tuple[Part, ...]:
    head = "\n".join(line for line in lines if line)
    return (TextPart(head), *parts) if head else parts
