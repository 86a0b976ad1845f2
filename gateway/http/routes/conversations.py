"""OpenAI's conversations: items that responses go on from, and append to."""

import time

import msgspec
from litestar import delete, get, post
from litestar.types import ASGIApp

from gateway.dialects.responses import items, stored
from gateway.http.auth import AnyRequest
from gateway.http.holding import held
from gateway.http.openapi import Described, Routes
from gateway.http.services import Services
from gateway.http.sse import Plain
from gateway.keys.access import Access
from gateway.keys.store import KeptConversation, KeptItem, fresh_id
from gateway.terms.errors import NotFound


@post("/v1/conversations", access="user")
async def create(request: AnyRequest, services: Services) -> ASGIApp:
    """Create a conversation, with or without items."""
    new = await services.read(stored.read_conversation, await request.body())
    name = f"conv_{fresh_id()}"
    kept = KeptConversation(name, float(int(time.time())), msgspec.json.encode(new.metadata))
    await services.store.begin(request.auth.owner, kept, _kept_items(new, name))
    return Plain(_body(kept))


@get("/v1/conversations/{conversation_id:str}", access="user")
async def retrieve(request: AnyRequest, services: Services, conversation_id: str) -> ASGIApp:
    """Get a conversation without its items."""
    return Plain(_body(await _found(services, request.auth, conversation_id)))


@post("/v1/conversations/{conversation_id:str}", access="user")
async def describe(request: AnyRequest, services: Services, conversation_id: str) -> ASGIApp:
    """Replace the metadata of a conversation."""
    new = await services.read(stored.read_conversation, await request.body())
    metadata = msgspec.json.encode(new.metadata)
    kept = await services.store.describe(request.auth.owner, conversation_id, metadata)
    if kept is None:
        raise _missing(conversation_id)
    return Plain(_body(kept))


@delete("/v1/conversations/{conversation_id:str}", status_code=200, access="user")
async def remove(request: AnyRequest, services: Services, conversation_id: str) -> ASGIApp:
    """Delete a conversation and its items."""
    if not await services.store.forget(request.auth.owner, conversation_id):
        raise _missing(conversation_id)
    return Plain(stored.deleted_body(conversation_id, "conversation.deleted"))


@post("/v1/conversations/{conversation_id:str}/items", access="user")
async def append(request: AnyRequest, services: Services, conversation_id: str) -> ASGIApp:
    """Append items to a conversation. The stored items are returned."""
    new = await services.read(stored.read_conversation, await request.body())
    added = _kept_items(new, conversation_id)
    if not await services.store.append(request.auth.owner, conversation_id, added):
        raise _missing(conversation_id)
    return Plain(stored.found_page_body([(one.id, one.item) for one in added], len(added)))


@get("/v1/conversations/{conversation_id:str}/items", access="user")
async def list_items(request: AnyRequest, services: Services, conversation_id: str) -> ASGIApp:
    """List items of a conversation by page, the newest first by default."""
    wanted = stored.read_page(dict(request.query_params))
    found = await services.store.page(
        request.auth.owner,
        conversation_id,
        after=wanted.after,
        limit=wanted.limit + 1,  # whether there are more
        newest_first=wanted.order == "desc",
        room=held(request).take,
    )
    if found is None:
        raise _missing(conversation_id)
    return Plain(stored.found_page_body([(one.id, one.item) for one in found], wanted.limit))


@get("/v1/conversations/{conversation_id:str}/items/{item_id:str}", access="user")
async def item(
    request: AnyRequest, services: Services, conversation_id: str, item_id: str
) -> ASGIApp:
    """Get an item of a conversation."""
    room = held(request).take
    found = await services.store.item(request.auth.owner, conversation_id, item_id, room)
    if found is None:
        raise NotFound(f"Item {item_id!r:.80} not found in {conversation_id!r:.80}.")
    return Plain(found.item)


@delete(
    "/v1/conversations/{conversation_id:str}/items/{item_id:str}", status_code=200, access="user"
)
async def drop(
    request: AnyRequest, services: Services, conversation_id: str, item_id: str
) -> ASGIApp:
    """Delete an item of a conversation. The conversation is returned."""
    if not await services.store.drop(request.auth.owner, conversation_id, item_id):
        raise NotFound(f"Item {item_id!r:.80} not found in {conversation_id!r:.80}.")
    return Plain(_body(await _found(services, request.auth, conversation_id)))


def _kept_items(new: stored.NewConversation, conversation: str) -> list[KeptItem]:
    """Their ids begin with the conversation's; see `items.home_of`."""
    new_id = items.numbered(conversation.removeprefix("conv_") + fresh_id()[:16])
    return [KeptItem(*one) for one in stored.ids_and_items(items.kept(new.items, new_id))]


def _body(kept: KeptConversation) -> bytes:
    return stored.conversation_body(kept.id, kept.created, kept.metadata)


async def _found(services: Services, access: Access, name: str) -> KeptConversation:
    kept = await services.store.conversation(access.owner, name)
    if kept is None:
        raise _missing(name)
    return kept


def _missing(name: str) -> NotFound:
    return NotFound(f"Conversation {name!r:.80} not found.")


_ITEMS = {"A message": {"items": [{"type": "message", "role": "user", "content": "Hello!"}]}}
_METADATA = {"Metadata": {"metadata": {"topic": "weather"}}}

ROUTES: Routes = {
    create: Described(
        takes=stored.ConversationWire, gives=(stored.ConversationBody,), examples=_ITEMS
    ),
    retrieve: Described(gives=(stored.ConversationBody,)),
    describe: Described(
        takes=stored.ConversationWire, gives=(stored.ConversationBody,), examples=_METADATA
    ),
    remove: Described(gives=(stored.Deleted,)),
    append: Described(takes=stored.ConversationWire, gives=(stored.Page,), examples=_ITEMS),
    list_items: Described(gives=(stored.Page,), query=stored.PageQuery),
    item: Described(gives=(items.Item,)),
    drop: Described(gives=(stored.ConversationBody,)),
}
