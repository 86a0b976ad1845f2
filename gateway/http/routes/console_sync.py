"""The console's conversations on this server, where `console.sync` has it: each key sees its own.
`gateway.keys.synced` has the rules.
"""

from collections.abc import Callable
from sqlite3 import Connection
from typing import Annotated, Concatenate, ParamSpec, TypeVar

import msgspec
from litestar import delete, get, put

from gateway.http.auth import AnyRequest
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.keys import synced
from gateway.keys.synced import Synced, SyncedEntry, SyncedList
from gateway.terms.errors import InvalidRequest, NotFound

P = ParamSpec("P")
Found = TypeVar("Found")

LONGEST_ID = 64  # characters
EXAMPLE = {"A conversation": {"title": "Hello", "conversation": "{}"}}

api = Routes()


class SyncOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as the browser has it. `changed`: of the one that it was made from."""

    title: Annotated[str, msgspec.Meta(max_length=200)]
    conversation: Annotated[str, msgspec.Meta(min_length=1)]
    changed: int | None = None


@api(get, "/v1/admin/console/conversations", access="user")
async def listed(request: AnyRequest, services: Services) -> SyncedList:
    """List the console's conversations that this key keeps on the server, without their texts."""
    return await _answer(request, services, synced.listed)


@api(get, "/v1/admin/console/conversations/{name:str}", access="user")
async def read(request: AnyRequest, services: Services, name: str) -> Synced:
    """Get one of them."""
    return await _answer(request, services, synced.found, name)


@api(put, "/v1/admin/console/conversations/{name:str}", access="user", examples=EXAMPLE)
async def keep(
    request: AnyRequest, services: Services, name: str, content: SyncOrder
) -> SyncedEntry:
    """Keep one, new or in place of the one that it was made from."""
    if len(name) > LONGEST_ID:
        raise InvalidRequest.at("id", f"at most {LONGEST_ID} characters")
    given = name, content.title, content.conversation, content.changed
    return await _answer(request, services, synced.keep, *given)


@api(delete, "/v1/admin/console/conversations/{name:str}", status_code=200, access="user")
async def remove(request: AnyRequest, services: Services, name: str, changed: int) -> SyncedEntry:
    """Delete one, if it is still the one of the number `changed`."""
    return await _answer(request, services, synced.forget, name, changed)


async def _answer(
    request: AnyRequest,
    services: Services,
    work: Callable[Concatenate[Connection, str, P], Found],
    *given: P.args,
    **named: P.kwargs,
) -> Found:
    """What `work` gives. Raises as it, and NotFound where the configuration keeps none."""
    if not services.config.console.sync:
        raise NotFound("console.sync: this server keeps no conversations of the console.")
    owner = request.auth.owner
    return await services.store.carry_out(lambda it: work(it, owner, *given, **named))
