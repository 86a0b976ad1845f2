"""Bodies of stored responses and conversations: single, in lists, and of a response that was
interrupted when its server ended.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gateway.dialects.dialect import body
from gateway.dialects.fields import Fields, read_fields
from gateway.dialects.responses.items import Item, Metadata, as_items, read_items

PageLimit: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
INTERRUPTED = {"code": "server_error", "message": "The server ended before the response did."}


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """The deleted object."""

    id: str
    object: Literal["response", "conversation.deleted"]
    deleted: bool = True


class Page(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """A page of a list. Items are JSON."""

    data: Sequence[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConversationBody(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="conversation"
):
    """A conversation, without its items; `created_at` is Unix time."""

    id: str
    created_at: int
    metadata: msgspec.Raw


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which page of a list."""

    after: str | None = None
    limit: PageLimit = 20
    order: Literal["asc", "desc"] = "desc"


class ConversationWire(msgspec.Struct, frozen=True, kw_only=True):
    """What a new conversation begins with, or is to be described by."""

    items: list[Item] = []
    metadata: Metadata = {}


def read_conversation(data: bytes) -> ConversationWire:
    """What a body says of a conversation; an empty body says nothing. Raises InvalidRequest."""
    fields = read_fields(data or b"{}")
    wire = fields.read(ConversationWire)
    items = as_items(wire.items)
    read_items(items, "items")  # what can't be read can't be gone on from
    return msgspec.structs.replace(wire, items=items)


def read_page(query: Mapping[str, Any]) -> PageQuery:
    """Which page a query wants. Raises InvalidRequest."""
    known = {name: query[name] for name in PageQuery.__struct_fields__ if name in query}
    if "limit" in known and str(known["limit"]).isdecimal():
        known["limit"] = int(known["limit"])
    return Fields(known, {}).read(PageQuery)


def page(items: Sequence[tuple[str, bytes]], wanted: PageQuery) -> Page:
    """A page of `items` (ids and JSON), which stand in the order in which they came."""
    ordered = items if wanted.order == "asc" else items[::-1]
    ids = [name for name, _ in ordered]
    start = ids.index(wanted.after) + 1 if wanted.after in ids else 0
    return found_page(ordered[start : start + wanted.limit + 1], wanted.limit)


def found_page(found: Sequence[tuple[str, bytes]], limit: int) -> Page:
    """A page of at most `limit` items (ids and JSON); more are there if `found` has more."""
    shown = found[:limit]
    return Page(
        data=[msgspec.Raw(item) for _, item in shown],
        first_id=shown[0][0] if shown else None,
        last_id=shown[-1][0] if shown else None,
        has_more=len(found) > limit,
    )


def ids_and_items(items: Sequence[Item]) -> list[tuple[str, bytes]]:
    """For `page`, and to be kept."""
    return [(item["id"], body(item)) for item in items]


def interrupted(document: bytes) -> bytes:
    """A response that was running when its server ended."""
    response = msgspec.json.decode(document)
    return body({**response, "status": "failed", "error": INTERRUPTED})
