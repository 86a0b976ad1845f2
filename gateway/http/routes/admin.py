"""Roundhouse's own calls, which no other server has: reloads, the upstreams' states and draining,
usage.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.params import Parameter
from litestar.types import ASGIApp

from backends.places.upstream.replicas import Replica
from config.nodes import NodeConfig
from config.values import alike
from gateway.http.auth import AnyRequest
from gateway.http.request_log import audit
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import Plain
from gateway.keys.usage import GROUPS, Group, Period, UsageRow, as_csv
from gateway.reconfiguring.joining import Announcement
from gateway.reconfiguring.reloading import ReloadReport
from gateway.registry.nodes import named
from gateway.terms.errors import InvalidRequest, NotFound

SPARE = {"A server": {"url": "http://127.0.0.1:9", "name": "spare", "lease": 1}}

api = Routes()


@api(post, "/v1/admin/reload", status_code=200, access="admin")
async def reload(request: AnyRequest, services: Services, *, plan: bool = False) -> ReloadReport:
    """Reload the configuration and apply it. With `plan`, only report the changes."""
    if not plan:
        audit(request, "reload")
    return await services.reloader.reload(plan=plan)


class ReplicaWire(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `state`: up, out after failures, or on trial after a probe. `fault`: the last
    failure in one word, such as refused, no_address, certificate, timeout, or its HTTP status; null
    if the server is reachable.
    """

    url: str
    state: str
    lease: float | None  # seconds until an announced server is removed; null if it is configured
    draining: bool
    busy: int  # requests under way
    asked: int
    failed: int
    fault: str | None
    reason: str | None  # the same as a sentence


