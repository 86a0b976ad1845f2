"""Roundhouse's own calls for administrators, which no other server has: reloads, and the upstreams'
states and draining.
"""

import msgspec
from litestar import get, post
from litestar.types import ASGIApp

from backends.upstream.replicas import Replica
from gateway.dialects.fields import Fields, order_object
from gateway.dialects.frames import body
from gateway.errors import NotFound
from gateway.http.auth import AnyRequest
from gateway.http.openapi.models import Described, Routes
from gateway.http.request_record import audit
from gateway.http.services import Services
from gateway.http.sse import Plain
from gateway.reloading import ReloadReport


@post("/v1/admin/reload", status_code=200, access="admin")
async def reload(request: AnyRequest, services: Services, *, plan: bool = False) -> ASGIApp:
    """Reload the configuration and apply it. With `plan`, only report the changes."""
    if not plan:
        audit(request, "reload")
    return Plain(msgspec.json.encode(await services.reloader.reload(plan=plan)))


class ReplicaWire(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `state`: up, out after failures, or on trial after a probe. `fault`: the last
    failure in one word, such as refused, no_address, certificate, timeout, or its HTTP status; null
    if the server is reachable.
    """

    url: str
    state: str
    draining: bool
    busy: int  # requests under way
    asked: int
    failed: int
    fault: str | None
    reason: str | None  # the same as a sentence


class UpstreamWire(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream of the configuration."""

    name: str
    replicas: list[ReplicaWire]


class DrainWire(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and whether it gets new requests."""

    upstream: str
    url: str
    draining: bool = True


@get("/v1/upstreams", access="admin")
async def upstreams(services: Services) -> ASGIApp:
    """List the servers of all upstreams."""
    return Plain(_upstreams_body(services))


@post("/v1/upstreams/drain", access="admin")
async def drain(request: AnyRequest, services: Services) -> ASGIApp:
    """Stop or resume new requests to an upstream's server. Running requests continue. The states of
    all servers are returned.
    """
    order = Fields(order_object(await request.body()), {}).read(DrainWire)
    audit(request, "drain" if order.draining else "use again", server=order.url)
    fleet = services.registry.fleet
    if not fleet.drain(order.upstream, order.url, draining=order.draining):
        raise NotFound(f"Server {order.url!r} of upstream {order.upstream!r} not found.")
    return Plain(_upstreams_body(services))


def _upstreams_body(services: Services) -> bytes:
    found = services.registry.fleet.replicas().items()
    return body([UpstreamWire(name=name, replicas=[*map(_wire, all_)]) for name, all_ in found])


def _wire(replica: Replica) -> ReplicaWire:
    fault = replica.silence or replica.fault
    return ReplicaWire(
        url=replica.url,
        state=replica.state,
        draining=replica.draining,
        busy=replica.busy,
        asked=replica.asked,
        failed=replica.failed,
        fault=fault.kind if fault else None,
        reason=fault.reason if fault else None,
    )


ROUTES: Routes = {
    reload: Described(gives=(ReloadReport,)),
    upstreams: Described(gives=(list[UpstreamWire],)),
    drain: Described(takes=DrainWire, gives=(list[UpstreamWire],)),
}
