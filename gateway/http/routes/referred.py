"""The items that a request for a response refers to, from the store: the caller's own alone."""

from collections.abc import Sequence

import msgspec

from gateway.access import Access
from gateway.dialects import responses
from gateway.dialects.responses import items, references
from gateway.dialects.responses.wire import Item
from gateway.errors import InvalidRequest
from gateway.http.services import Services

MOST_HOMES = 64  # responses and conversations that are looked into for one request


async def resolved(
    services: Services, access: Access, exchange: responses.ResponsesExchange
) -> responses.ResponsesExchange:
    """`exchange` with the items that it refers to. Raises NotFound, InvalidRequest."""
    wanted = references.referred(exchange.items)
    if not wanted:
        return exchange
    homes = dict.fromkeys(home for name in wanted if (home := references.home_of(name)))
    if len(homes) > MOST_HOMES:
        text = f"input: Refers to items of more than {MOST_HOMES} responses."
        raise InvalidRequest(text, param="input")
    parts = [part for home in homes for part in await _parts(services, access.owner, home)]
    return await services.bodies.run(lambda _wanted: exchange.resolved(_found(parts, wanted)))


def _found(parts: Sequence[bytes], wanted: Sequence[str]) -> dict[str, Item]:
    names = frozenset(wanted)
    kept = (item for part in parts for item in items.decoded(part))
    return {item["id"]: item for item in kept if item["id"] in names}


async def _parts(services: Services, owner: str, home: str) -> Sequence[bytes]:
    """Arrays of items, as JSON."""
    response = await services.store.get(owner, f"resp_{home}")
    if response is not None:
        return response.input, response.output
    talk = await services.store.items(owner, f"conv_{home}") or ()
    return [msgspec.json.encode([msgspec.Raw(one.item) for one in talk])]
