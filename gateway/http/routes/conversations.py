"""OpenAI's conversations: items that responses go on from, and append to."""

import time
from typing import TypeVar

import msgspec
from litestar import delete, get, post
from litestar.types import ASGIApp

from gateway.dialects.responses import items, stored
from gateway.dialects.responses.stored import ConversationBody, ConversationWire, Deleted, Page
from gateway.http.auth import AnyRequest
from gateway.http.holding import held
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import Plain
from gateway.keys.store import KeptConversation, KeptItem, fresh_id
from gateway.terms.errors import NotFound

Found = TypeVar("Found")

HELLO = {"A message": {"items": [{"type": "message", "role": "user", "content": "Hello!"}]}}
TOPIC = {"Metadata": {"metadata": {"topic": "weather"}}}
CONVERSATION = "/v1/conversations/{conversation_id:str}"
ITEMS = f"{CONVERSATION}/items"
ITEM = f"{ITEMS}/{{item_id:str}}"

api = Routes()


@api(post, "/v1/conversations", access="user", takes=ConversationWire, examples=HELLO)
async def create(request: AnyRequest, services: Services) -> ConversationBody:
    """Create a conversation, with or without items."""
    new = await services.read(stored.read_conversation, await request.body())
    name = f"conv_{fresh_id()}"
    kept = KeptConversation(name, float(int(time.time())), msgspec.json.encode(new.metadata))
    await services.store.begin(request.auth.owner, kept, _kept_items(new, name))
    return _body(kept)


@api(get, CONVERSATION, access="user")
async def retrieve(
    request: AnyRequest, services: Services, conversation_id: str
) -> ConversationBody:
    """Get a conversation without its items."""
    kept = await services.store.conversation(request.auth.owner, conversation_id)
    return _body(_there(kept, conversation_id))


@api(post, CONVERSATION, access="user", takes=ConversationWire, examples=TOPIC)
async def describe(
    request: AnyRequest, services: Services, conversation_id: str
) -> ConversationBody:
    """Replace the metadata of a conversation."""
    new = await services.read(stored.read_conversation, await request.body())
    metadata = msgspec.json.encode(new.metadata)
    kept = await services.store.describe(request.auth.owner, conversation_id, metadata)
    return _body(_there(kept, conversation_id))


@api(delete, CONVERSATION, status_code=200, access="user")
async def remove(request: AnyRequest, services: Services, conversation_id: str) -> Deleted:
    """Delete a conversation and its items."""
    _there(await services.store.forget(request.auth.owner, conversation_id), conversation_id)
    return Deleted(id=conversation_id, object="conversation.deleted")


@api(post, ITEMS, access="user", takes=ConversationWire, examples=HELLO)
async def append(request: AnyRequest, services: Services, conversation_id: str) -> Page:
    """Append items to a conversation. The stored items are returned."""
    new = await services.read(stored.read_conversation, await request.body())
    added = _kept_items(new, conversation_id)
    _there(await services.store.append(request.auth.owner, conversation_id, added), conversation_id)
    return stored.found_page([(one.id, one.item) for one in added], len(added))


@api(get, ITEMS, access="user", query=stored.PageQuery)
async def list_items(request: AnyRequest, services: Services, conversation_id: str) -> Page:
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
    pairs = [(one.id, one.item) for one in _there(found, conversation_id)]
    return stored.found_page(pairs, wanted.limit)


@api(get, ITEM, access="user", gives=(items.Item,))
async def item(
    request: AnyRequest, services: Services, conversation_id: str, item_id: str
) -> ASGIApp:
    """Get an item of a conversation."""
    room = held(request).take
    found = await services.store.item(request.auth.owner, conversation_id, item_id, room)
    if found is None:
        raise NotFound(f"Item {item_id!r:.80} not found in {conversation_id!r:.80}.")
    return Plain(found.item)


@api(delete, ITEM, status_code=200, access="user")
async def drop(
    request: AnyRequest, services: Services, conversation_id: str, item_id: str
) -> ConversationBody:
    """Delete an item of a conversation. The conversation is returned."""
    if not await services.store.drop(request.auth.owner, conversation_id, item_id):
        raise NotFound(f"Item {item_id!r:.80} not found in {conversation_id!r:.80}.")
    kept = await services.store.conversation(request.auth.owner, conversation_id)
    return _body(_there(kept, conversation_id))


def _kept_items(new: ConversationWire, conversation: str) -> list[KeptItem]:
    """Their ids begin with the conversation's; see `items.home_of`."""
    new_id = items.numbered(conversation.removeprefix("conv_") + fresh_id()[:16])
    return [KeptItem(*one) for one in stored.ids_and_items(items.kept(new.items, new_id))]


def _body(kept: KeptConversation) -> ConversationBody:
    metadata = msgspec.Raw(kept.metadata)
    return ConversationBody(id=kept.id, created_at=int(kept.created), metadata=metadata)


def _there(found: Found | None, name: str) -> Found:
    """What the store has of a conversation. Raises NotFound where it has none."""
    if found is None or found is False:
        raise NotFound(f"Conversation {name!r:.80} not found.")
    return found
