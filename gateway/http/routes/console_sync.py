"""The console's conversations on this server, where `console.sync` has it: each key sees its own.
`gateway.keys.synced` has the rules.
"""

from collections.abc import Callable
from sqlite3 import Connection
from typing import Annotated, Concatenate, ParamSpec

import msgspec
from litestar import delete, get, put
from litestar.types import ASGIApp

from gateway.dialects.dialect import body
from gateway.dialects.fields import read_fields
from gateway.http.auth import AnyRequest
from gateway.http.openapi import Described, Routes
from gateway.http.services import Services
from gateway.http.sse import Plain
from gateway.keys import synced
from gateway.terms.errors import InvalidRequest, NotFound

P = ParamSpec("P")
LONGEST_ID = 64  # characters


class SyncOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as the browser has it. `changed`: of the one that it was made from."""

    title: Annotated[str, msgspec.Meta(max_length=200)]
    conversation: Annotated[str, msgspec.Meta(min_length=1)]
    changed: int | None = None


@get("/v1/admin/console/conversations", access="user")
async def listed(request: AnyRequest, services: Services) -> ASGIApp:
    """List the console's conversations that this key keeps on the server, without their texts."""
    return await _answer(request, services, synced.listed)


@get("/v1/admin/console/conversations/{name:str}", access="user")
async def read(request: AnyRequest, services: Services, name: str) -> ASGIApp:
    """Get one of them."""
    return await _answer(request, services, synced.found, name)


@put("/v1/admin/console/conversations/{name:str}", access="user")
async def keep(request: AnyRequest, services: Services, name: str) -> ASGIApp:
    """Keep one, new or in place of the one that it was made from."""
    if len(name) > LONGEST_ID:
        raise InvalidRequest.at("id", f"at most {LONGEST_ID} characters")
    order = await services.read(lambda it: read_fields(it).read(SyncOrder), await request.body())
    given = name, order.title, order.conversation, order.changed
    return await _answer(request, services, synced.keep, *given)


@delete("/v1/admin/console/conversations/{name:str}", status_code=200, access="user")
async def remove(request: AnyRequest, services: Services, name: str, changed: int) -> ASGIApp:
    """Delete one, if it is still the one of the number `changed`."""
    return await _answer(request, services, synced.forget, name, changed)


async def _answer(
    request: AnyRequest,
    services: Services,
    work: Callable[Concatenate[Connection, str, P], object],
    *given: P.args,
    **named: P.kwargs,
) -> ASGIApp:
    """What `work` gives. Raises as it, and NotFound where the configuration keeps none."""
    if not services.config.console.sync:
        raise NotFound("console.sync: this server keeps no conversations of the console.")
    owner = request.auth.owner
    found = await services.store.carry_out(lambda it: work(it, owner, *given, **named))
    return Plain(body(found))


EXAMPLE = {"A conversation": {"title": "Hello", "conversation": "{}"}}

ROUTES: Routes = {
    listed: Described(gives=(synced.SyncedList,)),
    read: Described(gives=(synced.Synced,)),
    keep: Described(takes=SyncOrder, gives=(synced.SyncedEntry,), examples=EXAMPLE),
    remove: Described(gives=(synced.SyncedEntry,)),
}
