"""Routes of the console without another API: the caller's rights, and running requests.

docs/console-api.md has the fields; they are filtered by the caller's rights.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.types import ASGIApp

from config.settings import ApisConfig, Config
from gateway.access import Access
from gateway.dialects.frames import body
from gateway.errors import GatewayError, InvalidRequest, NotFound
from gateway.http.plain import Plain
from gateway.http.request_log import audit
from gateway.http.request_record import RequestStanding
from gateway.http.services import Services
from gateway.logs import Level, LogLine

AnyRequest = Request[Any, Any, Any]


class MeWire(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, and what is available to it."""

    role: str
    label: str | None
    models: Sequence[str] | None  # None: all of them
    autoload: bool
    keys: bool  # whether the server has any
    version: str
    server: str  # the address it was asked by
    default_model: str | None
    apis: Sequence[str]
    log_prompts: bool
    downloads: bool  # whether there is a folder for them
    uploads: bool
    deletion: bool


class RequestsWire(msgspec.Struct, frozen=True):
    """Requests, the newest first."""

    requests: Sequence[RequestStanding]


@get("/v1/admin/me")
async def me(request: AnyRequest, services: Services) -> ASGIApp:
    """The caller's rights, and what the server has for it."""
    access = services.authenticator.admit(request.headers)
    return Plain(body(who(services, access, address(request))))


def address(request: AnyRequest) -> str:
    """Of this server, as the client calls it."""
    return str(request.base_url).rstrip("/")


def who(services: Services, access: Access, server: str) -> MeWire:
    """The answer of `me`."""
    config = services.config
    folder = bool(config.hub.folder or config.model_dirs)
    return MeWire(
        role=access.role,
        label=access.label,
        models=sorted(access.models) or None,
        autoload=access.autoload,
        keys=not services.authenticator.is_open,
        version=version("roundhouse"),
        server=server,
        default_model=_default(services, access),
        apis=_enabled_apis(config),
        log_prompts=config.log.prompts,
        downloads=folder,
        uploads=folder,
        deletion=config.hub.deletion,
    )


def _enabled_apis(config: Config) -> list[str]:
    names = ApisConfig.__struct_fields__
    return [name for name in names if getattr(config.apis, name) is True]


def _default(services: Services, access: Access) -> str | None:
    """The configured default; None where there is none."""
    try:
        return services.registry.resolve("default", access).name
    except GatewayError:
        return None


@get("/v1/admin/requests")
async def requests(request: AnyRequest, services: Services) -> ASGIApp:
    """Running requests, and recent ones: an administrator's list has those of all keys."""
    access = services.authenticator.admit(request.headers)
    return Plain(body(RequestsWire(services.activity.seen_by(access))))


@post("/v1/admin/requests/{number:str}/cancel", status_code=200)
async def cancel(request: AnyRequest, services: Services, number: str) -> ASGIApp:
    """End a request that runs; its client is sent an error."""
    access = services.authenticator.admit(request.headers)
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise NotFound(f"There is no request {number!r:.40}.", param="number")
    cancelled = services.activity.cancel(int(number), access)
    audit(request, "cancel", model=cancelled.model, cancelled=cancelled.request)
    return Plain(body(cancelled))


class LogWire(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the log, the oldest first."""

    lines: Sequence[LogLine]
    first: int  # number of the oldest line that is kept
    last: int


MOST_LINES = 2000  # of one answer
MOST_SEARCHED = 200  # of the text to search for


@get("/v1/admin/logs")
async def logs(
    request: AnyRequest,
    services: Services,
    *,
    level: Level = "debug",
    search: str = "",
    after: int = 0,
    limit: int = 200,
) -> ASGIApp:
    """The last lines of the log that have at least that level and hold the text."""
    services.authenticator.admit(request.headers).require_admin()
    if len(search) > MOST_SEARCHED:
        raise InvalidRequest(f"search: at most {MOST_SEARCHED} letters", param="search")
    kept = services.lines.after(0)
    found = services.lines.found(
        level=level, text=search, after=after, limit=min(max(limit, 0), MOST_LINES)
    )
    first = kept[0].number if kept else 0
    return Plain(body(LogWire(lines=found, first=first, last=services.lines.last)))


ROUTES = (me, requests, cancel, logs)
