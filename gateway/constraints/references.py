"""Resolution of a schema's references to its own parts, by pointer, anchor or `$id`. Nothing is
ever fetched.

A reference is a URI (RFC 3986) relative to the nearest `$id` around it; its fragment is a JSON
pointer (RFC 6901) or an anchor.
"""

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from gateway.constraints.keywords import Draft, Node
from gateway.constraints.limits import SCHEMA_DEPTH, SCHEMA_NODES

# Their values are data: an `$id` in there is none.
DATA = frozenset(("const", "enum", "default", "examples"))
ROOT = ""


class Part(msgspec.Struct, frozen=True):
    """Where an object or list of a schema stands: inside `parent`, under `key`; `base` is the URI
    of the resource it belongs to, `data` that no schema is inside.
    """

    base: str
    parent: int | None = None
    key: str | int = ""
    depth: int = 0
    data: bool = False


class References:
    """What a document's references lead to, and where each of its parts stands.

    Parts are known by `id`; the document is kept, so they stay what they are.
    """

    def __init__(self, document: Any, draft: Draft, field: str) -> None:
        self.document = document
        self.identifier = "id" if draft == 4 else "$id"
        self.parts: dict[int, Part] = {}
        self.named: dict[str, Any] = {ROOT: document}
        self._index(field)

    def target(self, reference: str, node: Node) -> Any:
        """What `reference`, which stands in `node`, leads to; None where that isn't here."""
        base = self.parts[id(node)].base
        absolute = _joined(base, reference)
        if absolute in self.named:
            return self.named[absolute]
        resource, fragment = urldefrag(absolute)
        if resource not in self.named:
            return None
        found = _pointed(self.named[resource], fragment)
        return _pointed(self.document, fragment) if found is None else found

    def place(self, node: Any) -> str:
        """`$.properties.size`"""
        keys: list[str | int] = []
        part = self.parts.get(id(node))
        while part is not None and part.parent is not None:
            keys.append(part.key)
            part = self.parts[part.parent]
        return path(reversed(keys))

    def _index(self, field: str) -> None:
        """Without recursion: its depth is what is being measured."""
        stack = [(self.document, Part(ROOT))]
        nodes = 0
        while stack:
            node, part = stack.pop()
            nodes += 1
            SCHEMA_DEPTH.check(part.depth, field)
            if isinstance(node, dict | list):
                base = part.base if part.data else self._named(node, part.base)
                self.parts[id(node)] = msgspec.structs.replace(part, base=base)
                stack += _inside(node, self.parts[id(node)])
            SCHEMA_NODES.check(nodes + len(stack), field)

    def _named(self, node: Any, base: str) -> str:
        """Notes by which names `node` can be referred to, and returns its base."""
        if not isinstance(node, dict):
            return base
        identifier = node.get(self.identifier)
        if isinstance(identifier, str):
            absolute = _joined(base, identifier)
            self.named.setdefault(absolute.removesuffix("#"), node)
            base = base if identifier.startswith("#") else urldefrag(absolute).url
        for anchor in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(anchor), str):
                self.named.setdefault(f"{base}#{node[anchor]}", node)
        return base


def path(keys: Iterable[str | int]) -> str:
    """`$.properties.size[0]`"""
    return "$" + "".join(map(_step, keys))


def _inside(node: Any, part: Part) -> Iterator[tuple[Any, Part]]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in pairs:
        data = part.data or key in DATA
        yield value, Part(part.base, id(node), key, part.depth + 1, data)


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _pointed(node: Any, fragment: str) -> Any:
    """What a JSON pointer leads to; None: nothing."""
    if fragment and not fragment.startswith("/"):
        return None
    for part in unquote(fragment).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and len(key) < 9:
            node = node[int(key)] if int(key) < len(node) else None
        else:
            return None
    return node


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    plain = key.isascii() and key.replace("_", "").replace("-", "").replace("$", "").isalnum()
    return f".{key}" if plain else f"[{msgspec.json.encode(key).decode()}]"
