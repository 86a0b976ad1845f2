"""Makes a conversation readable whose blocks this server doesn't run or know. Knows JSON objects;
no structs and no templates.

What ran on Anthropic's servers, and what a newer client sends, becomes text that a model can read:
a conversation never ends with a 400 for a block in its past. Each block is replaced by one block,
so that errors name its place. What was read in another form is told (`unapplied`).

It also finds what the conversation says of its tools: which deferred ones were referenced, added,
removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from gateway.dialects.fields import MOST_NAMED
from gateway.terms.request import Unapplied

Json: TypeAlias = Mapping[str, Any]

# Blocks that the dialect's own structs describe.
PLAIN = frozenset(
    {
        "document",
        "image",
        "redacted_thinking",
        "search_result",
        "text",
        "thinking",
        "tool_result",
        "tool_use",
    }
)
# Fields that say nothing to a model.
_SILENT = frozenset(
    {
        "cache_control",
        "caller",
        "citations",
        "encrypted_content",
        "encrypted_index",
        "encrypted_stdout",
        "id",
        "signature",
        "tool_use_id",
        "type",
    }
)
_BARE = frozenset({"content", "data", "stdout", "text"})  # texts that need no name before them
_READ_AS_TEXT = "kept as text: it ran elsewhere, or is not known here"
SUMMARY = "Summary of the conversation until here:\n"


class History(msgspec.Struct, eq=False):
    """What a conversation says, in one pass through it. `messages`: with blocks that the structs of
    the dialect describe, and `compaction`, whose `text` stands for all before it. `first`: the
    message that the conversation begins with.
    """

    messages: Any
    first: int = 0
    referenced: dict[str, None] = {}  # tools, in the order in which they were mentioned
    added: list[Json] = []  # definitions of tools
    removed: dict[str, None] = {}
    unapplied: dict[str, Unapplied] = {}

    def read(self) -> None:
        """What is no list of objects is left for its reader."""
        if isinstance(self.messages, list):
            self.messages = [self._turn(turn) for turn in self.messages]
            self.first = self._begin_at_summary(self.messages)

    def _turn(self, turn: Any) -> Any:
        if not isinstance(turn, dict) or not isinstance(turn.get("content"), list):
            return turn
        return {**turn, "content": [self._block(block) for block in turn["content"]]}

    def _block(self, block: Any) -> Any:
        if not isinstance(block, dict) or not isinstance(kind := block.get("type"), str):
            return block
        match kind:
            case "tool_result":
                return self._result(block)
            case "tool_use":
                self._mention(block.get("name"))
                return block
            case "document" | "image" if (text := _unreadable(block)) is not None:
                return self._said(f"{kind}.source.{block['source'].get('type')}", text)
            case "compaction":
                return self._summary(block)
            case "tool_addition" | "tool_removal":
                return self._changed(kind, block.get("tool"))
            case "mcp_tool_use":
                return self._called(block)
            case "mcp_tool_result":
                return self._result({**block, "type": "tool_result"})
            case _:
                return block if kind in PLAIN else self._foreign(kind, block)

    def _foreign(self, kind: str, block: Json) -> Json:
        self._find_references(block)
        return self._said(kind, "\n".join([f"[{kind}]", *lines_of(block)]))

    def _summary(self, block: Json) -> Json:
        """Without a text it failed, or only Anthropic can read it."""
        if isinstance(text := block.get("content"), str) and text:
            return {"type": "compaction", "text": SUMMARY + text}
        return self._said("compaction", "")

    def _said(self, kind: str, text: str) -> Json:
        """The text that stands for a block of this kind."""
        name = f"messages[].content[].{kind}"
        if len(self.unapplied) < MOST_NAMED:
            self.unapplied[name] = Unapplied(name, _READ_AS_TEXT, partly=True)
        return {"type": "text", "text": text}

    def _result(self, block: Json) -> Json:
        content = block.get("content")
        if not isinstance(content, list):
            return block
        return {**block, "content": [self._inside(part) for part in content]}

    def _inside(self, part: Any) -> Any:
        if isinstance(part, dict) and part.get("type") == "tool_reference":
            self._mention(name := part.get("tool_name"))
            return {"type": "text", "text": f"The tool {name} is available now."}
        return self._block(part)

    def _called(self, block: Json) -> Json:
        name = f"{block.get('server_name')}__{block.get('name')}"
        fields = {key: block[key] for key in ("id", "input") if key in block}
        return {"type": "tool_use", "name": name, **fields}

    def _changed(self, kind: str, tool: Any) -> Json:
        """Tools that come and go in mid-conversation."""
        tool = tool if isinstance(tool, dict) else {}
        definition = tool.get("definition")
        name = (definition if isinstance(definition, dict) else tool).get("name")
        if not isinstance(name, str):
            return self._said(kind, "\n".join([f"[{kind}]", *lines_of(tool)]))
        if kind == "tool_removal":
            self.removed[name] = None
            return {"type": "text", "text": f"The tool {name} is not available any more."}
        self.removed.pop(name, None)
        self._mention(name)
        if isinstance(definition, dict):
            self.added.append(definition)
        return {"type": "text", "text": f"The tool {name} is available now."}

    def _find_references(self, block: Json) -> None:
        """Of a tool search that ran elsewhere."""
        content = block.get("content")
        found = content.get("tool_references") if isinstance(content, dict) else None
        for reference in found if isinstance(found, list) else ():
            if isinstance(reference, dict):
                self._mention(reference.get("tool_name"))

    def _mention(self, name: Any) -> None:
        if isinstance(name, str):
            self.referenced[name] = None

    def _begin_at_summary(self, messages: list[Any]) -> int:
        """Where the conversation begins: at its last summary. What precedes that in its turn is
        emptied.
        """
        for k in reversed(range(len(messages))):
            content = messages[k].get("content") if isinstance(messages[k], dict) else None
            if not isinstance(content, list):
                continue
            for place in reversed(range(len(content))):
                if isinstance(content[place], dict) and content[place].get("type") == "compaction":
                    content[:place] = [{"type": "text", "text": ""}] * place
                    return k
        return 0


def _unreadable(block: Json) -> str | None:
    """What is said in place of a document or picture whose data a model here can't be shown; None:
    it can.
    """
    source = block.get("source")
    if not isinstance(source, dict):
        return None
    readable = ("text", "content") if block["type"] == "document" else ("base64", "url")
    kind = source.get("type")
    if kind in readable or not isinstance(kind, str):
        return None
    title, media = block.get("title"), source.get("media_type")
    what = " ".join(str(word) for word in (block["type"], title, media) if word)
    where = source.get("url") or source.get("file_id") or "its data can't be read here"
    return f"[{what}: {where}]"


def lines_of(value: Any) -> Iterator[str]:
    """What `value` says, line by line, without ids, signatures and encrypted parts. Linear."""
    match value:
        case str():
            yield value
        case dict():
            yield from _fields(value)
        case list():
            for item in value:
                yield from lines_of(item)
        case None:
            return
        case _:
            yield str(value)


def _fields(value: Json) -> Iterator[str]:
    for name, item in value.items():
        if name in _SILENT or (name == "data" and value.get("type") == "base64"):
            continue
        if isinstance(item, dict | list):
            yield from lines_of(item)
        elif item not in (None, ""):
            yield str(item) if name in _BARE else f"{name}: {item}"


def stripped(tools: Any, known: Sequence[str]) -> Any:
    """`tools` with the `known` fields alone of those that are not custom: their own options mean
    nothing here, and may be of any type.
    """
    if not isinstance(tools, list):
        return tools
    return [
        {name: tool[name] for name in known if name in tool}
        if isinstance(tool, dict) and tool.get("type") not in (None, "custom")
        else tool
        for tool in tools
    ]