class UpstreamWire(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream, configured or announced."""

    name: str
    replicas: list[ReplicaWire]


class DrainWire(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and whether it gets new requests."""

    upstream: str
    url: str
    draining: bool = True


@api(get, "/v1/upstreams", access="admin")
async def upstreams(services: Services) -> list[UpstreamWire]:
    """List the servers of all upstreams."""
    return _upstreams(services)


@api(post, "/v1/upstreams/drain", access="admin")
async def drain(request: AnyRequest, services: Services, order: DrainWire) -> list[UpstreamWire]:
    """Stop or resume new requests to an upstream's server. Running requests continue. The states of
    all servers are returned.
    """
    audit(request, "drain" if order.draining else "use again", server=order.url)
    fleet = services.registry.fleet
    if not fleet.drain(order.upstream, order.url, draining=order.draining):
        raise NotFound(f"Server {order.url!r} of upstream {order.upstream!r} not found.")
    return _upstreams(services)


class NodeWire(msgspec.Struct, frozen=True, kw_only=True):
    """Another machine. `devices`: bytes for models, by the device's name in the ledger; of a
    machine that the configuration names all bytes, as it gives them itself. `taken`: what models
    have of them. `draining`: null where models can't be had to leave it.
    """

    name: str
    address: str
    draining: bool | None
    devices: Mapping[str, int]
    taken: Mapping[str, int]
    models: tuple[str, ...]


class NodesWire(msgspec.Struct, frozen=True, kw_only=True):
    """The other machines: the cluster's, and those that the configuration names."""

    nodes: tuple[NodeWire, ...]


class NodeDrainWire(msgspec.Struct, frozen=True, kw_only=True):
    """The node, and whether models leave it."""

    node: str
    draining: bool = True


@api(get, "/v1/nodes", access="admin")
async def nodes(services: Services) -> NodesWire:
    """List the other machines: those of the cluster, and those that the configuration names."""
    return _nodes(services)


@api(post, "/v1/nodes/drain", access="admin")
async def drain_node(request: AnyRequest, services: Services, order: NodeDrainWire) -> NodesWire:
    """Have models leave a machine of the cluster, as their last running answers end, and load none
    there; or load some there again. All machines are returned.
    """
    audit(request, "drain node" if order.draining else "use node again", node=order.node)
    cluster = services.registry.cluster
    if cluster is None or not cluster.drain(order.node, draining=order.draining):
        raise NotFound(f"Node {order.node!r} not found.")
    return _nodes(services)


def _nodes(services: Services) -> NodesWire:
    registry = services.registry

    def shown(node: NodeConfig, devices: Mapping[str, int], *, draining: bool | None) -> NodeWire:
        models, taken = registry.models_at(node.name), Counter[str]()
        for held in models.values():
            taken.update(held)
        return NodeWire(
            name=node.name,
            address=node.address,
            draining=draining,
            devices=devices,
            taken={device: taken[device] for device in devices},
            models=tuple(models),
        )

    nodes = [shown(node, devices, draining=None) for node, devices in registry.named_nodes()]
    for name, node in sorted(registry.nodes().items()):
        devices = {device: registry.budgets.get(device, 0) for device in named(name, node.total)}
        nodes.append(shown(node.config, devices, draining=node.draining))
    return NodesWire(nodes=tuple(nodes))


class AnnouncementWire(msgspec.Struct, frozen=True, kw_only=True):
    """A server that wants requests. `url`: its base URL; without one, `port` at the caller's
    address. `name`: of the upstream that it is a server of; `prefix` is put before the names of its
    models. `key`: that it is to be called with. `lease`: seconds.
    """

    url: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    name: str = "joined"
    prefix: str = ""
    key: str | None = None
    lease: float = 30.0


class LeaseWire(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is listed, and for how many seconds; the same call renews the lease."""

    name: str
    url: str
    prefix: str
    lease: float


@api(post, "/v1/upstreams", status_code=200, access="admin", examples=SPARE)
async def announce(request: AnyRequest, services: Services, order: AnnouncementWire) -> LeaseWire:
    """Announce a Roundhouse whose models are to be offered here, or renew its lease. It is removed
    when the lease ends; running requests finish.
    """
    box = alike(Announcement, order)(url=_announced_url(request, order))
    return alike(LeaseWire, await services.announcements.announce(box))()


def _announced_url(request: AnyRequest, wire: AnnouncementWire) -> str:
    """Raises InvalidRequest."""
    if wire.url is not None:
        return wire.url
    if wire.port is None or request.client is None:
        raise InvalidRequest.at("url", "Expected the server's base URL, or its port.")
    host = request.client.host
    return f"http://{f'[{host}]' if ':' in host else host}:{wire.port}"


@api(delete, "/v1/upstreams", status_code=200, access="admin")
async def withdraw(
    request: AnyRequest, services: Services, *, name: str = "joined", url: str = ""
) -> list[UpstreamWire]:
    """Remove an announced server: running requests finish. The states of all servers are
    returned.
    """
    audit(request, "withdraw", server=url)
    if not await services.announcements.withdraw(name, url):
        raise NotFound(f"No server {url!r:.200} of upstream {name!r:.100} was announced.")
    return _upstreams(services)


def _upstreams(services: Services) -> list[UpstreamWire]:
    leases = services.announcements.leases()
    return [
        UpstreamWire(
            name=name, replicas=[_wire(one, leases.get((name, one.url))) for one in replicas]
        )
        for name, replicas in services.registry.fleet.replicas().items()
    ]


def _wire(replica: Replica, lease: float | None) -> ReplicaWire:
    fault = replica.silence or replica.fault
    return alike(ReplicaWire, replica)(
        lease=lease,
        fault=fault.kind if fault else None,
        reason=fault.reason if fault else None,
    )


LONG_AGO = timedelta(days=29)  # before the last day, where no first one is given


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """Usage in a period of days in UTC, in sums by `group`."""

    object: str = "usage"
    first: str = msgspec.field(name="from")
    last: str = msgspec.field(name="to")
    group: Sequence[str]
    data: Sequence[UsageRow]


@api(get, "/v1/usage", access="user", gives=(UsageWire,))
async def usage(
    request: AnyRequest,
    services: Services,
    *,
    first: Annotated[str, Parameter(query="from")] = "",
    last: Annotated[str, Parameter(query="to")] = "",
    group: str = "key,model,day",
    form: Annotated[str, Parameter(query="format")] = "",
) -> ASGIApp:
    """Get requests and tokens by `group` (`key`, `model`, `day`, or several of them), from the day
    `from` to the day `to` in UTC (`2026-01-31`); by default, of the last 30 days. Administrators
    get the usage of all keys, users that of their own. With `format=csv`, or `Accept: text/csv`, as
    CSV.
    """
    until = _day(last, "to") if last else datetime.now(UTC).date()
    since = _day(first, "from") if first else until - LONG_AGO
    groups = _groups(group)
    access = request.auth
    owner = None if access.role == "admin" else access.owner
    rows = await services.usage.read(Period(since, until), groups, owner)
    if form == "csv" or (not form and "text/csv" in request.headers.get("accept", "")):
        text = await services.bodies.run(lambda _wanted: as_csv(rows, groups).encode())
        return Plain(text, media_type=b"text/csv; charset=utf-8")
    wire = UsageWire(first=str(since), last=str(until), group=groups, data=rows)
    return Plain(await services.bodies.run(lambda _wanted: msgspec.json.encode(wire)))


def _day(text: str, param: str) -> date:
    """Raises InvalidRequest."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        explained = f"Expected a day like 2026-01-31, got {text[:40]!r}."
        raise InvalidRequest.at(param, explained) from None


def _groups(text: str) -> Sequence[Group]:
    """In the order of `GROUPS`. Raises InvalidRequest."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := sorted(names - {*GROUPS}):
        raise InvalidRequest.at("group", f"Expected key, model or day, got {unknown[0][:40]!r}.")
    return [name for name in GROUPS if name in names]
