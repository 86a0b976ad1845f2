"""Kept conversations: what is kept, for whom, how old; drop and pin. A key sees and changes its
own, an administrator all of them.
"""

from collections.abc import Callable

import msgspec
from litestar import delete, get, post

from backends.places.kept.store import KeptBeginning, KeptCounts, KeptFacts
from config.values import alike
from gateway.http.auth import AnyRequest
from gateway.http.request_log import audit
from gateway.http.routing import Routes
from gateway.http.services import LONGEST_CONVERSATION, Services
from gateway.terms.errors import InvalidRequest

EXAMPLE = {"By the client's name": {"conversation": "c-1", "pinned": True}}

api = Routes()


class KeptWire(KeptFacts, frozen=True, kw_only=True):
    """One kept conversation. `key`: the label of the API key that may use it, null without keys;
    `tiers`: where it is; `size` in bytes; `age` and `idle` in seconds since it was kept and used;
    `saves`: seconds that computing it takes; `conversation`: its client's name for it.
    """

    key: str | None
    conversation: str | None


class KeptByEngine(msgspec.Struct, frozen=True):
    """A loaded model whose engine keeps conversations itself, in so many bytes at most. What is in
    them it doesn't say: they are no part of the list.
    """

    model: str
    backend: str
    memory_limit: int
    disk_limit: int


class KeptListWire(msgspec.Struct, frozen=True, kw_only=True):
    """Kept conversations, the last used first, and the counts of the whole store; what engines keep
    besides. Null for a key that is no administrator's.
    """

    object: str = "list"
    data: list[KeptWire]
    counts: KeptCounts | None
    engines: list[KeptByEngine] | None


class PinOrder(msgspec.Struct, frozen=True, kw_only=True):
    """By `id`, or by the client's name for a conversation (`x-conversation-id`, `session_id`), for
    what will be kept of it, too.
    """

    id: int | None = None
    conversation: str | None = None
    pinned: bool = True


class KeptChanged(msgspec.Struct, frozen=True):
    """How many conversations were pinned or dropped."""

    changed: int


@api(get, "/v1/kept", access="user")
async def kept(request: AnyRequest, services: Services) -> KeptListWire:
    """List kept conversations."""
    store, access = services.registry.kept.store, request.auth
    names = {
        str(one.files.path): one.id for one in reversed(services.registry.statuses()) if one.files
    }
    found = [_wire(one, names, services) for one in store.listed() if access.oversees(one.owner)]
    sees_all = access.role == "admin"
    return KeptListWire(
        data=found,
        counts=store.counts() if sees_all else None,
        engines=by_engines(services) if sees_all else None,
    )


def by_engines(services: Services) -> list[KeptByEngine]:
    """What loaded models' engines keep themselves."""
    found = []
    for status in services.registry.statuses():
        facts = services.facts(status) if status.info is not None else None
        if facts is None or status.files is None:
            continue
        keeps_states = status.files.recurrent_layers or status.files.sliding_bytes_per_token
        states = facts.kept_states if keeps_states else 0
        limits = facts.kept_memory + states, facts.kept_disk
        if any(limits):
            found.append(KeptByEngine(status.id, status.files.backend, *limits))
    return found


@api(post, "/v1/kept/pin", status_code=200, access="user", examples=EXAMPLE)
async def pin(request: AnyRequest, services: Services, order: PinOrder) -> KeptChanged:
    """Pin a kept conversation, so that no other pushes it out, or unpin it."""
    store = services.registry.kept.store
    audit(request, "pin kept", id=order.id, conversation=order.conversation)
    if order.conversation is not None and request.auth.role == "user":
        owner, name = request.auth.owner, order.conversation[:LONGEST_CONVERSATION]
        count = store.pin_conversation(owner, name, pinned=order.pinned)
    else:
        chosen = _chosen(request, order.id, order.conversation, None)
        count = store.pin(chosen, pinned=order.pinned)
    return KeptChanged(count)


@api(delete, "/v1/kept", status_code=200, access="user")
async def drop(
    request: AnyRequest,
    services: Services,
    *,
    id: int | None = None,
    conversation: str | None = None,
    model: str | None = None,
) -> KeptChanged:
    """Drop kept conversations: one by its id, those of a conversation's name, or a model's."""
    entry = None if model is None else await services.registry.find(model, request.auth)
    chosen = _chosen(request, id, conversation, str(entry.files.path) if entry else None)
    audit(request, "drop kept", id=id, conversation=conversation, model=model)
    return KeptChanged(services.registry.kept.store.drop(chosen))


def _chosen(
    request: AnyRequest, number: int | None, conversation: str | None, path: str | None
) -> Callable[[KeptBeginning], bool]:
    """Raises InvalidRequest where nothing is named."""
    if number is None and conversation is None and path is None:
        raise InvalidRequest("Name an id, a conversation or a model.", param="id")
    access = request.auth
    if conversation is not None:
        conversation = conversation[:LONGEST_CONVERSATION]  # as it was when it was kept
    return lambda one: (
        access.oversees(one.owner)
        and number in (None, one.id)
        and conversation in (None, one.conversation)
        and path in (None, one.model)
    )


def _wire(one: KeptBeginning, names: dict[str, str], services: Services) -> KeptWire:
    return alike(KeptWire, one)(
        model=names.get(one.model, one.model.rpartition("/")[2]),
        key=services.authenticator.label(one.owner),
        conversation=one.conversation or None,
    )
